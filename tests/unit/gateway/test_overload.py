"""More than there is room for: who waits, who goes first, who is turned away, and who is cut off."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn
from aiohttp import web

from pearl_api.names import Role
from pearl_gateway.app import create_app
from pearl_gateway.connections import listener, server_config
from pearl_gateway.settings import Limits
from pearl_gateway.storage import Storage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    import httpx

    from conftest import Bench

    Benches = Callable[..., AbstractAsyncContextManager[Bench]]

QUICK = {"queue_seconds": 5.0, "stall_seconds": 5.0, "prefill_seconds": 5.0, "max_model_len": 4096}


@pytest.fixture
async def crowded(benches: Benches) -> AsyncIterator[Bench]:
    """Two turns at a time on a worker."""
    async with benches(Limits(**QUICK, worker_turns=2, max_eval_turns=1, max_kept_tokens=50)) as bench:
        yield bench


def error_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["type"]


async def ask(bench: Bench, name: str, group: str, **headers: str) -> httpx.Response:
    return await bench.generate([ord(name[-1])], 3, trajectory=name, headers={"X-Pearl-Group": group, **headers})


async def test_a_group_with_many_waiting_turns_does_not_hold_up_one_with_a_single_turn(crowded: Bench) -> None:
    engine = await crowded.engine(stall_after=1)
    tasks = [asyncio.create_task(ask(crowded, f"many-{at}", "many")) for at in "abcdefgh"]
    await crowded.until(lambda: crowded.gateway.tally.turns_queued == 6)
    alone = asyncio.create_task(ask(crowded, "one-z", "one"))
    await crowded.until(lambda: crowded.gateway.tally.turns_queued == 7)
    engine.stall_after = None
    engine.release.set()
    answers = await asyncio.gather(alone, *tasks)
    assert engine.requests[2]["token_ids"] == [ord("z")]
    assert [one.status_code for one in answers] == 9 * [200]
    assert max(worker.in_flight for worker in crowded.gateway.fleet.workers.values()) == 0


async def test_never_more_turns_on_a_worker_than_it_has_room_for_and_stragglers_first(crowded: Bench) -> None:
    engine = await crowded.engine()
    for name in ("old", "new"):
        await crowded.generate([1], 2, trajectory=name)
    engine.stall_after = 1
    engine.release.clear()
    blocking = [asyncio.create_task(crowded.generate([9, at], 3, trajectory=f"b{at}")) for at in range(2)]
    await crowded.until(lambda: len(engine.requests) == 4)
    prompts = {name: [1, *crowded.continuation([1], 2), number] for name, number in (("new", 7), ("old", 8))}
    waiting = [asyncio.create_task(crowded.generate(prompts[name], 2, trajectory=name)) for name in ("new", "old")]
    await crowded.until(lambda: crowded.gateway.tally.turns_queued == 2)
    await asyncio.sleep(0.05)
    assert len(engine.requests) == 4
    engine.stall_after = None
    engine.release.set()
    await asyncio.gather(*blocking, *waiting)
    # Both have no group that runs; the trajectory that began first goes first.
    assert [one["token_ids"] for one in engine.requests[4:]] == [prompts["old"], prompts["new"]]


async def test_prompts_wait_for_a_prefill_worker_in_the_gateway_where_stragglers_overtake(benches: Benches) -> None:
    async with benches(Limits(**QUICK, prefill_queue_tokens=10), local_append_tokens=0) as bench:
        prefill = await bench.engine(Role.PREFILL)
        await bench.engine(Role.DECODE)
        first = bench.tokens(await bench.generate([1, 2], 2, trajectory="old"))
        prefill.slow = asyncio.Event()
        running = asyncio.create_task(bench.generate(list(range(20)), 2, trajectory="long"))
        await bench.until(lambda: len(prefill.requests) == 2)
        prompts = {"new": [7, 8], "old": [1, 2, *first, 9]}
        waiting = [asyncio.create_task(bench.generate(prompts[name], 2, trajectory=name)) for name in prompts]
        await bench.until(lambda: bench.gateway.tally.turns_queued == 2)
        prefill.slow.set()
        await asyncio.gather(running, *waiting)
        assert [one["token_ids"] for one in prefill.requests[2:]] == [prompts["old"], prompts["new"]]
        assert (await bench.stats())["counters"]["degradedTurns"] == 0
        assert [worker.reserved_tokens for worker in bench.gateway.fleet.workers.values()] == [0, 0]


async def test_turns_that_wait_for_weights_hold_up_nobody_else(crowded: Bench) -> None:
    await crowded.engine(version=1)
    await crowded.generate([5], 1, trajectory="tells-its-version")
    batch = {"step": 1, "groups": 30, "groupSize": 1, "minVersion": 2}
    for at in range(30):
        await crowded.generate([at], 1, trajectory=f"w{at}", headers={"X-Pearl-Step": "1"})
    assert (await crowded.client.post("/v1/batches", json=batch)).status_code == 200
    step = {"X-Pearl-Step": "1"}
    waiting = [asyncio.create_task(crowded.generate([at, 9], 1, trajectory=f"w{at}", headers=step)) for at in range(30)]
    await crowded.until(lambda: crowded.gateway.tally.turns_queued == 30)
    async with asyncio.timeout(1):
        assert (await crowded.generate([6], 1, trajectory="free", headers={"X-Pearl-Step": "7"})).status_code == 200
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_waiting_client_that_leaves_takes_no_place(crowded: Bench) -> None:
    engine = await crowded.engine(stall_after=1)
    running = [asyncio.create_task(crowded.generate([9, at], 3, trajectory=f"b{at}")) for at in range(2)]
    await crowded.until(lambda: len(engine.requests) == 2)
    gone = asyncio.create_task(crowded.generate([5], 3, trajectory="gone"))
    await crowded.until(lambda: crowded.gateway.tally.turns_queued == 1)
    gone.cancel()
    await crowded.until(lambda: crowded.gateway.tally.turns_queued == 0)
    engine.stall_after = None
    engine.release.set()
    assert [one.status_code for one in await asyncio.gather(*running)] == [200, 200]
    assert [worker.reserved for worker in crowded.gateway.fleet.workers.values()] == [0]
    assert crowded.tokens(await crowded.generate([6], 3)) == crowded.continuation([6], 3)


async def test_evaluations_have_a_quota_of_their_own(crowded: Bench) -> None:
    engine = await crowded.engine(stall_after=1)
    kind = {"X-Pearl-Class": "eval"}
    first = asyncio.create_task(ask(crowded, "e1", "e", **kind))
    await crowded.until(lambda: len(engine.requests) == 1)
    refused = await ask(crowded, "e2", "e", **kind)
    assert error_of(refused) == (503, "TooManyTurns")
    assert "PEARL_MAX_EVAL_TURNS" in refused.text
    engine.stall_after = None
    assert (await ask(crowded, "t1", "g")).status_code == 200
    engine.release.set()
    assert (await first).status_code == 200
    stats = await crowded.stats()
    assert (stats["profile"]["turns"], stats["counters"]["turns"]) == (1, 2)


async def test_an_evaluation_stays_with_the_weights_that_it_began_with(bench: Bench) -> None:
    old, new = await bench.engine(version=1), await bench.engine(version=2)
    bench.gateway.fleet.workers["a"].weight_version = 1
    kind = {"X-Pearl-Class": "eval"}
    first = bench.tokens(await bench.generate([1], 2, headers=kind))
    bench.gateway.fleet.workers["b"].weight_version = 2
    bench.gateway.fleet.close_for(bench.gateway.fleet.workers["a"], 0.3)
    second = await bench.generate([1, *first], 2, headers=kind)
    assert bench.tokens(second) == bench.continuation([1, *first], 2, version=1)
    assert (len(old.requests), len(new.requests)) == (2, 0)
    bench.gateway.fleet.workers["a"].weight_version = 2
    assert error_of(await bench.generate([1, *first, 5], 2, headers=kind)) == (409, "VersionGone")


async def test_new_trajectories_are_turned_away_while_live_ones_hold_too_many_tokens(crowded: Bench) -> None:
    await crowded.engine()
    first = crowded.tokens(await crowded.generate(list(range(1, 60)), 2))
    crowded.gateway.expire()
    assert error_of(await crowded.generate([1], 1, trajectory="t2")) == (503, "TooManyTokens")
    # Those that run go on.
    assert (await crowded.generate([*range(1, 60), *first, 3], 1)).status_code == 200
    crowded.gateway.sessions.end("t1", aborted=False, reward=None, cause=None)
    crowded.gateway.expire()
    assert (await crowded.generate([1], 1, trajectory="t2")).status_code == 200


async def test_whoever_waits_when_the_process_ends_is_told_to_come_back(bench: Bench) -> None:
    engine = await bench.engine(stall_after=1)
    bench.gateway.routing.window = 1
    await bench.client.post("/v1/permits", json={"group": "g1", "size": 1})
    permit = asyncio.create_task(bench.client.post("/v1/permits", json={"group": "g2", "size": 1}))
    turn = asyncio.create_task(bench.generate([1], 3))
    await bench.until(lambda: bench.received("t1") == 1)
    await bench.gateway.dismiss()
    assert [error_of(await one) for one in (permit, turn)] == 2 * [(503, "ShuttingDown")]
    assert error_of(await bench.generate([1], 3, trajectory="t2")) == (503, "ShuttingDown")
    async with asyncio.timeout(2):
        await engine.left.wait()


async def test_a_client_that_does_not_read_is_cut_off_and_others_are_served(bench: Bench) -> None:
    await bench.engine(tokens_per_chunk=200)
    config = server_config(create_app(bench.gateway), Limits(**QUICK), host="127.0.0.1", port=0)
    server = uvicorn.Server(config)
    heard = listener(config, 1.5)
    heard.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    task = asyncio.create_task(server.serve([heard]))
    await bench.until(lambda: server.started)
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(heard.getsockname())
        body = b'{"token_ids":[1],"stream":true,"sampling_params":{"max_tokens":2000,"logprobs":0}}'
        head = "POST /inference/v1/generate HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n"
        head += f"Content-Length: {len(body)}"
        slow.sendall(head.encode() + b"\r\n\r\n" + body)
        await bench.until(lambda: bench.gateway.tally.turns == 1)
        assert bench.tokens(await bench.generate([2], 3)) == bench.continuation([2], 3)
        assert len(server.server_state.connections) == 1
        await bench.until(lambda: not server.server_state.connections)
    await bench.until(lambda: not [one for one in bench.gateway.sessions.live.values() if one.ephemeral])
    server.should_exit = True
    await task


class FullDisk:
    """A file that takes no more."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


