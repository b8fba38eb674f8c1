"""No token is made by weights that are older than allowed, nor by two versions at a time where that is forbidden."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from pearl_api.names import Role
from pearl_gateway.cluster import apply_rollout
from pearl_gateway.gateway import Routing
from pearl_gateway.versions import Accepted, Loaded, Staleness, accepted

if TYPE_CHECKING:
    from conftest import Bench, FakeEngine

AGENT = "http://127.0.0.1:9"
"""Nothing listens there: what the poller would learn is set by the tests."""
ROLLING, STRICT, TOGETHER = (
    Staleness(1, all_at_once=False),
    Staleness(0, all_at_once=True),
    Staleness(2, all_at_once=True),
)


def loaded(*workers: tuple[int | None, bool]) -> list[Loaded]:
    return [Loaded(version, busy) for version, busy in workers]


@pytest.mark.parametrize(
    ("workers", "newest", "rule", "least", "expected"),
    [
        ([(3, True)], None, ROLLING, None, Accepted()),  # nobody tells what is published
        ([(3, True)], None, STRICT, 2, Accepted(2)),
        ([(3, True), (5, False)], 5, ROLLING, None, Accepted(4)),
        ([(3, True), (5, False)], 5, ROLLING, 5, Accepted(5)),
        ([(0, True)], 1, ROLLING, None, Accepted()),
        ([(4, False), (5, False)], 5, STRICT, None, Accepted(5, 5)),
        ([(4, True), (5, False)], 5, STRICT, None, None),  # turns on 4 must end first
        ([(4, False), (4, True)], 5, STRICT, None, None),
        ([(None, True), (5, False)], 5, STRICT, None, Accepted(5, 5)),
        ([(5, True), (5, False)], 5, STRICT, None, Accepted(5, 5)),
        ([(0, False)], 0, STRICT, None, Accepted(0, 0)),
        # The newest version is not loaded anywhere: all go on together with what they have, as far as allowed.
        ([(4, True), (4, False)], 5, TOGETHER, None, Accepted(4, 4)),
        ([(2, False)], 5, TOGETHER, None, Accepted(3, 3)),
        ([(4, True), (5, False)], 5, TOGETHER, None, None),
    ],
)
def test_which_weights_a_turn_accepts(
    workers: Any, newest: int | None, rule: Staleness, least: int | None, expected: Accepted | None
) -> None:
    assert accepted(loaded(*workers), newest, rule, least) == expected


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({"maxStaleness": 0}, STRICT),
        ({"maxStaleness": 1}, ROLLING),
        ({"maxStaleness": 2, "rollout": "AllAtOnce"}, TOGETHER),
        ({"maxStaleness": 1, "rollout": "Rolling"}, ROLLING),
    ],
)
def test_the_rule_is_the_rollouts(weights: dict[str, Any], expected: Staleness) -> None:
    routing = Routing(64, None, 1)
    apply_rollout({"spec": {"weights": weights}}, routing)
    assert routing.staleness() == expected


async def worker(bench: Bench, role: Role = Role.COLOCATED, **switches: Any) -> FakeEngine:
    """A worker whose agent told the version that the engine has."""
    engine = await bench.engine(role, **switches)
    bench.place(engine, role, agent=AGENT)
    known = bench.gateway.fleet.workers[engine.name]
    known.weight_version = known.wanted_version = engine.version
    return engine


def publish(bench: Bench, version: int) -> None:
    for one in bench.gateway.fleet.workers.values():
        one.wanted_version = version


async def test_a_turn_never_goes_to_a_worker_older_than_allowed(bench: Bench) -> None:
    old = await worker(bench, version=1)
    young = await worker(bench, version=3)
    for number in range(6):
        answer = bench.tokens(await bench.generate([number], 3, f"t{number}"))
        assert answer == bench.continuation([number], 3, version=3)
    assert (len(old.requests), len(young.requests)) == (0, 6)


async def test_a_worker_that_told_nothing_yet_gets_no_turn_while_others_might_be_too_old(bench: Bench) -> None:
    silent = await worker(bench)
    bench.gateway.fleet.workers["a"].weight_version = None
    await worker(bench, version=3)
    bench.tokens(await bench.generate([1], 3))
    assert silent.requests == []


async def test_weights_that_are_older_than_believed_answer_nothing(bench: Bench) -> None:
    restarted = await worker(bench, version=3)
    restarted.version = 0  # its engine came back, and nobody heard of it yet
    task = asyncio.create_task(bench.generate([7], 3))
    await bench.until(lambda: restarted.unwanted > 0)
    restarted.version = 3
    assert bench.tokens(await task) == bench.continuation([7], 3, version=3)
    assert (await bench.export("t1"))["versions"] == [None, 3, 3, 3]


async def test_without_staleness_no_version_is_served_while_an_older_one_still_is(bench: Bench) -> None:
    bench.gateway.routing.max_staleness = 0
    slow = await worker(bench, version=1, stall_after=2)
    first = asyncio.create_task(bench.generate([1], 4, "t1"))
    await bench.until(lambda: bench.received("t1") == 2)
    fast = await worker(bench, version=2)
    publish(bench, 2)
    second = asyncio.create_task(bench.generate([2], 4, "t2"))
    await asyncio.sleep(0.4)
    assert fast.requests == []
    slow.stall_after = None
    slow.release.set()
    assert bench.tokens(await first) == bench.continuation([1], 4, version=1)
    assert bench.tokens(await second) == bench.continuation([2], 4, version=2)
    assert (len(slow.requests), len(fast.requests)) == (1, 1)


async def test_without_staleness_a_worker_that_is_ahead_answers_nothing_until_the_others_are_done(bench: Bench) -> None:
    bench.gateway.routing.max_staleness = 0
    slow = await worker(bench, version=1, stall_after=2)
    first = asyncio.create_task(bench.generate([1], 4, "t1"))
    await bench.until(lambda: bench.received("t1") == 2)
    ahead = await worker(bench, version=1)
    ahead.version = 2  # loaded already, and the gateway believes 1
    second = asyncio.create_task(bench.generate([2], 4, "t2"))
    await bench.until(lambda: ahead.unwanted == 1)
    await asyncio.sleep(0.3)
    assert (ahead.unwanted, second.done()) == (1, False)  # now it knows
    slow.stall_after = None
    slow.release.set()
    bench.tokens(await first)
    assert bench.tokens(await second) == bench.continuation([2], 4, version=2)


async def test_nobody_with_young_enough_weights_is_a_retryable_error_that_says_so(bench: Bench) -> None:
    bench.gateway.routing.max_staleness = 0
    bench.gateway.runner._places._queue_seconds = 0.2
    await worker(bench, version=1)
    publish(bench, 2)
    response = await bench.generate([1], 2)
    assert response.status_code == 503
    assert "no worker had weights 2 or newer within 0 s" in response.text


async def test_kv_of_other_weights_is_refused_by_the_engine_itself(bench: Bench) -> None:
    await worker(bench, Role.PREFILL)
    decode = await worker(bench, Role.DECODE)
    decode.version = 1
    answer = bench.tokens(await bench.generate([1, 2, 3, 4, 5], 3))
    assert answer == bench.continuation([1, 2, 3, 4, 5], 3, version=1)
    assert (decode.fetched, decode.unwanted) == (0, 1)
    assert (await bench.stats())["counters"]["wastedTokens"] == 0


async def test_where_kv_survives_updates_nobody_else_finds_it_under_newer_weights(bench: Bench) -> None:
    bench.gateway.routing.on_update = "KeepKV"
    engine = await worker(bench, version=1)
    first = bench.tokens(await bench.generate([5], 2, "t1"))
    engine.version = 2
    bench.gateway.fleet.workers["a"].weight_version = 2
    bench.tokens(await bench.generate([5, *first, 6], 2, "t1"))
    bench.tokens(await bench.generate([5], 2, "t2", cache_salt="mine"))
    salts = [request["cache_salt"] for request in engine.requests]
    assert salts == ["weights-1", "weights-1", "mine-weights-2"]  # vLLM refuses '/' and '@'
    bench.tokens(await bench.generate([5], 2, "t3", cache_salt=120 * "s"))
    assert len(engine.requests[-1]["cache_salt"]) <= 128


async def test_tokens_of_a_worker_that_died_have_the_version_that_it_said_and_not_the_one_it_was_believed_to_have(
    bench: Bench,
) -> None:
    await worker(bench, version=9, stop_after=3, tells=True)
    bench.engines[0].version = 10  # loaded a moment ago, and nobody heard of it yet
    bench.gateway.routing.max_staleness = 1
    task = asyncio.create_task(bench.generate([5], 6))
    await bench.until(lambda: bench.engines[0].runner is None)
    await worker(bench, version=10)
    answer = bench.tokens(await task)
    assert answer == bench.continuation([5], 6, version=10)
    assert (await bench.export("t1"))["versions"] == [None, 10, 10, 10, 10, 10, 10]


async def test_where_calls_outlive_updates_tokens_of_a_worker_that_died_have_no_version(bench: Bench) -> None:
    bench.gateway.routing.on_update = "KeepKV"
    await worker(bench, version=1, stop_after=2, tells=True)
    await worker(bench, version=1)
    bench.tokens(await bench.generate([5], 4))
    assert (await bench.export("t1"))["versions"] == [None, None, None, 1, 1]


async def test_where_kv_survives_updates_a_new_trajectory_is_not_begun_with_weights_that_are_newer_than_believed(
    bench: Bench,
) -> None:
    bench.gateway.routing.on_update = "KeepKV"
    engine = await worker(bench, version=1)
    engine.version = 2  # and still holds KV of version 1 under the salt of version 1
    assert bench.tokens(await bench.generate([5], 2)) == bench.continuation([5], 2, version=2)
    assert (engine.unwanted, engine.requests[-1]["cache_salt"]) == (1, "weights-2")


@pytest.mark.parametrize(("on_update", "prefill_worker", "failures"), [("Recompute", None, 1), ("KeepKV", "pod-a", 0)])
async def test_kv_that_is_fetched_while_the_weights_change_is_used_only_where_kv_survives_updates(
    bench: Bench, on_update: str, prefill_worker: str | None, failures: int
) -> None:
    bench.gateway.routing.on_update = on_update
    await worker(bench, Role.PREFILL, version=1)
    await worker(bench, Role.DECODE, version=1, version_after_fetch=2)
    bench.gateway.fleet.workers["a"].weight_version = bench.gateway.fleet.workers["b"].weight_version = 1
    prompt = [5, 6, 7, 8, 9]
    assert bench.tokens(await bench.generate(prompt, 2)) == bench.continuation(prompt, 2, version=2)
    (segment,) = (await bench.export("t1"))["segments"]
    assert (segment["prefillWorker"], segment["version"]) == (prefill_worker, 2)
    tally = bench.gateway.tally
    assert (tally.handoff_failures, tally.mixed_versions) == (failures, failures)
