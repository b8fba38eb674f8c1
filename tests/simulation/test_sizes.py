"""Fleets whose prefill and decode workers are of different sizes: times by hand, and what the planner says of them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from statistics import fmean
from typing import NamedTuple

import pytest
from small import TABLE, makespan, scenario, turn

from pearl_planner.fleet.room import Room, unit_gpus, units_of
from pearl_planner.fleet.shapes import allowed_shapes
from pearl_planner.prediction.predict import predict_makespan
from pearl_planner.types import Mode, Role, SetRole, Shape, Slot, Zone
from pearl_simulator.bounds.bound import bound
from pearl_simulator.calibration.calibrations import clean
from pearl_simulator.cluster.clock import SimulationError
from pearl_simulator.cluster.view import policy_of
from pearl_simulator.cluster.world import World
from pearl_simulator.errors import InputError
from pearl_simulator.experiments.facts import new_batch, profile_of
from pearl_simulator.experiments.makespans import makespans
from pearl_simulator.rules import make_rule
from pearl_simulator.run import run
from pearl_simulator.types import Costs, Feeding, Fleet, Router, Scenario, Training
from pearl_simulator.workloads.presets import presets

ERROR = 0.10
"""Of a predicted mean makespan: what the predictor's experiment allows at its 95 % quantile (docs/results)."""
WORKLOAD = replace(presets()["decode-heavy"], group_size=8)
WINDOW = WORKLOAD.groups * WORKLOAD.group_size
GPUS = 10
EQUAL = [Fleet(size, GPUS, 0, 0) for size in (1, 2, 4)]
UNEQUAL = Fleet(1, GPUS, 0, 0, decode_gpus=4)


@pytest.mark.parametrize(
    ("fleet", "seconds"),
    [
        # 0.1 s of prompt, half a second of hand-off, 101 tokens of 10 ms, 1 s of environment.
        (Fleet(1, 2, 0, 0), 0.1 + 0.5 + 1.01 + 1.0),
        # Two GPUs decode twice as fast as the one of the table.
        (Fleet(1, 3, 0, 0, decode_gpus=2), 0.1 + 0.5 + 0.505 + 1.0),
        # The table is that of two GPUs, one of them prefills half as fast.
        (Fleet(2, 3, 0, 0, prefill_gpus=1), 0.2 + 0.5 + 1.01 + 1.0),
    ],
)
def test_each_worker_is_as_fast_as_its_gpus_and_holds_them(fleet: Fleet, seconds: float) -> None:
    result = run(scenario(turn(), fleet=fleet), make_rule("fixed:1P1D", {}), 1, rule_name="fixed")
    assert makespan(result) == pytest.approx(seconds)
    assert str(result.shapes[-1].shape) == "disaggregated:1P1D"
    assert result.gpu_seconds["reserved"] == pytest.approx(fleet.reserved_gpus * (1.0 + seconds))


def test_a_prompt_needs_the_kv_room_of_the_worker_that_computes_it() -> None:
    fleet, table = Fleet(2, 4, 0, 0, prefill_gpus=1), replace(TABLE, kv_capacity_tokens=400)
    one = scenario(turn(300, 51), fleet=fleet)
    one = replace(one, calibration=replace(one.calibration, table=table))
    run(one, make_rule("colocated:2", {}), 1, rule_name="colocated")
    with pytest.raises(SimulationError, match="a prompt of 300 tokens does not fit the KV room of 200 tokens"):
        run(one, make_rule("fixed:2P1D", {}), 1, rule_name="fixed")


def test_no_worker_takes_a_stage_of_another_size() -> None:
    world = World(scenario(turn(), fleet=Fleet(1, 3, 0, 0, decode_gpus=2)), 1)
    world.pods.create(Slot(0, Zone.RESERVED, Role.DECODE, 0), 0)
    [pod] = world.pods.by_name.values()
    assert (pod.role, pod.gpus) == (Role.DECODE, 2)
    with pytest.raises(SimulationError, match="with 2 GPUs became a prefill worker"):
        world.pods.set_role(SetRole(pod.uid, pod.name, Role.PREFILL, 1))


def test_the_bound_is_of_one_size() -> None:
    with pytest.raises(InputError, match="decode_gpus"):
        bound(scenario(turn(), fleet=UNEQUAL), 1)