async def test_a_full_disk_costs_no_answer_and_is_counted(benches: Benches, tmp_path: Path) -> None:
    storage = Storage(tmp_path, time.monotonic)
    async with benches(Limits(**QUICK), storage) as bench:
        await bench.engine()
        first = bench.tokens(await bench.generate([1], 2))
        whole = storage._turns._file
        storage._turns._file = FullDisk(whole)
        second = bench.tokens(await bench.generate([1, *first], 2))
        third = bench.tokens(await bench.generate([1, *first, *second], 2))
        metrics = (await bench.client.get("/metrics")).text
        assert 'pearl_gateway_storage_errors_total{rollout="r"} 1.0' in metrics
        assert (await bench.export("t1"))["tokenIds"] == [1, *first, *second, *third]
    again = Storage(tmp_path, time.monotonic)
    assert [line["answer"] for line in again.read_turns()] == [first, third]
    again.close()


async def test_a_decode_worker_that_receives_no_kv_is_reported_to_its_agent(benches: Benches) -> None:
    reports: list[dict[str, Any]] = []

    async def report(request: web.Request) -> web.Response:
        reports.append(await request.json())
        return web.json_response({})

    async def state(_request: web.Request) -> web.Response:
        return web.json_response({"weightVersion": 0})

    app = web.Application()
    app.router.add_post("/v1/engine/report", report)
    app.router.add_get("/v1/state", state)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    agent = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with benches(Limits(**QUICK, handoff_seconds=0.1), local_append_tokens=4) as bench:
        for _ in range(3):
            await bench.engine(Role.PREFILL)
        decode = await bench.engine(Role.DECODE, deaf=True)
        bench.place(decode, Role.DECODE, agent=agent)
        for at in range(3):
            prompt = [at, *range(1, 9)]
            answer = await bench.generate(prompt, 3, trajectory=f"t{at}")
            assert bench.tokens(answer) == bench.continuation(prompt, 3)
        counters = (await bench.stats())["counters"]
        assert counters["handoffFailures"] == 3
    assert [one["kind"] for one in reports] == ["stuckTransfers"]
    assert "3 hand-offs in a row did not arrive" in reports[0]["detail"]
    await runner.cleanup()
