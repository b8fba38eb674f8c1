"""Prefill and decode workers of different sizes: what is planned, predicted and paid."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planner_fleet import AUTO, TABLE, Fleet, budget, policy, turns, worker

from pearl_planner.choice.choose import replacement_seconds
from pearl_planner.choice.evaluate import candidates
from pearl_planner.choice.situation import situation
from pearl_planner.engine.model import prefill_seconds
from pearl_planner.fleet.room import Room, Units
from pearl_planner.fleet.shapes import carried_shape, split
from pearl_planner.prediction.local_append import local_append_tokens
from pearl_planner.prediction.mean_turn import workload
from pearl_planner.prediction.predict import predict
from pearl_planner.types import Activity, Loan, Measurements, Memory, Mode, Reason, Role, Shape, WorkerState, Zone

SPLIT = (Mode.DISAGGREGATED,)
FRESH = Measurements(gateway_age_seconds=1.0, live_trajectories=12)
HALVES = Units(2, 1, 2)
"""Prefill workers half as large as the others."""
FAST = replace(TABLE.resized(2.0), prefill_worker=TABLE)
"""Decode workers of twice the GPUs that prefill workers have."""


def sized(reserved: int = 8, **changes: object) -> Fleet:
    """Prefill workers of one GPU, others of two; up and at rest, long enough ago."""
    gpus = replace(budget(reserved), gpus_per_worker=2, prefill_gpus=1, decode_gpus=2)
    fleet = Fleet(gpus, policy(**{"modes": SPLIT, **changes}))
    fleet.settle()
    fleet.now += 1000
    return fleet


def sizes(fleet: Fleet) -> list[tuple[str, int]]:
    return sorted((pod.role.value, pod.gpus) for pod in fleet.pods.values())


def test_a_room_of_eight_gpus_holds_three_shapes_of_prefill_and_decode_workers() -> None:
    room = Room(8, units=HALVES)
    assert [room.split_at(place) for place in range(1, room.splits + 1)] == [
        Shape(0, 2, 3),
        Shape(0, 4, 2),
        Shape(0, 6, 1),
    ]
    assert room.colocated == 4


def test_a_worker_lies_in_one_zone_and_lent_ones_prefill() -> None:
    assert Room(3, 3, units=HALVES).split_at(1) == Shape(0, 2, 2), "one GPU is left in each zone"
    assert Room(4, 0, 2, HALVES).split_at(1) == Shape(0, 1, 3), "one of the lent ones decodes"
    assert Room(4, 0, 2, HALVES).split_at(2) == Shape(0, 2, 2)


@pytest.mark.parametrize(
    ("ratio", "shape"), [((1, 1), Shape(0, 2, 3)), ((2, 1), Shape(0, 4, 2)), ((9, 1), Shape(0, 6, 1))]
)
def test_a_ratio_is_that_of_workers(ratio: tuple[int, int], shape: Shape) -> None:
    assert split(Room(8, units=HALVES), ratio) == shape
    assert sizes(sized(ratio=ratio)) == [("decode", 2)] * shape.decode + [("prefill", 1)] * shape.prefill


def test_too_few_gpus_for_both_stages_are_colocated_and_it_is_told() -> None:
    fleet = sized(2)
    assert sizes(fleet) == [("colocated", 2)]
    fleet.measurements, fleet.profile = FRESH, turns(40, 120)
    assert fleet.look().reason is Reason.INFEASIBLE
    assert carried_shape(Shape(0, 2, 3), Room(2, units=HALVES), fleet.policy) == Shape(1)


def test_another_ratio_replaces_workers_and_never_relabels_one_of_another_size() -> None:
    fleet = sized(ratio=(2, 1))
    fleet.policy = replace(fleet.policy, ratio=(1, 3))
    fleet.settle()
    assert sizes(fleet) == [("decode", 2)] * 3 + [("prefill", 1)] * 2
    assert (len(fleet.deleted), len(fleet.created), fleet.flipped) == (2, 6 + 1, [])


def test_from_colocated_workers_those_of_the_size_of_decode_only_change_their_role() -> None:
    fleet = sized(modes=(Mode.COLOCATED,))
    fleet.policy = replace(fleet.policy, modes=SPLIT, ratio=(2, 1))
    fleet.settle()
    assert sizes(fleet) == [("decode", 2)] * 2 + [("prefill", 1)] * 4
    assert (len(fleet.deleted), len(fleet.flipped)) == (2, 2)


def test_workers_of_the_new_sizes_are_why_the_fleet_changes() -> None:
    fleet = sized(ratio=(2, 1))
    fleet.resize(prefill_gpus=2, decode_gpus=4)
    assert "the worker template changed" in fleet.look().message
    fleet.settle()
    assert sizes(fleet) == [("decode", 4)] + [("prefill", 2)] * 2
    fleet.resize(gpus_per_worker=4, prefill_gpus=2, decode_gpus=2)
    assert "workers are now of 2 (prefill), 2 (decode), 4 (colocated) GPUs" in fleet.look().message


@pytest.mark.parametrize("looks", range(1, 14))
def test_an_edit_taken_back_at_any_step_keeps_what_is_still_there(looks: int) -> None:
    fleet = sized(ratio=(2, 1))
    fleet.resize(decode_gpus=4)
    for _ in range(looks):
        fleet.look()
        assert fleet.held(Zone.RESERVED) <= 8
        assert fleet.served()
    kept = {pod.uid for pod in fleet.pods.values() if pod.gpus < 4 and pod.activity is Activity.ACTIVE}
    fleet.resize(decode_gpus=2)
    fleet.settle()
    assert sizes(fleet) == [("decode", 2)] * 2 + [("prefill", 1)] * 4
    assert kept <= {pod.uid for pod in fleet.pods.values()}


def test_a_quarter_of_the_gpus_is_replaced_at_a_time() -> None:
    fleet = sized(ratio=(2, 1))
    fleet.pods = {name: replace(pod, shape_current=False) for name, pod in fleet.pods.items()}
    least = 8
    for _ in range(60):
        fleet.look()
        ready = [pod for pod in fleet.pods.values() if pod.state is WorkerState.READY]
        least = min(least, sum(pod.gpus for pod in ready if pod.activity is Activity.ACTIVE))
    assert len(fleet.deleted) == 6
    assert least == 6


def test_the_last_worker_stays_while_the_others_make_room_for_its_successor() -> None:
    fleet = Fleet(replace(budget(6), gpus_per_worker=2), policy())
    fleet.settle()
    fleet.resize(gpus_per_worker=4)
    for _ in range(30):
        fleet.look()
        assert fleet.served()
    assert sizes(fleet) == [("colocated", 4)]


def test_the_rate_of_prefill_is_that_of_prefill_workers_and_of_decode_that_of_decode_workers() -> None:
    heavy = workload(turns(600, 16), 64, None)
    light = workload(turns(40, 120), 64, None)
    assert heavy is not None
    assert light is not None
    shape = Shape(0, 1, 8)
    same, split_sizes = (
        predict(shape, heavy, table).prediction.turns_per_second for table in (TABLE.resized(2.0), FAST)
    )
    assert same == pytest.approx(2 * split_sizes, rel=0.1)  # type: ignore[operator]
    shape = Shape(0, 8, 1)
    same, split_sizes = (predict(shape, light, table).prediction.turns_per_second for table in (TABLE, FAST))
    assert split_sizes == pytest.approx(2 * same, rel=0.1)  # type: ignore[operator]


def test_a_larger_decode_worker_takes_longer_appends_itself_than_where_prefill_is_as_fast() -> None:
    load = workload(turns(40, 100), 12, None)
    assert load is not None
    assert local_append_tokens(load, FAST, sequences=2) > local_append_tokens(load, TABLE.resized(2.0), sequences=2)


def test_a_table_of_twice_the_gpus_takes_half_the_time_and_holds_twice_the_tokens() -> None:
    twice = replace(TABLE, kv_capacity_tokens=1000).resized(2.0)
    assert prefill_seconds(twice, 100, 0) == pytest.approx((0.030 + 0.25) / 2)
    assert twice.kv_capacity_tokens == 2000


def test_workers_that_are_replaced_cost_a_start_of_their_share() -> None:
    fleet = sized(modes=AUTO, split_table=FAST)
    fleet.measurements, fleet.profile = FRESH, turns(40, 120)
    known = situation(fleet.snapshot(), fleet.policy)
    assert not isinstance(known, tuple)
    pods = list(fleet.pods.values())
    assert [pod.gpus for pod in pods] == [2, 2, 2, 2]
    kept = {pod.uid for pod in pods[:3]}
    assert replacement_seconds(pods, kept, replace(known, memory=Memory(start_cost_seconds=80.0))) == 20.0
    [best, *_] = candidates(known, Room(8, units=HALVES))
    assert best.prediction.feasible


def test_a_change_of_mode_between_sizes_is_priced_with_the_starts_that_it_takes() -> None:
    fleet = sized(modes=AUTO, split_table=FAST)
    fleet.measurements, fleet.profile = FRESH, turns(600, 16)
    fleet.memory = replace(fleet.memory, start_cost_seconds=10.0)
    result = fleet.look()
    cost = {one.shape: one.switch_cost_seconds for one in result.finalists}
    # One second for labels, and a start of 10 s of two workers of four, or of three.
    assert (cost[Shape(0, 4, 2)], cost[Shape(0, 6, 1)]) == (1.0 + 10.0 * 2 / 4, 1.0 + 10.0 * 3 / 4)


def test_a_lent_worker_of_an_old_template_serves_until_its_loan_is_over() -> None:
    fleet = Fleet(budget(2, borrowed=1), policy())
    fleet.settle()
    fleet.pods["b"] = worker(1000, uid="b", pod="b", zone=Zone.BORROWED, loan="t", role_epoch=0)
    fleet.loans = (Loan("t", "ns", 1, "Serving", 1, ("b",), requested=False),)
    fleet.settle()
    fleet.pods = {name: replace(pod, shape_current=False) for name, pod in fleet.pods.items()}
    target = fleet.look().target
    fleet.settle()
    assert sorted(fleet.deleted) == ["w0-0", "w1-0"]
    assert fleet.pods["b"].activity is Activity.ACTIVE
    assert fleet.target == target is not None, "and is no reason for one target after the other"
    assert {pod.role for pod in fleet.pods.values()} == {Role.COLOCATED}
