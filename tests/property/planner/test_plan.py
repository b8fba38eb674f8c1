"""What holds for every plan: no surprise from wrong numbers, no second thoughts, no dependence on anything else."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from planner_fleet import AUTO, Fleet, budget, policy, turns, worker

from pearl_planner.plan import plan
from pearl_planner.serialize import dumps, plan_from_json, policy_from_json, snapshot_from_json, to_json
from pearl_planner.types import (
    Batch,
    Budget,
    DeleteWorker,
    Measurements,
    Memory,
    Mode,
    Role,
    SetActivity,
    Snapshot,
    Trajectory,
    WorkerMetrics,
    WorkerState,
)
from pearl_planner.workload.profile import Moments, Profile

evil = st.one_of(
    st.sampled_from([float("nan"), float("inf"), float("-inf"), -1.0, 0.0, 1e308, -1e308, 5e-324]),
    st.floats(allow_nan=True, allow_infinity=True),
)
maybe = st.one_of(st.none(), evil)
counts = st.one_of(st.sampled_from([-1, 0, 1, 2, 10**9, -(10**9)]), st.integers(-5, 50))
moments = st.builds(Moments, evil, evil, evil)
profiles = st.builds(
    Profile,
    appended=moments,
    generated=moments,
    retained=moments,
    environment=moments,
    context=moments,
    missed=st.dictionaries(st.sampled_from(["colocated", "disaggregated"]), moments),
    turns=counts,
)
metrics = st.builds(WorkerMetrics, maybe, maybe, maybe, maybe, maybe, maybe)
measurements = st.builds(
    Measurements,
    st.one_of(st.just(1.0), maybe),
    maybe,
    st.booleans(),
    st.dictionaries(st.sampled_from(["uid-0-0", "uid-1-0"]), metrics),
    st.one_of(st.none(), counts),
)
trajectories = st.builds(Trajectory, st.sampled_from("abc"), counts, counts, maybe)
batches = st.builds(
    Batch, counts, counts, counts, counts, counts, counts, counts, evil, st.lists(trajectories, max_size=6).map(tuple)
)
memories = st.builds(
    Memory,
    last_change_at=maybe,
    last_target_id=st.integers(-5, 50),
    flip_cost_seconds=maybe,
    start_cost_seconds=maybe,
    model_scale=maybe,
    capacity_changed_at=maybe,
)


def fleet_of(count: int) -> tuple[object, ...]:
    return tuple(worker(slot, in_flight=slot, resident_tokens=100 * slot) for slot in range(count))


@settings(max_examples=300, deadline=None)
@given(measurements, st.one_of(profiles, st.just(turns(40, 120))), st.one_of(st.none(), batches), memories, evil)
def test_impossible_numbers_never_raise_and_never_shrink_the_fleet(
    seen: Measurements, profile: Profile, batch: Batch | None, memory: Memory, now: float
) -> None:
    snapshot = Snapshot(now, fleet_of(3), (), budget(3), seen, profile, batch, None, memory)  # type: ignore[arg-type]
    result = plan(snapshot, policy())
    assert result.shape.workers == 3
    assert not [one for one in result.actions if isinstance(one, DeleteWorker | SetActivity)]
    assert result.routing.local_append_tokens >= 0
    assert result.recommended_in_flight is not None
    assert result.recommended_in_flight >= 1


@settings(max_examples=100, deadline=None)
@given(evil, evil, evil, evil)
def test_a_budget_that_cannot_be_read_keeps_what_is_there(per: float, low: float, high: float, free: float) -> None:
    limits = Budget(per, float("nan"), low, float("nan"), high, free)  # type: ignore[arg-type]
    workers = (*(worker(slot) for slot in range(2)), worker(2, zone="elastic"))
    snapshot = Snapshot(1.0, workers, (), limits, Measurements(), None, None, None)
    deleted = [one for one in plan(snapshot, policy()).actions if isinstance(one, DeleteWorker | SetActivity)]
    assert per >= 2 or deleted == []  # workers that became larger than their GPUs are another matter


@st.composite
def worlds(draw: st.DrawFn) -> Fleet:
    modes = draw(st.sampled_from([AUTO, (Mode.COLOCATED,), (Mode.DISAGGREGATED,)]))
    ratio = draw(st.sampled_from([None, None, (1, 2), (3, 1)]))
    rules = policy(modes=modes, ratio=ratio)
    fleet = Fleet(budget(draw(st.integers(0, 4)), (0, draw(st.integers(0, 3))), draw(st.integers(0, 3))), rules)
    if draw(st.booleans()):
        fleet.profile = turns(draw(st.integers(1, 900)), draw(st.integers(1, 200)), wait=draw(st.floats(0, 20)))
        fleet.measurements = Measurements(gateway_age_seconds=1.0, live_trajectories=draw(st.integers(0, 40)))
    return fleet


@settings(max_examples=60, deadline=None)
@given(worlds(), st.data())
def test_a_reached_plan_wants_nothing_more_and_survives_kills(fleet: Fleet, data: st.DataObject) -> None:
    fleet.settle()
    targets = fleet.memory.last_target_id
    fleet.look()
    assert fleet.memory.last_target_id == targets, "a second thought without a new fact"
    if fleet.pods:
        victim = data.draw(st.sampled_from(sorted(fleet.pods)))
        size = len(fleet.pods)
        if data.draw(st.booleans()):
            del fleet.pods[victim]
        else:
            fleet.pods[victim] = replace(fleet.pods[victim], state=WorkerState.FAILED)
        fleet.settle()
        assert victim not in fleet.pods
        assert len(fleet.pods) == size
        roles = {pod.role for pod in fleet.pods.values()}
        assert roles in ({Role.COLOCATED}, {Role.PREFILL, Role.DECODE})


@settings(max_examples=40, deadline=None)
@given(worlds())
def test_a_recorded_snapshot_gives_the_same_plan_byte_for_byte(fleet: Fleet) -> None:
    for _ in range(4):
        snapshot = snapshot_from_json(to_json(fleet.snapshot()))
        rules = policy_from_json(json.loads(dumps(fleet.policy)))
        fleet.profile, fleet.memory = snapshot.profile, snapshot.memory
        expected = dumps(plan(snapshot, rules))
        again = plan(snapshot_from_json(json.loads(dumps(snapshot))), rules)
        assert dumps(again) == expected
        assert dumps(plan_from_json(json.loads(expected))) == expected
        fleet.look()
