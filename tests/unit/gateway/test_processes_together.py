"""Several processes of one gateway, in one event loop: who answers what, and what they tell each other."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from several_processes import Together, name_at, together, until

from pearl_api.names import Activity, Role
from pearl_gateway.batches import Finished
from pearl_gateway.fleet import WorkerFacts
from pearl_gateway.processes.ledger import sums
from pearl_gateway.processes.messages import End

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from conftest import FakeEngine

T0, T1 = name_at(0, 2), name_at(1, 2)


def facts(engine: FakeEngine, epoch: int = 0, role: Role = Role.COLOCATED) -> WorkerFacts:
    return WorkerFacts(
        uid=engine.name,
        pod=f"pod-{engine.name}",
        url=engine.url,
        agent_url=None,
        role=role,
        role_epoch=epoch,
        activity=Activity.ACTIVE,
        ready=True,
    )


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Together]:
    async with together(2, tmp_path) as made:
        yield made


@pytest.fixture
async def engine(engines: Callable[..., Any], pair: Together) -> FakeEngine:
    made: FakeEngine = await engines()
    pair.see(facts(made))
    return made


async def turn(client: httpx.AsyncClient, name: str | None, prompt: list[int], count: int, **more: Any) -> Any:
    headers = {"X-Pearl-Trajectory": name} if name else {}
    headers |= more.pop("headers", {})
    body = {"token_ids": prompt, "sampling_params": {"max_tokens": count, "temperature": 0.0}, **more}
    return await client.post("/inference/v1/generate", json=body, headers=headers)


def tokens(response: httpx.Response) -> list[int]:
    assert response.status_code == 200, response.text
    found: list[int] = response.json()["choices"][0]["token_ids"]
    return found


@pytest.mark.usefixtures("engine")
async def test_a_trajectory_lives_in_one_process_whoever_is_asked(
    pair: Together, continuation: Callable[..., list[int]]
) -> None:
    for name, home in ((T0, 0), (T1, 1)):
        prompt = [1, 2]
        for client in pair.clients.values():
            answer = tokens(await turn(client, name, prompt, 3))
            assert answer == continuation(prompt, 3)
            prompt += [*answer, 7]
        assert name in pair.gateway(home).sessions.live
        assert name not in pair.gateway(1 - home).sessions.live
        for client in pair.clients.values():
            export = (await client.get(f"/v1/trajectories/{name}")).json()
            assert export["turns"] == 2
            assert export["tokenIds"] == prompt[:-1]


@pytest.mark.parametrize("place", ["field", "escaped", "utf16", "session"])
@pytest.mark.usefixtures("engine")
async def test_identity_is_found_wherever_it_stands(pair: Together, place: str) -> None:
    body: dict[str, Any] = {"token_ids": [1], "sampling_params": {"max_tokens": 2}, "pearl": {"trajectory": T1}}
    path, headers = "/inference/v1/generate", {"Content-Type": "application/json"}
    content = json.dumps(body).encode()
    if place == "escaped":
        content = content.replace(b'"pearl"', b'"p\\u0065arl"')
    elif place == "utf16":
        content = json.dumps(body).encode("utf-16")
    elif place == "session":
        path, headers["X-SMG-Routing-Key"] = "/generate", T1
        content = json.dumps({"input_ids": [1], "sampling_params": {"max_new_tokens": 2}}).encode()
    response = await pair.clients[0].post(path, content=content, headers=headers)
    assert response.status_code == 200, response.text
    assert T1 in pair.gateway(1).sessions.live
    assert not pair.gateway(0).sessions.live


@pytest.mark.usefixtures("engine")
async def test_requests_without_a_trajectory_stay_where_they_arrive(pair: Together) -> None:
    tokens(await turn(pair.clients[1], None, [1], 2))
    assert (pair.gateway(0).tally.turns, pair.gateway(1).tally.turns) == (0, 1)


async def test_one_key_is_one_turn_through_any_process(pair: Together, engine: FakeEngine) -> None:
    engine.pause = 0.01
    key = {"X-Pearl-Turn": "0"}
    first, second = await asyncio.gather(
        *(turn(client, T1, [1, 2], 5, headers=key) for client in pair.clients.values())
    )
    assert tokens(first) == tokens(second)
    assert len(engine.requests) == 1


async def test_streams_pass_through_as_they_come(pair: Together, engine: FakeEngine) -> None:
    engine.stall_after = 2
    body = {"token_ids": [1], "sampling_params": {"max_tokens": 3}, "stream": True}
    seen: list[int] = []
    request = pair.clients[0].stream("POST", "/inference/v1/generate", json=body, headers={"X-Pearl-Trajectory": T1})
    async with request as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                seen += json.loads(line[6:])["choices"][0]["token_ids"]
                if len(seen) == 2:
                    engine.release.set()
    assert len(seen) == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_stops_the_engine_behind_the_other_process(
    pair: Together, engine: FakeEngine, *, stream: bool
) -> None:
    engine.stall_after = 1
    host, port = pair.urls[0].removeprefix("http://").split(":")
    body = json.dumps({"token_ids": [1], "sampling_params": {"max_tokens": 9}, "stream": stream}).encode()
    head = (
        f"POST /inference/v1/generate HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\nX-Pearl-Trajectory: {T1}"
    )
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    await until(lambda: len(engine.requests) == 1)
    writer.transport.abort()
    async with asyncio.timeout(2):
        await engine.left.wait()
    await until(lambda: pair.gateway(1).tally.turns_in_flight == 0)


@pytest.mark.usefixtures("engine")
async def test_bad_requests_are_refused_the_same_way(pair: Together) -> None:
    client = pair.clients[0]
    assert (await client.post("/v1/completions", content=b"{", headers={"X-Pearl-Trajectory": T1})).status_code == 400
    unauthorized = {"Authorization": "Bearer wrong"}
    assert (await turn(client, T1, [1], 1, headers=unauthorized)).status_code == 401
    refused = await client.post("/_/end", json={"trajectory": T0, "step": 1})
    assert (refused.status_code, refused.json()["error"]["type"]) == (404, "PathUnknown")


@pytest.mark.usefixtures("engine")
async def test_a_batch_is_whole_over_all_processes(pair: Together) -> None:
    opened = await pair.clients[1].post("/v1/batches", json={"step": 3, "groups": 2, "groupSize": 2})
    assert opened.status_code == 200
    names = [name_at(home, 2, f"{group}-") for group in ("g", "h") for home in (0, 1)]
    for name in names:
        tokens(await turn(pair.clients[0], name, [1, 2], 3, headers={"X-Pearl-Group": name[0]}))
    stats = (await pair.clients[1].get("/v1/stats")).json()
    assert stats["batch"]["started"] == 4
    assert len(stats["unfinished"]) == 4
    for name in names[:3]:
        finish = {"trajectory": name, "reward": 1.0}
        progress = (await pair.clients[1].post("/v1/batches/3/finish", json=finish)).json()
    assert (progress["finished"], progress["completeGroups"]) == (3, 1)
    aborted = await pair.clients[0].post("/v1/batches/3/abort", json={"trajectory": names[3], "cause": "x"})
    assert aborted.json()["aborted"] == 1
    consume = pair.clients[1].post("/v1/batches/3/consume", headers={"Idempotency-Key": "k"})
    again = pair.clients[0].post("/v1/batches/3/consume", headers={"Idempotency-Key": "k"})
    for response in (await consume, await again):
        assert [one["trajectory"] for one in response.json()] == names[:3]
        assert all(one["reward"] == 1.0 for one in response.json())
    assert (await pair.clients[0].post("/v1/batches/3/consume")).json() == []
    stats = (await pair.clients[0].get("/v1/stats")).json()
    assert stats["agesAtConsumption"] == {"0": 9}
    assert stats["counters"]["trajectoriesFinished"] == 3
    assert stats["counters"]["trajectoriesAborted"] == 1
    assert stats["profile"]["turns"] == 4
    assert stats["profile"]["trajectories"] == 3


@pytest.mark.usefixtures("engine")
async def test_consumers_at_once_get_every_trajectory_once(pair: Together, monkeypatch: pytest.MonkeyPatch) -> None:
    await pair.clients[0].post("/v1/batches", json={"step": 1, "groups": 4, "groupSize": 1})
    names = sorted([T0, T1, "t100", "t101"])
    for name in names:
        tokens(await turn(pair.clients[0], name, [1], 2))
        await pair.clients[0].post("/v1/batches/1/finish", json={"trajectory": name})
    call = pair.peers[0].call

    async def slow(*args: Any, **more: Any) -> bytes:
        await asyncio.sleep(0.2)
        return await call(*args, **more)

    monkeypatch.setattr(pair.peers[0], "call", slow)
    asked = [client.post("/v1/batches/1/consume") for client in pair.clients.values()]
    found = [one["trajectory"] for response in await asyncio.gather(*asked) for one in response.json()]
    assert sorted(found) == names


@pytest.mark.usefixtures("engine")
async def test_decisions_are_known_everywhere_when_they_are_answered(pair: Together) -> None:
    await pair.clients[0].post("/v1/batches", json={"step": 7, "groups": 1, "groupSize": 2, "minVersion": 0})
    member = pair.gateway(1)
    assert member.current_step() == 7
    granted = await pair.clients[1].post("/v1/permits", json={"group": "g", "size": 1})
    assert granted.json()["granted"]
    assert member._books.is_admitted("g")
    tokens(await turn(pair.clients[0], T1, [1], 2, headers={"X-Pearl-Group": "g"}))
    await pair.clients[0].post("/v1/batches/7/finish", json={"trajectory": T1, "group": "g"})
    # The permit is free again in the owner at once, and in the others soon.
    assert not pair.gateway(0).permits.is_admitted("g")
    await until(lambda: not member._books.is_admitted("g"))
    await pair.clients[0].post("/v1/batches/7/close")
    assert member.current_step() is None


async def test_idle_trajectories_of_other_processes_give_their_permit_back(tmp_path: Path) -> None:
    async with together(2, tmp_path) as pair:
        await pair.clients[0].post("/v1/permits", json={"group": "g", "size": 1})
        pair.gateway(1)._books.ended("x", "g")
        await until(lambda: not pair.gateway(0).permits.is_admitted("g"))


async def test_a_flip_is_acknowledged_when_the_last_process_has(pair: Together, engine: FakeEngine) -> None:
    async def acked() -> list[int]:
        stats = (await pair.clients[1].get("/v1/stats")).json()
        return [one["ackedEpoch"] for one in stats["workers"]]

    assert await acked() == [0]
    pair.see(facts(engine, epoch=1, role=Role.DECODE), [0])
    assert await acked() == [0]
    pair.see(facts(engine, epoch=1, role=Role.DECODE), [1])
    assert await acked() == [1]
    pair.gateway(1).fleet.remove(engine.name)
    assert await acked() == []


@pytest.mark.parametrize(("busy", "other"), [(T1, T0), (T0, T1)])
async def test_load_of_one_process_is_seen_by_the_others(
    pair: Together, engine: FakeEngine, engines: Callable[..., Any], busy: str, other: str
) -> None:
    engine.stall_after = 1
    running = asyncio.ensure_future(turn(pair.clients[1], busy, [1], 4))
    elsewhere = pair.gateway(int(other == T1)).fleet
    await until(lambda: elsewhere.elsewhere.load(engine.name).in_flight == 1)
    idle = await engines()
    pair.see(facts(idle))
    tokens(await turn(pair.clients[0], other, [1], 2))
    assert len(idle.requests) == 1
    stats = (await pair.clients[0].get("/v1/stats")).json()
    assert {one["uid"]: one["inFlight"] for one in stats["workers"]} == {engine.name: 1, idle.name: 0}
    assert stats["live"]["decoding"] == 1
    engine.release.set()
    await running


async def test_groups_prompt_is_computed_once_over_all_processes(
    pair: Together, engine: FakeEngine, engines: Callable[..., Any]
) -> None:
    other = await engines()
    pair.see(facts(other))
    engine.stall_after = other.stall_after = 0
    group = {"X-Pearl-Group": "g"}
    both = [asyncio.ensure_future(turn(pair.clients[0], name, [1, 2], 3, headers=group)) for name in (T1, T0)]
    await until(lambda: len(engine.requests) + len(other.requests) == 1)
    await asyncio.sleep(0.2)
    assert len(engine.requests) + len(other.requests) == 1
    first = engine if engine.requests else other
    first.release.set()
    for response in await asyncio.gather(*both):
        tokens(response)
    # The second one follows its sibling to the worker that has the prompt.
    assert len(first.requests) == 2


@pytest.mark.usefixtures("engine")
async def test_a_process_that_is_away_is_told_and_the_rest_goes_on(pair: Together) -> None:
    tokens(await turn(pair.clients[0], T1, [1], 2))
    await pair.stop(1)
    client = pair.clients[0]
    for response in (await turn(client, T1, [1], 2), await client.get("/v1/stats")):
        assert (response.status_code, response.json()["error"]["type"]) == (503, "ProcessAway")
        assert response.headers["retry-after"] == "1"
    assert (await client.get("/ready")).status_code == 503
    text = (await client.get("/metrics")).text
    assert 'pearl_gateway_processes{rollout="r",state="away"} 1.0' in text
    assert 'pearl_gateway_turns_total{rollout="r"} 1.0' in text
    tokens(await turn(client, T0, [1], 2))


@pytest.mark.usefixtures("engine")
async def test_what_a_process_had_is_there_when_it_is_back(
    pair: Together, continuation: Callable[..., list[int]]
) -> None:
    await pair.clients[0].post("/v1/batches", json={"step": 1, "groups": 2, "groupSize": 1})
    first = tokens(await turn(pair.clients[0], T1, [1], 2))
    before = (await pair.clients[0].get("/v1/stats")).json()
    await pair.stop(1)
    refused = await pair.clients[0].post("/v1/batches/1/finish", json={"trajectory": T1})
    assert refused.status_code == 503
    await pair.start(1)
    prompt = [1, *first, 5]
    assert tokens(await turn(pair.clients[0], T1, prompt, 2)) == continuation(prompt, 2)
    stats = (await pair.clients[1].get("/v1/stats")).json()
    assert stats["counters"]["turns"] == before["counters"]["turns"] + 1
    assert stats["batch"]["started"] == 1
    progress = await pair.clients[0].post("/v1/batches/1/finish", json={"trajectory": T1})
    assert progress.json()["finished"] == 1


@pytest.mark.usefixtures("engine")
async def test_an_end_whose_answer_was_lost_is_found_in_the_export(pair: Together) -> None:
    await pair.clients[0].post("/v1/batches", json={"step": 1, "groups": 1, "groupSize": 1})
    tokens(await turn(pair.clients[0], T1, [1], 2, headers={"X-Pearl-Group": "g"}))
    await pair.peers[0].call(1, "POST", "/_/end", End(trajectory=T1, step=1, reward=2.0))
    await pair.stop(1)
    await pair.start(1)
    await pair.clients[0].post("/v1/batches/1/finish", json={"trajectory": T1, "reward": 2.0})
    assert pair.gateway(0).batches.get(1).finished == {T1: Finished("g", 0)}
    assert (await pair.clients[0].post("/v1/batches/1/consume")).json()[0]["reward"] == 2.0


@pytest.mark.usefixtures("engine")
async def test_the_owner_comes_back_to_its_batches_and_totals(pair: Together) -> None:
    await pair.clients[0].post("/v1/batches", json={"step": 1, "groups": 2, "groupSize": 1})
    for name in (T0, T1):
        tokens(await turn(pair.clients[0], name, [1], 2))
    assert (await pair.clients[0].get("/v1/stats")).json()["counters"]["turns"] == 2
    member: Any = pair.parts[1].leave
    await until(lambda: sums(member.__self__._ledger).get("turns") == 2)
    await pair.stop(0)
    away = await pair.clients[1].get("/v1/stats")
    assert (away.status_code, away.json()["error"]["type"]) == (503, "ProcessAway")
    tokens(await turn(pair.clients[1], T1, [1, 9], 2))
    await pair.start(0)
    await until(lambda: pair.gateway(0).fleet.elsewhere.served == 0)
    # What only process 1 could tell it knows before anybody asks.
    owner: Any = pair.parts[0].settle
    await until(lambda: sums(owner.__self__.ledger()).get("turns") == 3)
    await pair.stop(1)
    await pair.start(1)
    stats = (await pair.clients[1].get("/v1/stats")).json()
    assert stats["counters"]["turns"] == 3
    assert stats["batch"]["started"] == 2
    assert stats["counters"]["generatedTokens"] == 6


async def test_a_pause_holds_in_all_processes_and_in_one_that_starts_again(pair: Together, engine: FakeEngine) -> None:
    assert (await pair.clients[1].post("/pause_generation", json={"mode": "retract"})).status_code == 200
    await pair.stop(1)
    await pair.start(1)
    pair.see(facts(engine))
    body = {"input_ids": [1], "sampling_params": {"max_new_tokens": 2}, "rid": "a"}
    held = [
        asyncio.ensure_future(pair.clients[0].post("/generate", json=body, headers={"X-SMG-Routing-Key": name}))
        for name in (T0, T1)
    ]
    await asyncio.sleep(0.2)
    assert not engine.requests
    loads = (await pair.clients[1].get("/v1/loads")).json()
    assert loads["aggregate"]["num_running_reqs"] == 2
    await pair.clients[1].post("/continue_generation", json={})
    for response in await asyncio.gather(*held):
        assert response.status_code == 200, response.text


async def test_an_abort_reaches_requests_of_all_processes(pair: Together, engine: FakeEngine) -> None:
    engine.stall_after = 1
    body = {"input_ids": [1], "sampling_params": {"max_new_tokens": 5}}
    running = [
        asyncio.ensure_future(pair.clients[0].post("/generate", json=body, headers={"X-SMG-Routing-Key": name}))
        for name in (T0, T1)
    ]
    await until(lambda: len(engine.requests) == 2)
    said = (await pair.clients[1].post("/abort_request", json={"abort_all": True})).json()
    assert said["message"] == "2 requests aborted"
    for response in await asyncio.gather(*running):
        assert response.json()["meta_info"]["finish_reason"]["type"] == "abort"


@pytest.mark.usefixtures("engine")
async def test_metrics_and_readiness_are_of_all(pair: Together) -> None:
    for name in (T0, T1):
        tokens(await turn(pair.clients[0], name, [1], 2))
    async with httpx.AsyncClient(base_url=pair.urls[1]) as anybody:
        text = (await anybody.get("/metrics")).text
        assert (await anybody.get("/health")).status_code == 200
        assert (await anybody.get("/ready")).status_code == 200
        pair.gateway(1).membership_known = False
        assert (await anybody.get("/ready")).status_code == 503
    assert 'pearl_gateway_turns_total{rollout="r"} 2.0' in text
    assert 'pearl_gateway_processes{rollout="r",state="up"} 2.0' in text


async def test_weights_change_all_at_once_over_all_processes(tmp_path: Path, engines: Callable[..., Any]) -> None:
    """No process begins on new weights while another may use old ones, or has a turn on them."""
    agent = "http://127.0.0.1:9"
    async with together(2, tmp_path, max_staleness=0) as pair:
        old, new = await engines(version=1, stall_after=1), await engines(version=2)
        for one in (old, new):
            pair.see(replace(facts(one), agent_url=agent))

        def learn(process: int, **loaded: int) -> None:
            fleet = pair.gateway(process).fleet
            for uid, version in loaded.items():
                fleet.workers[uid].weight_version = version
                fleet.workers[uid].wanted_version = max(loaded.values())
            fleet.notify()

        for process in (0, 1):
            learn(process, a=1, b=1)
        running = asyncio.ensure_future(turn(pair.clients[1], T1, [1], 2))
        await until(lambda: len(old.requests) + len(new.requests) == 1)
        if new.requests:  # the guard of `b` refused: its weights are newer than the gateway knows
            await until(lambda: len(old.requests) == 1)
        asked = len(new.requests)
        learn(0, a=1, b=2)
        waiting = asyncio.ensure_future(turn(pair.clients[0], T0, [1], 2))
        await asyncio.sleep(0.6)
        # Process 1 knows of no newer weights: it could begin another turn on the old ones.
        assert len(new.requests) == asked
        learn(1, a=1, b=2)
        await asyncio.sleep(0.6)
        # It knows, and still has a turn on them.
        assert len(new.requests) == asked
        old.release.set()
        tokens(await running)
        tokens(await waiting)
        assert len(new.requests) == asked + 1


async def test_health_names_who_is_away_and_fails_when_that_lasts(pair: Together) -> None:
    assert (await pair.clients[1].get("/health")).text == "ok\n"
    await pair.stop(0)
    answer = await pair.clients[1].get("/health")
    assert (answer.status_code, answer.text) == (200, "ok, without processes 0\n")
    pair.gateway(1).clock = lambda: time.monotonic() + 61.0
    answer = await pair.clients[1].get("/health")
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "ProcessAway")
    await pair.start(0)
    assert (await pair.clients[1].get("/health")).status_code == 200


@pytest.mark.usefixtures("engine")
async def test_a_finished_trajectory_waits_until_it_is_handed_out_also_over_a_restart(pair: Together) -> None:
    """Its export may not be dropped before: see `Storage.needed`."""
    await pair.clients[0].post("/v1/batches", json={"step": 1, "groups": 2, "groupSize": 1})
    tokens(await turn(pair.clients[0], T1, [1], 2))
    await pair.clients[0].post("/v1/batches/1/finish", json={"trajectory": T1})
    assert pair.gateway(1)._books.waits_for(T1)
    await pair.stop(1)
    await pair.start(1)
    assert pair.gateway(1)._books.waits_for(T1)
    assert pair.gateway(1).storage.needed(T1)
    assert len((await pair.clients[0].post("/v1/batches/1/consume")).json()) == 1
    assert not pair.gateway(1)._books.waits_for(T1)
    second = name_at(1, 2, "u")
    tokens(await turn(pair.clients[0], second, [1], 2))
    await pair.clients[0].post("/v1/batches/1/finish", json={"trajectory": second})
    assert pair.gateway(1)._books.waits_for(second)
    await pair.clients[0].post("/v1/batches/1/close")
    assert not pair.gateway(1)._books.waits_for(second)
