"""Whatever is sent to any path: no 500, no hang, nothing left behind, and errors that OpenAI clients can read.

Requests are made from the gateway's OpenAPI document, then spoilt: fields of another kind, missing, out of bounds.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from gateway_fuzz import BATCH, SECONDS, fuzzed, fuzzing, requests
from hypothesis import HealthCheck, given, settings
from several_processes import together

from pearl_api.names import Activity, Role
from pearl_gateway.fleet import WorkerFacts
from pearl_gateway.processes.homes import home_of
from pearl_simulator.emulator import EngineConfig, emulated_fleet

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    import httpx
    from several_processes import Together

    from conftest import Bench

    Benches = Callable[..., AbstractAsyncContextManager[Bench]]


def check_answer(answer: httpx.Response) -> None:
    """It is a success, or an error that says what is wrong."""
    if answer.status_code < 400:
        return
    error = answer.json()["error"]
    assert answer.status_code != 500, error
    assert error["code"] == answer.status_code
    assert len(error["message"]) > 8, error
    assert error["type"]
    if answer.status_code == 503:
        assert "retry-after" in answer.headers


async def ask(bench: Bench, request: dict[str, Any]) -> None:
    """One request, and what must hold after it."""
    async with asyncio.timeout(SECONDS):
        answer = await bench.client.request(**request)
    check_answer(answer)
    gateway = bench.gateway
    assert gateway.tally.turns_in_flight == 0
    assert [worker.in_flight for worker in gateway.fleet.workers.values()] == [0, 0]
    assert not [one.id for one in gateway.sessions.live.values() if one.ephemeral or (not one.turns and not one.ids)]
    assert not [worker.facts.pod for worker in gateway.fleet.workers.values() if worker.ejected]


def run_fuzz(benches: Benches, examples: int) -> None:
    loop = asyncio.new_event_loop()
    frame = fuzzed(benches)
    bench, _ = loop.run_until_complete(frame.__aenter__())
    tasks = len(asyncio.all_tasks(loop))

    @fuzzing(examples, shrink=True)
    @given(requests())
    def fuzz(request: dict[str, Any]) -> None:
        loop.run_until_complete(ask(bench, request))

    async def left_over() -> None:
        await bench.until(lambda: len(asyncio.all_tasks(loop)) <= tasks + 1)
        bench.gateway.expire()
        assert bench.gateway.sessions.live == {}
        assert bench.gateway.permits.in_flight() == 0
        assert bench.gateway.tally.lost_turns == 0

    try:
        fuzz()
        loop.run_until_complete(left_over())
    finally:
        loop.run_until_complete(frame.__aexit__(None, None, None))
        loop.close()


def test_no_request_breaks_the_gateway_or_leaves_anything_behind(benches: Benches) -> None:
    run_fuzz(benches, 150)


@pytest.mark.slow
def test_no_request_of_many_breaks_the_gateway_or_leaves_anything_behind(benches: Benches) -> None:
    run_fuzz(benches, 3_000)


def test_no_request_breaks_several_processes_or_leaves_anything_behind(tmp_path: Path) -> None:
    loop = asyncio.new_event_loop()
    frame = several(tmp_path)
    processes = loop.run_until_complete(frame.__aenter__())
    clients = itertools.cycle(processes.clients.values())

    async def ask_one(request: dict[str, Any]) -> None:
        async with asyncio.timeout(SECONDS):
            check_answer(await next(clients).request(**request))

    @settings(max_examples=150, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(requests())
    def fuzz(request: dict[str, Any]) -> None:
        loop.run_until_complete(ask_one(request))

    try:
        fuzz()
        tallies = [processes.gateway(at).tally for at in processes.parts]
        assert [(one.turns_in_flight, one.lost_turns) for one in tallies] == [(0, 0), (0, 0)]
        for at in processes.parts:
            assert all(home_of(name, 2) == at for name in processes.gateway(at).sessions.live)
    finally:
        loop.run_until_complete(frame.__aexit__(None, None, None))
        loop.close()


@asynccontextmanager
async def several(storage: Path) -> AsyncIterator[Together]:
    """Two processes before two emulated engines, with an open batch."""
    async with emulated_fleet(EngineConfig(), 2) as engines, together(2, storage) as processes:
        for name, engine in zip("ab", engines, strict=True):
            processes.see(WorkerFacts(name, name, engine.url, None, Role.COLOCATED, 0, Activity.ACTIVE, ready=True))
        await processes.clients[0].post("/v1/batches", json={"step": BATCH, "groups": 2, "groupSize": 2})
        yield processes
