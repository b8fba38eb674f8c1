"""Whatever clients send over their sockets, and whenever they leave: afterwards everything is as before.

Tasks, open files, connections, sessions, places, permits, and what the engines run.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from gateway_fuzz import SECONDS, fuzzed, fuzzing, requests
from hypothesis import given
from hypothesis import strategies as st

from pearl_simulator.emulator import EngineConfig

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from conftest import Bench
    from pearl_simulator.emulator import EmulatedEngine

    Benches = Callable[..., AbstractAsyncContextManager[Bench]]

AT_ONCE = 6
ENDINGS = ("read", "read", "leave before the body", "leave at once", "leave in mid-answer", "reset in mid-answer")
TURNS: dict[str, dict[str, Any]] = {
    "/inference/v1/generate": {"token_ids": [1, 2], "sampling_params": {"max_tokens": 60}},
    "/v1/completions": {"prompt": "hello", "max_tokens": 60},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 60},
}


@st.composite
def turns(draw: st.DrawFn) -> dict[str, Any]:
    """One turn that lasts a while: alone, of a trajectory, or several at once."""
    path = draw(st.sampled_from(sorted(TURNS)))
    body = {**TURNS[path], "stream": draw(st.booleans())}
    if path != "/inference/v1/generate" and draw(st.booleans()):
        body["n"] = 3
    name = draw(st.sampled_from([None, "t1", "t2"]))
    headers = {} if name is None else {"X-Pearl-Trajectory": name, "X-Pearl-Group": "g1"}
    return {"method": "POST", "url": path, "content": json.dumps(body).encode(), "headers": headers}


def raw(request: dict[str, Any]) -> tuple[bytes, bytes]:
    lines = [f"{request['method']} {request['url']} HTTP/1.1", "Host: x", "Authorization: Bearer secret"]
    lines += [f"{name}: {value}" for name, value in request["headers"].items()]
    lines += [f"Content-Length: {len(request['content'])}", "Connection: close"]
    return "\r\n".join([*lines, "", ""]).encode(), request["content"]


async def play(url: str, request: dict[str, Any], ending: str) -> None:
    """One client. Whatever it sends, it is answered within the time, and by no 500."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head, body = raw(request)
    try:
        async with asyncio.timeout(SECONDS):
            writer.write(head)
            if ending == "leave before the body":
                return
            writer.write(body)
            if ending == "leave at once":
                return
            begun = await reader.read(1 if ending == "read" else 400)
            if ending != "read":
                return
            answer = begun + await reader.read()
            assert answer.startswith(b"HTTP/1.1 "), answer[:200]
            assert not answer.startswith(b"HTTP/1.1 500"), answer[:2000]
    finally:
        if ending.startswith("reset"):
            writer.transport.abort()
        writer.close()


def held(bench: Bench) -> dict[str, int]:
    """What must not grow."""
    gateway, server = bench.gateway, bench.server
    assert server is not None
    runner = gateway.sessions._runner
    workers = gateway.fleet.workers.values()
    return {
        "tasks": len(asyncio.all_tasks()),
        "files": len(list(Path("/proc/self/fd").iterdir())),
        "connections": len(server.server_state.connections),
        "requests": len(server.server_state.tasks),
        "listeners": len(gateway.fleet.listeners),
        "turns": gateway.tally.turns_in_flight + gateway.tally.turns_queued,
        "places": sum(worker.in_flight + worker.reserved + worker.reserved_tokens for worker in workers),
        "prefill tokens": sum(worker.prefill_tokens for worker in workers),
        "waiting": len(runner._places._waiting._queues) + len(runner._places._waiting._running),
        "permits": len(gateway.permits._queue) + gateway.permits.in_flight(),
        "sessions": len(gateway.sessions.live),
        "lost": gateway.tally.lost_turns,
    }


def run_on(engines: list[EmulatedEngine]) -> float:
    """Requests that the engines run or hold back, and KV that they keep for somebody."""
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    return sum(one.engine.metrics.value(name) for one in engines for name in names)


async def all_over(bench: Bench, engines: list[EmulatedEngine], before: dict[str, int]) -> None:
    def owned() -> bool:
        gateway = bench.gateway
        ownerless = [one for one in gateway.sessions.live.values() if one.ephemeral or (not one.turns and not one.ids)]
        return not gateway.tally.turns_in_flight and not ownerless

    def over() -> bool:
        bench.gateway.expire()
        now = held(bench)
        return all(now[name] <= before[name] for name in before) and run_on(engines) == 0

    # Before anything is forgotten because it is old.
    await bench.until(owned)
    try:
        await bench.until(over)
    except TimeoutError:
        now = held(bench)
        grown = {name: (before[name], now[name]) for name in before if now[name] > before[name]}
        raise AssertionError(f"left over: {grown}, in engines {run_on(engines)}") from None


def run_fuzz(benches: Benches, examples: int) -> None:
    async def warm(url: str) -> None:
        # As many connections to the engines as there will be.
        await asyncio.gather(*(play(url, simple(), "read") for _ in range(AT_ONCE)))

    def simple() -> dict[str, Any]:
        body = {"prompt": "a", "max_tokens": 5}
        return {"method": "POST", "url": "/v1/completions", "content": json.dumps(body).encode(), "headers": {}}

    async def together(url: str, clients: list[tuple[dict[str, Any], str]]) -> None:
        await asyncio.gather(*(play(url, request, ending) for request, ending in clients))

    clients = st.tuples(turns() | requests(), st.sampled_from(ENDINGS))
    loop = asyncio.new_event_loop()
    frame = fuzzed(benches, EngineConfig.of_table("tiny/cpu"))
    bench, engines = loop.run_until_complete(frame.__aenter__())
    port = bench.served()
    url = loop.run_until_complete(port.__aenter__())
    loop.run_until_complete(warm(url))
    before = loop.run_until_complete(_held_at_rest(bench, engines))

    @fuzzing(examples, shrink=False)
    @given(st.lists(clients, min_size=1, max_size=AT_ONCE))
    def fuzz(clients: list[tuple[dict[str, Any], str]]) -> None:
        loop.run_until_complete(together(url, clients))

    try:
        fuzz()
        loop.run_until_complete(all_over(bench, engines, before))
    finally:
        loop.run_until_complete(port.__aexit__(None, None, None))
        loop.run_until_complete(frame.__aexit__(None, None, None))
        loop.close()


async def _held_at_rest(bench: Bench, engines: list[EmulatedEngine]) -> dict[str, int]:
    nothing = dict.fromkeys(("turns", "places", "waiting", "permits", "sessions", "connections", "requests"), 0)
    await all_over(bench, engines, nothing)
    return held(bench)


def test_clients_of_any_kind_leave_nothing_behind(benches: Benches) -> None:
    run_fuzz(benches, 40)


@pytest.mark.slow
def test_many_clients_of_any_kind_leave_nothing_behind(benches: Benches) -> None:
    run_fuzz(benches, 1_500)
