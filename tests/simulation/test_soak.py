"""A day of the soak, and that its checks see what they are for: something is broken on purpose, and they say so."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from soak import Scene, soak
from soak_cluster import NAMESPACE, Borrower
from soak_demand import DAY, HOUR, KINDS, Demand

from pearl_api import names
from pearl_dev.virtual.kube import clone
from pearl_operator import kinds, loop, policy
from pearl_operator.loans.follower import Follower
from pearl_operator.metrics import Metrics
from pearl_operator.ring import Ring

if TYPE_CHECKING:
    from collections.abc import Callable

    from soak_checks import Breach

pytestmark = pytest.mark.timeout(600)


def told(scene: Scene, words: str) -> list[Breach]:
    return [one for one in scene.checks.breaches if words in one.what]


@pytest.fixture(scope="module")
def day() -> Scene:
    return soak(DAY, seed=1)


def test_a_day_with_nodes_that_come_and_go_loans_and_faults_breaks_nothing(day: Scene) -> None:
    assert day.checks.breaches == []
    assert sum(day.faults.counts.values()) >= 10
    assert day.process.starts >= 2
    assert len(day.checks.reclaims) >= 20
    assert day.checks.optional >= 3
    assert {"SpotNotice", "ReclaimRequested", "Idle", "event"} <= day.checks.forced.keys()


def test_every_gpu_second_is_told_once(day: Scene) -> None:
    for use in day.use.values():
        assert use.elastic_working + use.elastic_starting + use.elastic_free == use.elastic_available > 0
        assert 0 < use.reserved_working <= use.reserved
    assert day.use["swe"].borrowed_working > 0
    # From 22:00 to 6:00 `math` has no work: at least a third of the day.
    assert day.use["math"].reserved_working <= day.use["math"].reserved * 2 / 3


class Restless(Demand):
    """Other turns every two minutes."""

    def advance(self, now: float, serving: int) -> None:
        self.kind = KINDS[int(now / 120.0) % 2]
        self._next_kind_at = now + HOUR
        super().advance(now, serving)


def test_a_dwell_that_is_ignored_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(*given: Any, **more: Any) -> Any:
        return replace(policy.policy_of(*given, **more), min_dwell_seconds=0.0, ratio_threshold=0.0, mode_threshold=0.0)

    monkeypatch.setattr(loop, "policy_of", hasty)
    monkeypatch.setattr("soak.Demand", Restless)
    scene = soak(3 * HOUR, seed=1)
    assert told(scene, "within minDwellSeconds 300")


def test_a_fleet_above_its_budget_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def generous(*given: Any, **more: Any) -> Any:
        budget = policy.budget_of(*given, **more)
        return replace(budget, reserved_gpus=budget.reserved_gpus + 2)

    monkeypatch.setattr(loop, "budget_of", generous)
    scene = soak(0.25 * HOUR, seed=1)
    first, *_ = told(scene, "4 reserved GPUs, and the budget is 2, after ")
    assert first.seconds < 2.0, "as soon as the pods were made"


def test_series_and_snapshots_of_a_deleted_rollout_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Metrics, "forget", lambda *_: None)
    monkeypatch.setattr(Ring, "forget", lambda *_: None)
    scene = soak(0.25 * HOUR, seed=1)
    assert told(scene, "left is series of pearl_look_seconds")
    assert told(scene, "left is an entry of ring")


def test_a_bug_that_the_operator_survives_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(loop, "snapshot_of", wrong)
    scene = soak(60.0, seed=1)
    assert {one.rollout for one in told(scene, "bug in the loop: ZeroDivisionError()")} == {
        "rl/swe",
        "rl/math",
        "rl/tools",
    }


def test_objects_that_nobody_removes_are_seen() -> None:
    def forgetful(scene: Scene) -> None:
        scene.kube._collect = lambda _owner: None  # type: ignore[method-assign]

    scene = soak(0.25 * HOUR, seed=1, before=forgetful)
    assert told(scene, "left is secrets rl/swe")
    assert told(scene, "everything was deleted, and left are")


def test_gpus_that_a_trainer_does_not_get_back_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    async def deaf(*_: Any) -> None: ...

    monkeypatch.setattr(Borrower, "fence", lambda *_: None)
    monkeypatch.setattr(Follower, "reclaiming", deaf)
    monkeypatch.setattr(Follower, "reclaimed", deaf)
    assert told(soak(4 * HOUR, seed=1), "took its GPUs back they are still planned")


def test_pods_that_never_start_are_seen() -> None:
    def stuck(scene: Scene) -> None:
        scene.cluster.stuck = True

    scene = soak(HOUR, seed=1, before=stuck)
    assert {one.rollout for one in told(scene, "not settled")} >= {"swe", "tools"}


def event(scene: Scene, kind: Any, body: dict[str, Any]) -> None:
    scene.checks._watch("MODIFIED", kind, clone(body))


async def watched(change: Callable[[dict[str, Any]], None]) -> Scene:
    """A rollout with two workers; then a change of one of the objects that the checks saw."""
    scene = Scene(seed=1)
    slots = [{"slot": slot, "zone": "reserved", "role": role} for slot, role in enumerate(("prefill", "decode"))]
    target = {"id": 3, "reason": "Applied", "slots": slots, "deadline": "2027-01-15T08:10:00Z"}
    scene.apply("swe", {"capacity": {"reserved": {"gpus": 2}}})
    rollout = scene.kube.objects["pearlrollouts", NAMESPACE, "swe"] | {"status": {"target": target}}
    labels = {
        names.LABEL_ROLLOUT: "swe",
        names.LABEL_ROLE: "prefill",
        names.LABEL_ROLE_EPOCH: "3",
        names.LABEL_ZONE: "reserved",
    }
    pod = {"metadata": {"name": "swe-w0-0", "uid": "u", "labels": labels}}
    event(scene, kinds.ROLLOUT, rollout)
    event(scene, kinds.POD, pod)
    change({"target": target, "labels": labels})
    event(scene, kinds.ROLLOUT, rollout)
    event(scene, kinds.POD, pod)
    return scene


@pytest.mark.looptime
async def test_a_target_without_decode_workers_is_seen() -> None:
    def without(seen: dict[str, Any]) -> None:
        seen["target"] |= {"id": 4, "slots": [{"slot": 0, "zone": "reserved", "role": "prefill"}]}

    scene = await watched(without)
    assert told(scene, "target 4 has one stage only: prefill")
    assert str(scene.checks.breaches[0]).startswith("day 0 00:00:00.0, swe: ")


@pytest.mark.looptime
@pytest.mark.parametrize("epoch", ["2", "3"])
async def test_a_role_that_changes_without_a_greater_epoch_is_seen(epoch: str) -> None:
    scene = await watched(
        lambda seen: seen["labels"].update({names.LABEL_ROLE: "decode", names.LABEL_ROLE_EPOCH: epoch})
    )
    assert told(scene, "role epochs grow")


@pytest.mark.looptime
async def test_nothing_is_seen_where_nothing_is_wrong() -> None:
    assert (await watched(lambda _: None)).checks.breaches == []


@pytest.mark.looptime
async def test_too_many_targets_are_seen() -> None:
    checks = Scene(seed=1).checks
    seen = checks.seen["swe"]
    # Hour 1: nothing happened; hour 2: two events; hour 3: none, and two in the hour before.
    seen.targets_by_hour.update({1: 3, 2: 5, 3: 5})
    seen.events_by_hour.update({2: 2})
    seen.optional_by_hour.update({2: 6})
    assert checks.hours(4 * HOUR) == {"quiet": [3], "busy": [5, 5]}
    assert checks.breaches == []
    seen.targets_by_hour.update({1: 4, 2: 6, 3: 6})
    seen.optional_by_hour.update({2: 7})
    checks.hours(4 * HOUR)
    assert [str(one) for one in checks.breaches] == [
        "day 0 01:00:00.0, swe: 4 targets in this hour with 0 events: at most 3",
        "day 0 02:00:00.0, swe: 6 targets in this hour with 2 events: at most 5",
        "day 0 02:00:00.0, swe: 7 optional targets in this hour: at most 6",
        "day 0 03:00:00.0, swe: 6 targets in this hour with 2 events: at most 5",
    ]


@pytest.mark.looptime
async def test_memory_and_tables_that_grow_are_seen() -> None:
    checks = Scene(seed=1).checks
    checks.sizes = [{"day": float(n), "rss_mib": 80.0 + 2 * n, "series": 500.0 + 100 * n} for n in range(1, 15)]
    checks.growth(24.0)
    assert told(checks.scene, "series went from") == []
    checks.growth(12.0)
    assert told(checks.scene, "the process grew by 14 MiB from day 7")
    checks.sizes[-1]["series"] = 4000.0
    checks.growth(24.0)
    assert told(checks.scene, "series went from 1200.0 (day 7) to 4000.0")
