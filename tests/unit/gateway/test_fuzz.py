"""Whatever is sent to any path: no 500, no hang, nothing left behind, and errors that OpenAI clients can read.

Requests are made from the gateway's OpenAPI document, then spoilt: fields of another kind, missing, out of bounds.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest
from gateway_fuzz import SECONDS, fuzzed, requests
from hypothesis import HealthCheck, Phase, given, settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    import httpx

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

    @settings(
        max_examples=examples,
        derandomize="PEARL_FUZZ_RANDOM" not in os.environ,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
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
