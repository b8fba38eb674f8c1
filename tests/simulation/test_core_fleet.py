"""Workers that come, go, flip and are lent; times by hand as in `test_core_engine.py` (a reset of 1 s first)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from small import NOTHING, Always, Drawn, Same, makespan, scenario, simulate, turn

from pearl_planner.rule import PEARL
from pearl_planner.types import Shape
from pearl_simulator.run import run
from pearl_simulator.types import CapacityChange, Failure, Feeding, Fleet, Router, Script, Training

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pearl_planner.choice.decide import Decision
    from pearl_planner.types import Policy, Snapshot

TWO = Shape(colocated=2)


@dataclass(frozen=True)
class Switch(Always):
    """One shape before `at` seconds, another one from then on."""

    then: Shape = TWO
    at: float = 0.0

    def decide(self, snapshot: Snapshot, policy: Policy) -> Decision:
        return Always(self.then if snapshot.now >= self.at else self.shape).decide(snapshot, policy)


@dataclass(frozen=True)
class Steps(Same):
    """One trajectory per batch whose single turn generates `lengths[step]` tokens."""

    lengths: tuple[int, ...] = ()

    def batch(self, step: int, seed: int) -> Sequence[Script]:  # noqa: ARG002
        return [Script(0, 0, 1.0, (turn(100, self.lengths[min(step, len(self.lengths) - 1)], 0.0),))]


def steps(*lengths: int) -> Steps:
    return Steps(lambda _g, _m: (), lengths=lengths)


def test_turns_of_a_lost_worker_go_on_elsewhere_and_lose_nothing() -> None:
    # Both workers decode one turn. At 1.55 s each has 46 tokens and one worker is gone: its turn prefills 146 tokens on
    # the other in a mixed step (0.156 s), which yields a token for both; 54 are left.
    two = Same(lambda _g, _m: (turn(100, 101, 0.0),), groups=2)
    fleet, fall = Fleet(1, 0, 2, 0), (CapacityChange(1.55, 1),)
    result = simulate(scenario(workload=two, fleet=fleet, capacity=fall), TWO)
    assert makespan(result) == pytest.approx(0.55 + 0.156 + 0.54)
    assert (result.generated_tokens, result.recomputed_tokens) == (202, 146)


def test_a_noticed_worker_holds_its_gpu_until_the_fall_at_most() -> None:
    long = turn(100, 10_001, 0.0)
    one = scenario(long, fleet=Fleet(1, 1, 1, 0), capacity=(CapacityChange(50.0, 0),), max_batches=None)
    one = replace(one, horizon_seconds=100.0, costs=replace(NOTHING, notice_seconds=30.0))
    result = simulate(one, TWO)
    # Idle or not, it is drained and deleted soon after the notice at 20 s, when its GPU is given back.
    assert 20.0 <= result.gpu_seconds["elastic"] <= 50.0
    assert result.gpu_seconds["reserved"] == pytest.approx(100.0, abs=1.01)


def test_a_failed_engine_is_replaced() -> None:
    one = scenario(turn(100, 101, 0.0), failures=(Failure(5.5),), costs=replace(NOTHING, start_seconds=5.0))
    result = simulate(one, Shape(colocated=1))
    # Up at 5.0 s, 41 tokens at 5.5 s; the pod is replaced and up 5 s later, at the earliest at 10.5 s.
    assert result.recomputed_tokens == 141
    assert 10.5 + 0.141 + 0.59 <= result.batches[0].ready_seconds <= 14.0


def test_a_flip_leaves_running_turns_alone_and_costs_cold_caches() -> None:
    # At 1.5 s the fleet becomes 1P1D. The worker that decodes keeps its turn (to 2.1 s) and becomes the decode worker;
    # the other one has nothing cached: 251 tokens instead of the 50 + 101 of a hand-off.
    one = scenario(turn(), turn(50, 21, 2.0), workers=2, look_seconds=0.5)
    result = run(one, Switch(TWO, then=Shape(0, 1, 1), at=1.5), 1, rule_name="switch")
    assert makespan(result) == pytest.approx(1.1 + 1.0 + 0.251 + 0.5 + 0.21 + 2.0)
    assert result.recomputed_tokens == 100
    assert [str(span.shape) for span in result.shapes[-1:]] == ["disaggregated:1P1D"]


def test_a_reclaim_is_obeyed_within_the_sleep_time_and_ends_the_loan() -> None:
    costs = replace(NOTHING, wake_seconds=2.0, sleep_seconds=3.0)
    one = scenario(turn(), fleet=Fleet(1, 1, 0, 1), costs=costs)
    result = simulate(one, TWO)
    ready = 1.0 + 0.1 + 1.0 + 1.0
    assert result.batches[0].ready_seconds == pytest.approx(ready)
    assert result.batches[0].consumed_seconds == pytest.approx(ready + 3.0)
    assert result.reclaims == pytest.approx((3.0,))
    assert result.gpu_seconds["borrowed"] == pytest.approx(ready + 3.0)
    refused = run(one, Always(Shape(colocated=1), borrow=False), 1, rule_name="refuse")
    assert (refused.reclaims, refused.gpu_seconds["borrowed"]) == ((), 0.0)
    assert refused.batches[0].consumed_seconds == pytest.approx(ready)


def test_new_weights_abort_turns_which_go_on_under_them() -> None:
    # Refill, η = 1: both batches start at once. Batch 0 ends at 2.2 s (0.1 + 0.11 + 0.99), weights follow at 2.7 s,
    # when the other turn has 150 tokens. 0.5 s later it prefills 250 tokens, which yields one more, and makes 150 more;
    # the prompt of the third trajectory, which may start at 2.7 s, holds it up by 0.1 s.
    one = scenario(
        workload=steps(101, 301), training=Training(0.5, Feeding.REFILL, 1), costs=replace(NOTHING, weights_seconds=0.5)
    )
    result = simulate(replace(one, max_batches=2), Shape(colocated=1))
    assert [batch.ready_seconds for batch in result.batches] == pytest.approx([2.2, 2.7 + 0.5 + 0.25 + 1.5 + 0.1])
    assert [batch.ages for batch in result.batches] == [(0,), (1,)]
    assert result.recomputed_tokens == 0  # of weights, not of a lost worker


def test_a_barrier_waits_for_the_weights_and_refill_does_not() -> None:
    # A trajectory takes 1.0 + 1.1 s, an update 10 s.
    barrier = scenario(workload=steps(101, 101), max_batches=2)
    result = simulate(barrier, Shape(colocated=1))
    assert [batch.ready_seconds for batch in result.batches] == pytest.approx([2.1, 12.1 + 2.1])
    refill = replace(barrier, training=Training(10.0, Feeding.REFILL, 1))
    result = simulate(refill, TWO)
    assert [batch.consumed_seconds for batch in result.batches] == pytest.approx([2.2, 12.2])
    assert result.trainer_waiting_seconds == pytest.approx(2.2)


def test_the_window_holds_new_groups_back() -> None:
    two = Same(lambda _g, _m: (turn(100, 101, 0.0),), groups=2)
    result = simulate(scenario(workload=two, router=Router(window=1)), Shape(colocated=1))
    assert result.batches[0].ready_seconds == pytest.approx(2 * (1.0 + 1.1))


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_nothing_is_consumed_beyond_the_staleness_bound(staleness: int) -> None:
    one = scenario(
        workload=Drawn(),
        workers=4,
        training=Training(5.0, Feeding.REFILL, staleness),
        costs=replace(NOTHING, weights_seconds=3.0),
        max_batches=8,
    )
    result = simulate(one, Shape(colocated=4), seed=3)
    assert len(result.batches) == 8
    assert max(age for batch in result.batches for age in batch.ages) == staleness


def test_a_step_takes_old_groups_before_too_many_of_them_are_due_at_once() -> None:
    # η = 2: three groups start under version 0, a fourth, which is short, under version 1. Taking it for step 1, since
    # it is complete first, would leave two long ones that are both due at step 2.
    one = scenario(
        workload=steps(101, 1001, 1001, 101), workers=4, training=Training(0.5, Feeding.REFILL, 2), max_batches=4
    )
    result = simulate(one, Shape(colocated=4))
    assert [batch.ages for batch in result.batches] == [(0,), (1,), (2,), (2,)]


def test_need_groups_leaves_the_rest_behind_after_a_barrier() -> None:
    # The second group would take ten times as long; the step needs one group, and the next starts afresh.
    two = Same(lambda g, _m: (turn(100, 101 if g == 0 else 1001, 0.0),), groups=2)
    one = scenario(workload=two, training=Training(1.0, Feeding.BARRIER, 0, need_groups=1), max_batches=2)
    result = simulate(one, Shape(colocated=1))
    assert result.batches[0].ready_seconds == pytest.approx(1.0 + 0.1 + 0.11 + 0.99)
    assert result.batches[1].ready_seconds == pytest.approx(2.2 + 1.0 + 1.0 + 0.1 + 0.11 + 0.99)
    assert all(len(batch.ages) == 1 for batch in result.batches)


def test_the_same_seed_gives_the_same_result() -> None:
    one = scenario(
        workload=Drawn(),
        fleet=Fleet(1, 2, 4, 2),
        capacity=(CapacityChange(60.0, 2), CapacityChange(120.0, 4)),
        training=Training(20.0),
        failures=(Failure(90.0),),
    )
    one = replace(one, horizon_seconds=200.0, max_batches=None, costs=replace(NOTHING, start_seconds=5.0))
    first, again = (run(one, PEARL, 7, rule_name="pearl") for _ in range(2))
    assert replace(first, wall_seconds=0.0, plan_seconds=0.0) == replace(again, wall_seconds=0.0, plan_seconds=0.0)
    assert first.finished_trajectories > 0
    assert run(one, PEARL, 8, rule_name="pearl").turns != first.turns
