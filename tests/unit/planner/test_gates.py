"""Sizes and loans: worked out by hand from a table without interference and a workload of equal turns."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planner_fleet import TABLE, Fleet, budget, policy, turns, worker

from pearl_planner.choice.choose import MIN_SAVING_SECONDS
from pearl_planner.choice.costs import learn_costs, learn_life
from pearl_planner.choice.evaluate import Situation, best_seconds, coarse_count, grid
from pearl_planner.choice.feeding import evident_feeding, rounds_of, trainer_floor_seconds
from pearl_planner.choice.gates import growth_pays, residual_life_seconds, wake_seconds
from pearl_planner.choice.learn import learn
from pearl_planner.choice.situation import situation
from pearl_planner.plan import plan
from pearl_planner.prediction.scale import interference_seconds, learn_scale, step_scale
from pearl_planner.serialize import dumps, memory_from_text
from pearl_planner.types import (
    Batch,
    Feeding,
    Loan,
    Measurements,
    Memory,
    Reason,
    Role,
    Trainer,
    Trajectory,
    WorkerMetrics,
    WorkerState,
    Zone,
)
from pearl_planner.workload.moments import Moments


def running(count: int) -> tuple[Trajectory, ...]:
    return tuple(Trajectory("g", 2, 800) for _ in range(count))


def fleet(**rules: object) -> Fleet:
    found = Fleet(budget(2, (0, 4)), policy(**rules))
    found.measurements, found.profile = Measurements(1.0, live_trajectories=12), turns(40, 120)
    return found


def known(one: Fleet) -> Situation:
    found = situation(one.snapshot(), one.policy)
    assert isinstance(found, Situation)
    return found


def test_trajectories_beyond_the_open_batch_are_refill_and_an_unused_window_is_a_barrier() -> None:
    one = fleet(prior_groups=1, prior_group_size=16)
    one.batch = Batch(0, 1, 16, 1, 0, 16, 10, 30.0, running(6))
    one.measurements = Measurements(1.0, live_trajectories=6)
    assert evident_feeding(one.snapshot(), one.policy) is Feeding.BARRIER
    one.measurements = Measurements(1.0, live_trajectories=14)
    assert evident_feeding(one.snapshot(), one.policy) is Feeding.REFILL
    one.batch = replace(one.batch, started=12)  # this batch itself is still being sent
    assert evident_feeding(one.snapshot(), one.policy) is None
    assert evident_feeding(replace(one.snapshot(), feeding=Feeding.REFILL), one.policy) is Feeding.REFILL
    strict = replace(one.policy, max_staleness=0)
    assert evident_feeding(replace(one.snapshot(), feeding=Feeding.REFILL), strict) is Feeding.BARRIER


def test_with_refill_rates_are_compared_and_with_a_barrier_the_rest_of_the_batch() -> None:
    one = fleet()
    one.batch = Batch(0, 1, 12, 1, 0, 12, 0, 30.0, running(12))
    one.memory = Memory(feeding=Feeding.REFILL)
    assert known(one).steady
    assert known(one).rounds == ()
    one.memory = Memory(feeding=Feeding.BARRIER)
    assert not known(one).steady
    [(alive, rounds), *_] = known(one).rounds
    assert (alive, round(rounds)) == (12, 8)  # all made 8 turns so far


def test_rounds_of_a_batch_that_thins_out() -> None:
    # 16 make one turn, 4 a second one, 1 the third and fourth.
    shares = (0.0, 0.75, 15 / 16, 15 / 16, 1.0)
    found = rounds_of(shares, 16)
    assert [alive for alive, _ in found] == [16, 4, 1]
    assert [rounds for _, rounds in found] == pytest.approx([1, 1, 2], rel=0.03)


def test_a_trainer_that_is_slower_gives_elastic_workers_back() -> None:
    one = fleet()
    one.settle()
    assert len(one.pods) == 6
    one.batch = Batch(0, 1, 12, 1, 0, 18, 6, 30.0, running(12))
    snapshot = replace(one.snapshot(), trainer=Trainer(update_seconds=960.0))
    # 12 trajectories of 8 turns in 960 s, less the margin of a tenth: 9 s a turn; two workers need about 2 s.
    assert trainer_floor_seconds(snapshot, one.policy, 8.0) == pytest.approx(9.0)
    found = situation(replace(snapshot, memory=Memory(feeding=Feeding.REFILL)), one.policy)
    assert isinstance(found, Situation)
    assert best_seconds(found, 2) == best_seconds(found, 6) == found.floor_seconds

    one.memory = replace(one.memory, last_change_at=None, feeding=Feeding.REFILL, surplus_since=0.0)
    result = plan(replace(one.snapshot(), trainer=Trainer(update_seconds=960.0)), one.policy)
    assert result.reason is Reason.TRAINER_BOUND
    assert result.shape.workers == 2


def test_growth_pays_while_the_new_worker_lives_long_enough() -> None:
    assert residual_life_seconds(Memory()) == 5400.0
    # Ten losses in 3600 worker-seconds: (3600 + 5400) / 11.
    short = Memory(elastic_seconds=3600.0, elastic_losses=10.0, start_cost_seconds=800.0)
    assert residual_life_seconds(short) == pytest.approx(818.2, abs=0.1)
    assert growth_pays(short, 10.0, 9.0)  # 18 s · 10 % = 1.8 s
    assert not growth_pays(short, 10.0, 9.8)  # 18 s · 2 % = 0.36 s, less than the least saving
    assert MIN_SAVING_SECONDS == 0.5
    assert not growth_pays(replace(short, start_cost_seconds=900.0), 10.0, 1.0)


def test_an_engine_that_starts_from_nothing_says_nothing_about_wakes() -> None:
    one = fleet()
    states = (WorkerState.COLD, WorkerState.STARTING, WorkerState.UNREADY, WorkerState.READY)
    one.loans = (Loan("t", "ns", 1, "Waking", 1, ("lent",), requested=False),)
    for state in states:
        one.pods = {"lent": worker(9, uid="lent", zone=Zone.BORROWED, loan="t", state=state)}
        one.memory = learn_costs(one.snapshot())
        one.now += 20.0
    assert one.memory.wake_cost_seconds is None
    assert one.memory.under_way == ()


@pytest.mark.parametrize(("last", "learnt"), [(WorkerState.READY, 40.0), (WorkerState.COLD, 20.0)])
def test_a_cold_start_is_measured_also_where_it_was_taken_back_before_it_served(
    last: WorkerState, learnt: float
) -> None:
    one = fleet()
    loan = Loan("t", "ns", 1, "Waking", 1, ("lent",), requested=False)
    for state in (WorkerState.STARTING, WorkerState.STARTING, last):
        one.loans = (replace(loan, phase="Draining") if state is WorkerState.COLD else loan,)
        one.pods = {"lent": worker(9, uid="lent", zone=Zone.BORROWED, loan="t", state=state)}
        one.memory = replace(learn_costs(one.snapshot()), looked_at=one.now)
        one.now += 20.0
    assert one.memory.cold_cost_seconds == learnt
    assert one.memory.wake_cost_seconds is None


def test_a_wake_cost_is_believed_half_after_an_hour() -> None:
    assert wake_seconds(Memory(), 0.0) is None
    assert wake_seconds(Memory(wake_cost_seconds=8.0, wake_seen_at=100.0), 3700.0) == 4.0


def test_starts_wakes_and_flips_are_measured_between_looks() -> None:
    one = fleet()
    one.pods = {
        "new": worker(0, state=WorkerState.STARTING, uid="new", acked_epoch=None),
        "flipped": worker(1, uid="flipped", role_epoch=5, acked_epoch=4),
        "lent": worker(9, uid="lent", zone=Zone.BORROWED, loan="t", state=WorkerState.UNREADY),
    }
    one.loans = (Loan("t", "ns", 1, "Waking", 1, ("lent",), requested=False),)
    one.memory = learn_costs(one.snapshot())
    assert {(entry.uid, entry.kind) for entry in one.memory.under_way} == {
        ("new", "start"),
        ("flipped", "flip"),
        ("lent", "wake"),
    }
    one.now += 6.0
    one.pods["flipped"] = replace(one.pods["flipped"], acked_epoch=5)
    one.pods["lent"] = replace(one.pods["lent"], state=WorkerState.READY)
    one.memory = learn_costs(one.snapshot())
    assert (one.memory.flip_cost_seconds, one.memory.wake_cost_seconds) == (6.0, 6.0)
    assert one.memory.start_cost_seconds is None
    one.now += 54.0
    one.pods["new"] = replace(one.pods["new"], state=WorkerState.READY, acked_epoch=1)
    one.memory = learn_costs(one.snapshot())
    assert one.memory.start_cost_seconds == 60.0
    assert one.memory.under_way == ()
    one.memory = replace(one.memory, flip_cost_seconds=10.0)
    one.pods["flipped"] = replace(one.pods["flipped"], role_epoch=6)
    one.memory = learn_costs(one.snapshot())
    one.now += 20.0
    one.pods["flipped"] = replace(one.pods["flipped"], acked_epoch=6)
    assert learn_costs(one.snapshot()).flip_cost_seconds == 13.0  # 10 + 0.3 · (20 − 10)


def test_a_lost_elastic_worker_counts_once_against_the_life_of_all() -> None:
    one = fleet()
    one.settle()
    lived = one.memory.elastic_seconds
    assert one.memory.elastic_losses == 0
    assert lived is not None
    name = next(n for n, pod in one.pods.items() if pod.zone is Zone.ELASTIC)
    del one.pods[name]
    assert learn_life(one.snapshot()).elastic_losses == pytest.approx(1.0, abs=0.01)
    one.look()
    one.look()
    assert one.memory.elastic_losses == pytest.approx(1.0, abs=0.02)


def metrics(running_: float, between: float) -> WorkerMetrics:
    return WorkerMetrics(running=running_, inter_token_seconds=between)


def learned(one: Fleet, role: Role, seen: WorkerMetrics) -> Memory:
    one.pods = {"a": worker(0, role, uid="a")}
    one.measurements = Measurements(1.0, 1.0, engines={"a": seen}, live_trajectories=12)
    return learn_scale(one.snapshot(), one.policy)


def test_interference_is_what_decoding_alone_does_not_explain() -> None:
    # Decoding alone, 4 sequences: 30 + 4 · 4 = 46 ms in the table and in truth. Colocated: the same step, but each of
    # the 3.92/τ/120 prefills a second that meet somebody (4 = 3.92/(1 − e^−3.92)) takes 0.1 s (40 tokens · 2.5 ms) and
    # 0.5 s that no formula explains.
    one = fleet()
    one.memory = learned(one, Role.DECODE, metrics(4.0, 0.046))
    assert step_scale(one.memory) == pytest.approx(1.0)
    between = 0.046 + 3.9207 / 120.0 * (0.1 + 0.5)
    one.memory = learned(one, Role.COLOCATED, metrics(4.0, between))
    assert one.memory.model_scale == pytest.approx(1.0)
    assert interference_seconds(one.memory) == pytest.approx(0.5, rel=1e-3)


def test_prompts_that_decode_workers_prefill_without_being_told_to_do_not_make_their_steps_slow() -> None:
    # A quarter of the 3.92/τ/120 turns a second that meet somebody is prefilled where it decodes (0.1 s), although the
    # threshold is 0: while weights are loaded, no prefill worker may have those of the decode worker.
    one = fleet()
    assert one.profile is not None
    seen = {"local": Moments(25.0, 0.0, 0.0), "disaggregated": Moments(75.0, 0.0, 0.0)}
    one.profile = replace(one.profile, missed=seen)
    one.memory = learned(one, Role.DECODE, metrics(4.0, 0.046 + 0.25 * 3.9207 / 120.0 * 0.1))
    assert step_scale(one.memory) == pytest.approx(1.0, rel=1e-3)


def test_one_look_does_not_make_a_worker_that_only_decodes_slow() -> None:
    # Right after a change it still works off prompts that were sent to it in its old role: 3 times its table.
    one = fleet()
    one.memory = learned(one, Role.COLOCATED, metrics(4.0, 1.1 * (0.046 + 3.9207 / 120.0 * 0.1)))
    one.memory = learned(one, Role.DECODE, metrics(4.0, 3 * 0.046))
    assert step_scale(one.memory) == pytest.approx(1.1 * 1.5**0.1, rel=1e-3)
    one.memory = replace(one.memory, decode_scale=None, model_scale=None)
    assert step_scale(learned(one, Role.DECODE, metrics(4.0, 0.046))) == pytest.approx(1.0)


def test_without_decoding_alone_slowness_beyond_a_tables_error_may_be_interference() -> None:
    one = fleet()
    step, prefill = 0.046, 3.9207 / 120.0 * 0.1
    within = learned(one, Role.COLOCATED, metrics(4.0, 1.1 * (step + prefill)))
    assert step_scale(within) == pytest.approx(1.1)
    assert interference_seconds(within) == 0.0
    beyond = learned(one, Role.COLOCATED, metrics(4.0, 1.5 * (step + prefill)))
    assert step_scale(beyond) == pytest.approx(1.15)
    # (1.5 − 1.15) of the table's time for the 120 steps of 3.92 turns.
    assert interference_seconds(beyond) == pytest.approx(0.35 * (step + prefill) * 120.0 / 3.9207, rel=1e-3)
    wrong = learned(one, Role.COLOCATED, metrics(4.0, 18.0 * (step + prefill)))
    assert step_scale(wrong) == pytest.approx(10.0)


def test_times_of_few_prefills_tell_slow_steps_from_interference() -> None:
    # The table is right, and each prefill takes 0.5 s more than it should. In the tail of a batch one sequence runs,
    # of 12,000 tokens: it is hardly ever met by a prefill, so that a fleet that never decoded alone knows κ too.
    one = fleet()
    busy = metrics(4.0, 0.046 + 3.9207 / 120.0 * (0.1 + 0.5))
    for _ in range(12):
        one.memory = learned(one, Role.COLOCATED, busy)
    assert step_scale(one.memory) == pytest.approx(1.15, abs=0.01)
    for _ in range(12):
        one.memory = learned(one, Role.COLOCATED, metrics(1.0, 0.034 + 0.7968 / 120.0 * 0.01))
    assert step_scale(one.memory) == pytest.approx(1.0, abs=0.04)
    assert interference_seconds(one.memory) == pytest.approx(0.5, rel=0.1)


def open_batch(*unfinished: Trajectory, finished: int = 0) -> Batch:
    count = len(unfinished) + finished
    return Batch(1, 1, count, 1, 0, count, finished, 60.0, unfinished)


def test_steps_are_compared_with_the_table_for_the_contexts_that_run_now() -> None:
    # 240 tokens in context at the mean turn; now 4 sequences of 4,000 and half an answer of 120: 1 ms each per 1,000.
    one = fleet()
    one.policy = replace(one.policy, table=replace(one.policy.table, decode_per_context_token_seconds=1e-6))
    one.batch = open_batch(*(Trajectory("g", 3, 4000) for _ in range(4)), Trajectory("g", 3, 9000, idle_seconds=1.0))
    one.memory = learned(one, Role.DECODE, metrics(4.0, 0.046 + 4 * 4060 * 1e-6))
    assert step_scale(one.memory) == pytest.approx(1.0, rel=1e-4)


def test_nothing_is_learned_while_most_of_a_batch_are_in_their_first_turn() -> None:
    # All prefilled at once and now nobody does, so that a worker which also prefills looks faster than it is.
    one = fleet()
    first, later = Trajectory("g", 0, 100), Trajectory("g", 1, 300)
    one.batch = open_batch(first, first, first, later)
    assert learned(one, Role.COLOCATED, metrics(4.0, 0.046)).mixed_seen is None
    one.batch = open_batch(first, first, later, finished=2)
    assert learned(one, Role.COLOCATED, metrics(4.0, 0.046)).mixed_seen is not None


def test_the_grid_keeps_small_counts_and_moves_others_by_no_more_than_its_width() -> None:
    assert [coarse_count(count) for count in (1, 7, 32)] == [1, 7, 32]
    assert coarse_count(1000) == pytest.approx(1000, rel=0.03)
    assert grid(0.0) == 0.0
    assert grid(-50.0) == pytest.approx(-50.0, rel=0.03)
    assert TABLE.interference_seconds == 0.0


def test_the_memory_of_a_large_fleet_fits_a_status_and_survives_it() -> None:
    one = fleet()
    one.pods = {
        str(n): worker(n, uid=f"{n:08d}-0000-4000-8000-000000000000", state=WorkerState.STARTING) for n in range(512)
    }
    memory = learn(one.snapshot(), one.policy)
    assert (len(memory.next_incarnations), len(memory.under_way)) == (512, 64)
    text = dumps(memory)
    assert len(text) < 24 * 1024  # of 32 KiB
    assert memory_from_text(text) == memory