class Found(NamedTuple):
    """The shape of a fleet that is predicted to be the best, with the mean seconds of its batches."""

    shape: str
    predicted: float
    simulated: float


def batches(fleet: Fleet, *modes: Mode) -> Scenario:
    """Four groups of eight, one batch after the other on H100s."""
    return Scenario(
        name="sizes",
        workload=WORKLOAD,
        calibration=clean("Qwen3-8B", tp=fleet.gpus_per_worker),
        training=Training(0.1, Feeding.BARRIER),
        horizon_seconds=1e6,
        fleet=fleet,
        costs=Costs(start_seconds=0.1, weights_seconds=0.0),
        router=Router(window=WINDOW),
        modes=tuple(mode.value for mode in modes),
        max_batches=4,
    )


@cache
def best(fleet: Fleet, *modes: Mode) -> Found:
    """Of all shapes that these modes allow."""
    one, budget = batches(fleet, *modes), fleet.budget()
    policy = policy_of(one)
    profile = profile_of(WORKLOAD, batches=50, seed=7)

    def predicted(shape: Shape) -> float:
        guess = predict_makespan(profile, shape, policy.table_of(shape.mode), new_batch(WORKLOAD), window=WINDOW)
        assert guess is not None
        return guess.mean

    room = Room(budget.reserved_gpus // unit_gpus(budget), units=units_of(budget))
    shape = min(allowed_shapes(room, policy), key=predicted)
    return Found(str(shape), predicted(shape), fmean(makespans(one, shape, 3)))


@pytest.mark.parametrize("fleet", [*EQUAL, UNEQUAL], ids=["1", "2", "4", "1 and 4"])
def test_predictions_agree_with_the_simulation(fleet: Fleet) -> None:
    found = best(fleet, Mode.DISAGGREGATED)
    assert found.predicted == pytest.approx(found.simulated, rel=ERROR)


def test_long_answers_are_done_sooner_by_few_large_decode_workers_beside_small_prefill_workers() -> None:
    unequal = best(UNEQUAL, Mode.DISAGGREGATED)
    assert unequal.shape == "disaggregated:2P2D"
    for equal in (best(fleet, Mode.DISAGGREGATED) for fleet in EQUAL):
        assert unequal.simulated < 0.85 * equal.simulated
        assert unequal.predicted / equal.predicted == pytest.approx(unequal.simulated / equal.simulated, rel=ERROR)


def test_colocated_workers_of_the_large_size_are_no_faster() -> None:
    unequal, equal = (best(fleet, *Mode) for fleet in (UNEQUAL, EQUAL[-1]))
    assert (unequal.shape, equal.shape) == ("disaggregated:2P2D", "colocated:2")
    assert unequal.predicted <= equal.predicted
    assert unequal.simulated <= 1.01 * equal.simulated


def test_the_planner_replaces_workers_by_those_of_better_sizes() -> None:
    costs = Costs(start_seconds=40.0, weights_seconds=0.0)
    one = replace(batches(UNEQUAL, *Mode), costs=costs, max_batches=8)
    result = run(one, make_rule("pearl", {}), 3, rule_name="pearl")
    spans = {str(span.shape): span.start_seconds for span in reversed(result.shapes)}  # when each was first there
    assert spans["disaggregated:2P2D"] - spans["colocated:10"] > 2 * costs.start_seconds  # of P and D, one by one
    assert str(result.shapes[-1].shape) == "disaggregated:2P2D"
    assert all(dict(span.gpus)[Zone.RESERVED] <= GPUS for span in result.shapes)
    settled = [batch.ready_seconds - batch.opened_seconds for batch in result.batches[-3:]]
    assert fmean(settled) == pytest.approx(best(UNEQUAL, *Mode).simulated, rel=ERROR)


@pytest.mark.parametrize("name", ["dynamo-like", "prorsa-like", "pearl-paper", "verl-lend"])
def test_rules_that_know_one_size_are_not_run_with_several(name: str) -> None:
    with pytest.raises(InputError, match=f"rule {name} knows workers of one size: leave out the fleet's"):
        run(batches(UNEQUAL, *Mode), make_rule(name, {}), 1, rule_name=name)
