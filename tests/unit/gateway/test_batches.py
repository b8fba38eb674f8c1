"""What a batch is, who may start, what survives a restart."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pearl_api.wire.gateway import FinishTrajectory, OpenBatch
from pearl_gateway.batches import Batches
from pearl_gateway.consumer import Consumer
from pearl_gateway.errors import GatewayError
from pearl_gateway.storage import Storage

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from conftest import Bench


async def post(bench: Bench, path: str, body: dict[str, Any] | None = None) -> Any:
    response = await bench.client.post(path, json=body or {})
    assert response.status_code == 200, response.text
    return response.json()


async def test_batch_counts_complete_groups_and_gives_its_trajectories_once(bench: Bench) -> None:
    await bench.engine()
    await post(bench, "/v1/batches", {"step": 4, "groups": 2, "groupSize": 2, "needGroups": 1})
    for name in ("t1", "t2", "t3"):
        group = "g1" if name != "t3" else "g2"
        await bench.generate([1, 2], 2, trajectory=name, headers={"X-Pearl-Group": group})
    await post(bench, "/v1/batches/4/finish", {"trajectory": "t1", "reward": 0.5})
    progress = await post(bench, "/v1/batches/4/finish", {"trajectory": "t2", "reward": 1.0})
    assert (progress["started"], progress["finished"], progress["completeGroups"]) == (3, 2, 1)
    progress = await post(bench, "/v1/batches/4/abort", {"trajectory": "t3", "cause": "tooLong"})
    assert (progress["aborted"], progress["completeGroups"]) == (1, 1)
    exports = await post(bench, "/v1/batches/4/consume")
    assert [(one["trajectory"], one["reward"], one["state"]) for one in exports] == [
        ("t1", 0.5, "finished"),
        ("t2", 1.0, "finished"),
    ]
    assert await post(bench, "/v1/batches/4/consume") == []
    assert (await bench.export("t3"))["cause"] == "tooLong"
    assert (await post(bench, "/v1/batches/4/close"))["closed"] is True


async def test_a_consumption_whose_answer_was_lost_is_repeated_by_its_key(
    lasting: Callable[[], AbstractAsyncContextManager[Bench]],
) -> None:
    async def consume(bench: Bench, key: str) -> list[str]:
        answer = await bench.client.post("/v1/batches/1/consume", headers={"Idempotency-Key": key})
        return [one["trajectory"] for one in answer.json()]

    async with lasting() as bench:
        await bench.engine()
        await post(bench, "/v1/batches", {"step": 1, "groups": 2, "groupSize": 1})
        await bench.generate([1], 1)
        await post(bench, "/v1/batches/1/finish", {"trajectory": "t1"})
        assert await consume(bench, "k1") == ["t1"]
        assert await consume(bench, "k1") == ["t1"]
        ages = dict(bench.gateway.tally.ages_at_consumption)
        assert ages == {"0": 1}
    async with lasting() as bench:
        await bench.engine()
        await bench.generate([1], 1, trajectory="t2")
        await post(bench, "/v1/batches/1/finish", {"trajectory": "t2"})
        assert await consume(bench, "k1") == ["t1"]
        assert await consume(bench, "k2") == ["t2"]
        assert await consume(bench, "k3") == []


async def test_no_turn_of_a_batch_runs_under_weights_that_are_too_old_for_it(bench: Bench) -> None:
    await bench.engine(version=2)
    old = await bench.engine(version=1)
    for name in ("new", "old"):  # each tells its version with an answer
        bench.gateway.fleet.close_for(bench.gateway.fleet.workers["b" if name == "new" else "a"], 0.05)
        await bench.generate([5], 1, trajectory=name)
        await asyncio.sleep(0.06)
    await post(bench, "/v1/batches", {"step": 1, "groups": 1, "groupSize": 1, "minVersion": 2})
    step = {"X-Pearl-Step": "1"}
    first = bench.tokens(await bench.generate([1], 2, headers=step))
    bench.gateway.fleet.close_for(bench.gateway.fleet.workers["a"], 0.3)
    asked = len(old.requests)
    task = asyncio.create_task(bench.generate([1, *first], 2, headers=step))
    await bench.until(lambda: bench.gateway.tally.turns_queued == 1)  # it waits rather than go to the old one
    assert bench.tokens(await task) == bench.continuation([1, *first], 2, version=2)
    assert len(old.requests) == asked


async def test_unfinished_trajectories_are_told_to_the_planner(bench: Bench) -> None:
    await bench.engine()
    await post(bench, "/v1/batches", {"step": 1, "groups": 1, "groupSize": 2})
    await bench.generate([1, 2], 3, headers={"X-Pearl-Group": "g"})
    stats = await bench.stats()
    (unfinished,) = stats["unfinished"]
    assert (unfinished["group"], unfinished["turnsDone"], unfinished["contextTokens"]) == ("g", 1, 5)
    assert unfinished["idleSeconds"] >= 0
    assert stats["live"]["environment"] == 1
    assert stats["profile"]["turns"] == 1
    assert stats["workers"][0]["residentTokens"] == 5


async def test_unknown_batch_and_ended_trajectory_are_refused_with_the_reason(bench: Bench) -> None:
    await bench.engine()
    response = await bench.client.post("/v1/batches/9/finish", json={"trajectory": "t"})
    assert (response.status_code, response.json()["error"]["type"]) == (404, "BatchUnknown")
    await post(bench, "/v1/batches", {"step": 9, "groups": 1, "groupSize": 1})
    await bench.generate([1], 1)
    await post(bench, "/v1/batches/9/finish", {"trajectory": "t1"})
    response = await bench.generate([1], 1)
    assert (response.status_code, response.json()["error"]["type"]) == (409, "TrajectoryEnded")


async def test_window_holds_new_groups_until_one_is_over(bench: Bench) -> None:
    await bench.engine()
    bench.gateway.routing.window = 2
    await post(bench, "/v1/batches", {"step": 1, "groups": 2, "groupSize": 2})
    assert (await post(bench, "/v1/permits", {"group": "g1", "size": 2}))["granted"]
    refused = await post(bench, "/v1/permits", {"group": "g2", "size": 2, "waitSeconds": 0})
    assert (refused["granted"], refused["reason"], refused["inFlight"]) == (False, "WindowFull", 2)
    waiting = asyncio.create_task(post(bench, "/v1/permits", {"group": "g2", "size": 2, "waitSeconds": 10}))
    for name in ("t1", "t2"):
        await bench.generate([1], 1, trajectory=name, headers={"X-Pearl-Group": "g1"})
        await post(bench, "/v1/batches/1/finish", {"trajectory": name})
    assert (await waiting)["granted"]


async def test_stale_trajectories_hold_new_groups_until_they_are_consumed(bench: Bench) -> None:
    await bench.engine()
    bench.gateway.routing.max_staleness = 1
    await post(bench, "/v1/batches", {"step": 1, "groups": 1, "groupSize": 1})
    await bench.generate([1], 1)
    await post(bench, "/v1/batches/1/finish", {"trajectory": "t1"})
    bench.gateway.fleet.workers["a"].wanted_version = 2
    ask = {"group": "g2", "size": 1, "waitSeconds": 0}
    assert (await post(bench, "/v1/permits", ask))["reason"] == "WaitForOldest"
    await post(bench, "/v1/batches/1/consume")
    assert (await post(bench, "/v1/permits", ask))["granted"]


async def test_what_is_left_behind_ends_and_its_permit_is_given_back(bench: Bench) -> None:
    await bench.engine()
    bench.gateway.settings = replace(
        bench.gateway.settings, limits=replace(bench.gateway.settings.limits, idle_seconds=0.0)
    )
    await post(bench, "/v1/batches", {"step": 1, "groups": 2, "groupSize": 1})
    await post(bench, "/v1/permits", {"group": "g1", "size": 2})
    await post(bench, "/v1/permits", {"group": "g2", "size": 2})
    await bench.generate([1], 1, headers={"X-Pearl-Group": "g1"})
    assert bench.gateway.permits.in_flight() == 4
    await asyncio.sleep(0.01)
    bench.gateway.expire()
    export = await bench.export("t1")
    assert (export["state"], export["cause"]) == ("aborted", "idle")
    assert bench.gateway.permits.in_flight() == 0


async def test_stale_trajectories_end_where_the_rollout_says_so(bench: Bench) -> None:
    await bench.engine()
    bench.gateway.routing.on_exceed = "Abort"
    await bench.generate([1], 1)
    bench.gateway.fleet.workers["a"].wanted_version = 1
    bench.gateway.expire()
    assert (await bench.export("t1"))["state"] == "live"
    bench.gateway.fleet.workers["a"].wanted_version = 2
    bench.gateway.expire()
    assert (await bench.export("t1"))["cause"] == "stale"


async def test_restart_of_the_gateway_loses_no_finished_turn(
    lasting: Callable[[], AbstractAsyncContextManager[Bench]],
) -> None:
    async with lasting() as bench:
        await bench.engine()
        await post(bench, "/v1/batches", {"step": 1, "groups": 1, "groupSize": 2})
        first = bench.tokens(await bench.generate([1, 2], 3, turn=0))
        await bench.generate([9], 2, trajectory="t2")
        await post(bench, "/v1/batches/1/finish", {"trajectory": "t2", "reward": 2.0})
        before = await bench.export("t1")
    async with lasting() as bench:
        engine = await bench.engine()
        assert await bench.export("t1") == before
        # The answer of the last turn is still there for whoever did not get it.
        assert bench.tokens(await bench.generate([1, 2], 3, turn=0)) == first
        assert engine.requests == []
        second = bench.tokens(await bench.generate([1, 2, *first, 5], 2, turn=1))
        assert (await bench.export("t1"))["tokenIds"] == [1, 2, *first, 5, *second]
        (consumed,) = await post(bench, "/v1/batches/1/consume")
        assert (consumed["trajectory"], consumed["reward"]) == ("t2", 2.0)
        await post(bench, "/v1/batches/1/finish", {"trajectory": "t1"})
    async with lasting() as bench:
        assert bench.gateway.sessions.live == {}
        await bench.engine()
        assert (await bench.generate([1], 1)).json()["error"]["type"] == "TrajectoryEnded"
        (consumed,) = await post(bench, "/v1/batches/1/consume")
        assert consumed["tokenIds"] == [1, 2, *first, 5, *second]
        assert (await post(bench, "/v1/batches/1/close"))["completeGroups"] == 0


def test_batches_survive_a_restart_and_a_torn_line(tmp_path: Path) -> None:
    storage = Storage(tmp_path, time.monotonic)
    batches = Batches(time.time, storage)
    batches.open(OpenBatch(step=3, groups=1, group_size=1))
    batches.finish(3, FinishTrajectory(trajectory="t1", group="g"), None)
    storage.close()
    with (tmp_path / "batches-000001.jsonl").open("ab") as file:
        file.write(b'{"event": "fin')
    storage = Storage(tmp_path, time.monotonic)
    again = Batches(time.time, storage)
    assert again.progress(3).complete_groups == 1
    again.close(3)
    storage.close()
    storage = Storage(tmp_path, time.monotonic)
    assert Batches(time.time, storage).progress(3).closed
    storage.close()


def test_of_closed_batches_only_the_newest_are_kept_in_memory_and_on_disk(tmp_path: Path) -> None:
    storage = Storage(tmp_path, time.monotonic, segment_bytes=1)
    batches = Batches(time.time, storage)
    batches.open(OpenBatch(step=500, groups=1, group_size=1))
    batches.close(500)
    for step in range(100):
        batches.open(OpenBatch(step=step, groups=1, group_size=1))
        batches.finish(step, FinishTrajectory(trajectory=f"t{step}"), None)
        batches.close(step)
    batches.open(OpenBatch(step=200, groups=1, group_size=1))
    assert set(batches.by_step) == {*range(36, 100), 200}
    # Three lines of each batch and one of the open one, each in a file of its own here.
    assert len(list(tmp_path.glob("batches-*"))) == 64 * 3 + 1
    storage.close()
    again = Storage(tmp_path, time.monotonic, segment_bytes=1)
    restored = Batches(time.time, again)
    assert (set(restored.by_step), restored.current()) == (set(batches.by_step), 200)
    assert restored.progress(99).finished == 1
    again.close()


def test_step_is_not_reopened_with_other_numbers() -> None:
    batches = Batches(time.time)
    batches.open(OpenBatch(step=1, groups=1, group_size=1))
    with pytest.raises(GatewayError, match="use a new step"):
        batches.open(OpenBatch(step=1, groups=2, group_size=1))


def test_a_later_batch_that_begins_early_is_refill_and_one_that_waits_is_a_barrier() -> None:
    batches = Batches(lambda: 0.0)
    for step in (1, 2, 3):
        batches.open(OpenBatch(step=step, groups=1, group_size=1))
    assert batches.refill is None
    batches.finish(1, FinishTrajectory(trajectory="a", group="g"), None)
    assert (batches.refill, batches.ready()) == (None, 1)
    assert batches.consume(1) == ["a"]
    assert batches.ready() == 0
    batches.close(1)
    assert batches.refill is False
    batches._apply({"event": "start", "step": 3, "trajectory": "b"})
    assert batches.refill is True
    batches.close(2)
    assert batches.refill is True


def test_an_update_lasts_from_the_last_fetch_to_newer_weights() -> None:
    consumer = Consumer()
    consumer.wants(4, 0.0)
    assert consumer.view(0, 7.0).waiting_seconds == 7.0
    consumer.fetched(10.0)
    consumer.fetched(20.0)
    assert (consumer.view(3, 25.0).waiting_seconds, consumer.view(3, 25.0).ready_trajectories) == (0.0, 3)
    consumer.wants(4, 30.0)
    consumer.wants(5, 120.0)
    assert (consumer.view(0, 125.0).update_seconds, consumer.view(0, 125.0).waiting_seconds) == (100.0, 5.0)
    consumer.fetched(130.0)
    consumer.wants(6, 330.0)  # 100 + 0.3 · (200 − 100)
    assert consumer.view(0, 330.0).update_seconds == 130.0
