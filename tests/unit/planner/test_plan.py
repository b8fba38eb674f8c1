from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from planner_fleet import AUTO, TABLE, Fleet, budget, policy, turns, worker

from pearl_planner.plan import plan
from pearl_planner.types import (
    Activity,
    AnswerLoan,
    Batch,
    CreateWorker,
    DeleteWorker,
    Loan,
    Measurements,
    Mode,
    Reason,
    Role,
    SetActivity,
    SetRole,
    Shape,
    Trajectory,
    WorkerMetrics,
    WorkerState,
    Zone,
)

if TYPE_CHECKING:
    from pearl_planner.workload.profile import Profile

SPLIT = (Mode.DISAGGREGATED,)
FRESH = Measurements(gateway_age_seconds=1.0, live_trajectories=12)


def started(modes: tuple[Mode, ...] = AUTO, reserved: int = 3, **rules: object) -> Fleet:
    """A fleet that came up and rests, long enough ago."""
    fleet = Fleet(budget(reserved), policy(modes=modes, **rules))
    fleet.settle()
    fleet.now += 1000
    return fleet


def test_the_first_look_creates_every_reserved_worker_in_its_slot() -> None:
    result = Fleet(budget(3), policy()).look()
    assert [one.slot.slot for one in result.actions if isinstance(one, CreateWorker)] == [0, 1, 2]
    assert (result.reason, result.shape) == (Reason.NO_DATA, Shape(3))
    assert "0 turns measured" in result.message


@pytest.mark.parametrize(
    ("modes", "ratio", "count", "roles"),
    [
        (AUTO, None, 3, "CCC"),
        (SPLIT, None, 3, "DDP"),
        (SPLIT, None, 4, "DDPP"),
        (AUTO, (3, 5), 8, "DDDDDPPP"),
        (AUTO, (9, 1), 3, "DPP"),
        (SPLIT, None, 1, "C"),
    ],
)
def test_without_data_the_spec_decides_the_shape(
    modes: tuple[Mode, ...], ratio: tuple[int, int] | None, count: int, roles: str
) -> None:
    assert started(modes, count, ratio=ratio).roles() == roles


def test_a_change_of_workload_flips_one_living_worker_and_says_why() -> None:
    fleet = started(SPLIT)
    fleet.measurements, fleet.profile = FRESH, turns(600, 16)
    result = fleet.look()
    assert result.reason is Reason.APPLIED
    assert result.shape == Shape(0, 2, 1)
    [flip] = result.actions
    assert isinstance(flip, SetRole)
    assert flip.role is Role.PREFILL
    assert flip.epoch == result.target.id == 2  # type: ignore[union-attr]
    assert result.message == (
        "disaggregated:2P1D: 1.24 turns/s predicted against 0.652 disaggregated:1P2D (+90 %), switch cost 1.0 s; "
        "from 160 turns, prefill 600 tokens and generation 16 tokens a turn, context 800"
    )
    assert fleet.settle().reason is Reason.BATCH_UNKNOWN
    fleet.now, fleet.profile = fleet.now + 1000, turns(40, 120)
    fleet.settle()
    assert fleet.roles() == "DDP"
    assert (len(fleet.created), fleet.deleted) == (3, []), "roles change without restarts"


def test_a_rest_of_batch_is_compared_in_seconds() -> None:
    fleet = started(SPLIT)
    fleet.measurements, fleet.profile = FRESH, turns(600, 16)
    running = tuple(Trajectory("g", 2, 800) for _ in range(12))
    fleet.batch = Batch(0, 1, 12, 1, 0, 12, 0, 30.0, running)
    result = fleet.look()
    assert result.reason is Reason.APPLIED
    before, after = result.finalists[1], result.finalists[0]
    assert (before.shape, after.shape) == (Shape(0, 1, 2), Shape(0, 2, 1))
    # About 6 of 8 turns are left of 12 trajectories, 1.57 s of prefill each, on one worker or on two.
    assert before.makespan_seconds == pytest.approx(12 * 6 * 1.57, rel=0.25)
    assert after.makespan_seconds == pytest.approx(12 * 6 * 1.57 / 2, rel=0.25)
    assert "rest of batch" in result.message


def test_nothing_optional_right_after_a_change() -> None:
    fleet = started(SPLIT)
    fleet.measurements, fleet.profile = FRESH, turns(600, 16)
    fleet.settle()
    fleet.profile = turns(40, 120)
    fleet.memory = replace(fleet.memory, last_change_at=fleet.now - 10)
    result = fleet.look()
    assert (result.reason, result.shape, result.actions) == (Reason.COOLING_DOWN, Shape(0, 2, 1), ())
    assert "waits 20 s" in result.message


def test_a_clock_that_is_set_back_makes_nothing_wait_longer() -> None:
    fleet = started(SPLIT)
    fleet.measurements, fleet.profile = FRESH, turns(600, 16)
    fleet.settle()
    fleet.profile = turns(40, 120)
    fleet.memory = replace(fleet.memory, last_change_at=fleet.now - 10, looked_at=fleet.now)
    deadline = fleet.target.deadline if fleet.target else 0.0
    fleet.now -= 600.0
    result = fleet.look()
    assert "waits 20 s" in result.message
    assert result.target is not None
    assert result.target.deadline == deadline - 600.0
    assert result.memory.last_change_at == fleet.now - 5 - 10, "the look itself took 5 s"
    fleet.now += 20.0
    assert fleet.look().reason is Reason.APPLIED


def test_a_gain_below_the_threshold_changes_nothing() -> None:
    fleet = started(SPLIT, ratio_threshold=1.5)  # 2P1D is twice as fast: a gain of half the time
    fleet.measurements, fleet.profile = FRESH, turns(600, 16)
    result = fleet.look()
    assert (result.shape, result.actions) == (Shape(0, 1, 2), ())
    assert "not better by the threshold" in result.message


def noisy(profile: Profile, error: float) -> Profile:
    """The same means, that of the appended tokens known to this relative error."""
    variance = (error * profile.appended.mean) ** 2 * profile.appended.count
    return replace(profile, appended=replace(profile.appended, variance=variance))


def test_a_gain_within_the_error_of_the_difference_changes_nothing() -> None:
    # 2P1D is better by 1 − 1.76/2.13 = 18 %; 25 % more to prefill would move that by 12 %: 10 + 12 > 18 > 10.
    fleet = started(SPLIT, ratio_threshold=0.1)
    fleet.measurements, fleet.profile = FRESH, noisy(turns(150, 60), 0.25)
    assert fleet.look().actions == ()
    fleet.profile = turns(150, 60)
    assert fleet.look().shape == Shape(0, 2, 1)


def test_an_error_that_moves_both_shapes_alike_cancels() -> None:
    # All time is prefill: 2P1D is twice as fast, however many tokens there are.
    fleet = started(SPLIT, ratio_threshold=0.45)
    fleet.measurements, fleet.profile = FRESH, noisy(turns(600, 16), 0.25)
    assert fleet.look().shape == Shape(0, 2, 1)


def test_a_rival_that_stays_ahead_needs_less_and_less() -> None:
    # 18 % better, threshold 25 %, error about 6 %: 25 / (1 + 20/60) = 19 is too much, 25 / (1 + 120/60) = 8 is not.
    fleet = started(SPLIT, ratio_threshold=0.25)
    fleet.measurements, fleet.profile = FRESH, turns(150, 60)
    assert fleet.look(seconds=20.0).actions == ()
    assert fleet.look(seconds=100.0).actions == ()
    assert fleet.look().shape == Shape(0, 2, 1)


def test_a_switch_that_costs_more_than_it_saves_is_not_made() -> None:
    fleet = started(SPLIT)
    fleet.measurements, fleet.profile = FRESH, turns(600, 16)
    fleet.memory = replace(fleet.memory, flip_cost_seconds=10_000.0)
    assert fleet.look().reason is Reason.SWITCH_COST_TOO_HIGH
    assert fleet.roles() == "DDP"


@pytest.mark.parametrize(("capacity", "reason"), [(None, Reason.SWITCH_COST_TOO_HIGH), (8000, Reason.APPLIED)])
def test_a_worker_loses_no_more_than_its_kv_cache_holds(capacity: int | None, reason: Reason) -> None:
    fleet = started(SPLIT)
    fleet.policy = replace(fleet.policy, table=replace(TABLE, kv_capacity_tokens=capacity))
    fleet.measurements, fleet.profile = FRESH, turns(600, 16)
    for name, pod in fleet.pods.items():
        fleet.pods[name] = replace(pod, resident_tokens=1_000_000)  # of agents that left without a word
    assert fleet.look().reason is reason


@pytest.mark.parametrize(
    ("measurements", "reason", "says"),
    [
        (Measurements(), Reason.NO_DATA, "never read"),
        (Measurements(gateway_age_seconds=31.0), Reason.STALE_DATA, "31 s old"),
        (replace(FRESH, prometheus_expected=True), Reason.NO_DATA, "fewer than half of the workers"),
        (replace(FRESH, prometheus_expected=True, prometheus_age_seconds=90.0), Reason.STALE_DATA, "90 s old"),
        (replace(FRESH, live_trajectories=0), Reason.IDLE, "no trajectory"),
    ],
)
def test_without_fresh_measurements_nothing_optional_changes(
    measurements: Measurements, reason: Reason, says: str
) -> None:
    fleet = started(SPLIT)
    fleet.measurements, fleet.profile = measurements, turns(600, 16)
    result = fleet.look()
    assert (result.reason, result.actions, result.shape) == (reason, (), Shape(0, 1, 2))
    assert says in result.message


def test_engine_samples_may_be_as_old_as_two_scrapes() -> None:
    fleet = started(SPLIT)
    fleet.measurements = replace(FRESH, prometheus_expected=True, prometheus_age_seconds=90.0)
    fleet.profile = turns(600, 16)
    assert fleet.look().reason is Reason.STALE_DATA
    fleet.policy = replace(fleet.policy, engines_stale_after_seconds=120.0)
    assert fleet.look().reason is Reason.APPLIED


def test_without_measurements_a_dead_pod_is_replaced_all_the_same() -> None:
    fleet = started()
    fleet.measurements = Measurements()
    del fleet.pods["w1-0"]
    result = fleet.look()
    assert [one.slot for one in result.actions if isinstance(one, CreateWorker)] == [
        replace(result.target.slots[1], incarnation=1)  # type: ignore[union-attr]
    ]
    assert "slot 1 lost its pod" in result.message
    fleet.settle()
    assert sorted(fleet.pods) == ["w0-0", "w1-1", "w2-0"]


def test_a_lost_stage_is_served_by_a_survivor_at_once() -> None:
    fleet = started(SPLIT)
    [prefill] = [name for name, pod in fleet.pods.items() if pod.role is Role.PREFILL]
    del fleet.pods[prefill]
    result = fleet.look()
    assert [one.role for one in result.actions if isinstance(one, SetRole)] == [Role.PREFILL]
    assert [one.slot.role for one in result.actions if isinstance(one, CreateWorker)] == [Role.DECODE]


def test_hold_keeps_the_shape_but_not_the_dead() -> None:
    fleet = started(SPLIT)
    fleet.policy = replace(fleet.policy, hold=True)
    fleet.measurements, fleet.profile = FRESH, turns(600, 16)
    assert fleet.look().reason is Reason.HELD
    assert fleet.roles() == "DDP"
    fleet.pods["w0-0"] = replace(fleet.pods["w0-0"], state=WorkerState.FAILED)
    fleet.settle()
    assert "w0-1" in fleet.pods
    assert fleet.roles() == "DDP"


def test_advice_changes_nothing() -> None:
    fleet = Fleet(budget(3), policy(advisory=True))
    result = fleet.look()
    assert (result.actions, result.target, result.reason) == ((), None, Reason.ADVISORY_ONLY)
    assert result.message.startswith("advisory, would be NoData: colocated:3")
    assert fleet.memory.last_target_id == 0


def test_suspend_drains_then_deletes_everything_and_resume_brings_it_back() -> None:
    fleet = started()
    fleet.policy = replace(fleet.policy, suspend=True)
    first = fleet.look()
    assert {type(one) for one in first.actions} == {SetActivity}
    assert fleet.settle().reason is Reason.SUSPENDED
    assert fleet.pods == {}
    fleet.policy = replace(fleet.policy, suspend=False)
    fleet.settle()
    assert sorted(fleet.pods) == ["w0-1", "w1-1", "w2-1"]


def test_a_smaller_budget_removes_the_least_loaded_worker_after_a_drain() -> None:
    fleet = started()
    for name, load in (("w0-0", 500), ("w1-0", 20), ("w2-0", 300)):
        fleet.pods[name] = replace(fleet.pods[name], resident_tokens=load)
    fleet.budget = budget(2)
    result = fleet.look()
    assert result.reason is Reason.BUDGET_LIMIT
    assert result.actions == (SetActivity("uid-1-0", "w1-0", Activity.DRAINING),)
    fleet.settle()
    assert fleet.deleted == ["w1-0"]


def test_a_new_template_replaces_pods_one_by_one_and_never_the_last_that_serves() -> None:
    fleet = started()
    for name in list(fleet.pods):
        fleet.pods[name] = replace(fleet.pods[name], shape_current=False)
    for _ in range(60):
        fleet.look()
        ready = [pod for pod in fleet.pods.values() if pod.state is WorkerState.READY and pod.activity == "active"]
        assert len(ready) >= 2
    assert sorted(fleet.pods) == ["w0-1", "w1-1", "w2-1"]


def test_a_target_past_its_deadline_is_dropped_for_what_is_there() -> None:
    fleet = started()
    fleet.budget = budget(2)
    fleet.look()
    fleet.pods["w2-0"] = replace(fleet.pods["w2-0"], in_flight=1)  # never idle, and its drain is never noticed
    fleet.now += 10_000
    fleet.budget = budget(3)
    assert fleet.settle().target.id == 3  # type: ignore[union-attr]
    assert sorted(fleet.pods) == ["w0-0", "w1-0", "w2-0"]
    assert {pod.activity for pod in fleet.pods.values()} == {Activity.ACTIVE}


def test_a_spot_notice_moves_the_work_to_a_replacement() -> None:
    fleet = Fleet(budget(1, (2, 2)), policy())
    fleet.settle()
    fleet.pods["w1-0"] = replace(fleet.pods["w1-0"], notice_seconds=40.0)
    result = fleet.look()
    assert result.reason is Reason.SPOT_NOTICE
    assert result.actions == (SetActivity("uid-1-0", "w1-0", Activity.DRAINING),)
    fleet.settle()
    assert sorted(fleet.pods) == ["w0-0", "w1-1", "w2-0"]


def test_elastic_workers_go_when_the_environment_is_what_everything_waits_for() -> None:
    fleet = Fleet(budget(2, (0, 4)), policy())
    fleet.measurements, fleet.profile = FRESH, turns(40, 120, wait=1.0)
    fleet.settle()
    assert len(fleet.pods) > 2
    fleet.profile, fleet.now = turns(4, 8, wait=60.0), fleet.now + 1000
    result = fleet.look()
    assert (result.reason, result.actions) == (Reason.ENVIRONMENT_BOUND, ()), "for how long is not clear yet"
    fleet.now += 60  # as long as a start takes
    result = fleet.look()
    assert result.reason is Reason.ENVIRONMENT_BOUND
    fleet.settle()
    assert len(fleet.pods) == 2


def loan(**changes: object) -> Loan:
    offered = Loan("trainer-0", "train", 4, "Offered", 1, ("trainer-0-borrower-0",), requested=True)
    return replace(offered, **changes)  # type: ignore[arg-type]


def refused(reason: str) -> AnswerLoan:
    return AnswerLoan("trainer-0", "train", 4, granted=False, reason=reason)


def answer(fleet: Fleet, **changes: object) -> AnswerLoan:
    fleet.loans = (loan(**changes),)
    [one] = [one for one in plan(fleet.snapshot(), fleet.policy).actions if isinstance(one, AnswerLoan)]
    return one


def test_a_loan_is_taken_while_nothing_is_known_and_refused_beyond_the_budget() -> None:
    fleet = started()
    assert answer(fleet) == refused("BudgetLimit")
    fleet.budget = budget(3, borrowed=1)
    assert answer(fleet) == AnswerLoan("trainer-0", "train", 4, granted=True, reason="NoData")
    fleet.policy = replace(fleet.policy, hold=True)
    assert answer(fleet) == refused("Held")


def test_a_loan_that_was_granted_counts_before_its_engine_serves() -> None:
    fleet = started()
    fleet.budget = budget(3, borrowed=1)
    fleet.loans = (loan(name="other", phase="Waking", requested=False, workers=("other-borrower-0",)), loan())
    [one] = [one for one in plan(fleet.snapshot(), fleet.policy).actions if isinstance(one, AnswerLoan)]
    assert one == refused("BudgetLimit")


def test_a_loan_is_refused_when_its_wake_costs_more_than_it_saves() -> None:
    fleet = started()
    fleet.budget = budget(3, borrowed=1)
    fleet.measurements, fleet.profile = replace(FRESH, live_trajectories=60), turns(40, 120, wait=0.1)
    assert answer(fleet).granted, "no cost is known yet"
    fleet.memory = replace(fleet.memory, wake_cost_seconds=20.0)
    assert answer(fleet, expected_idle_seconds=200.0).granted
    assert answer(fleet, expected_idle_seconds=30.0) == refused("BorrowNotWorthwhile")
    assert answer(fleet, cap_seconds=15.0).reason == "BorrowNotWorthwhile"
    fleet.profile = turns(4, 8, wait=60.0)
    assert answer(fleet).reason == "EnvironmentBound"


def test_a_loan_that_would_end_before_a_cold_engine_serves_is_refused() -> None:
    fleet = started()
    fleet.budget = budget(3, borrowed=1)
    fleet.measurements, fleet.profile = replace(FRESH, live_trajectories=60), turns(40, 120, wait=0.1)
    cold = worker(1000, uid="b", pod="trainer-0-borrower-0", zone=Zone.BORROWED, loan="trainer-0", from_nothing=True)
    fleet.pods["b"] = replace(cold, state=WorkerState.COLD)
    assert answer(fleet, cap_seconds=30.0).granted, "nobody has seen a cold start yet"
    fleet.memory = replace(fleet.memory, cold_cost_seconds=40.0, cold_seen_at=fleet.now, wake_cost_seconds=2.0)
    assert answer(fleet, cap_seconds=30.0) == refused("ColdStartTooLong")
    assert answer(fleet, expected_idle_seconds=30.0) == refused("ColdStartTooLong")
    assert answer(fleet, expected_idle_seconds=50.0).granted, "the start is paid for by the loans that follow it, too"
    assert answer(fleet).granted, "how long the trainer waits is not known"
    assert answer(fleet, cap_seconds=90.0, expected_idle_seconds=5.0).granted, "what is announced is believed"
    fleet.pods["b"] = replace(fleet.pods["b"], from_nothing=False)
    assert answer(fleet, cap_seconds=30.0).granted, "an engine that sleeps only wakes"


def test_a_lent_worker_joins_as_prefill_and_leaves_at_once_when_asked_back() -> None:
    fleet = started(SPLIT, reserved=2)
    fleet.budget = budget(2, borrowed=1)
    borrower = worker(
        1000, Role.COLOCATED, uid="b", pod="b", zone=Zone.BORROWED, activity=Activity.ASLEEP, loan="trainer-0"
    )
    fleet.pods["b"] = replace(borrower, state=WorkerState.COLD)
    fleet.loans = (loan(phase="Idle", requested=False),)
    assert fleet.look().actions == ()
    fleet.pods["b"] = borrower
    fleet.loans = (loan(phase="Serving", requested=False),)
    result = fleet.look()
    assert "lent GPUs arrived" in result.message
    fleet.settle()
    assert fleet.pods["b"].activity is Activity.ACTIVE
    assert fleet.pods["b"].role is Role.PREFILL
    assert fleet.roles() in ("DDP", "DPP")
    fleet.loans = (loan(phase="Draining", requested=False),)
    result = fleet.look()
    assert result.reason is Reason.RECLAIM_REQUESTED
    assert SetActivity("b", "b", Activity.DRAINING) in result.actions
    fleet.settle()
    assert sorted(pod.role for pod in fleet.pods.values() if pod.pod != "b") == [Role.DECODE, Role.PREFILL]
    assert not [one for one in fleet.deleted if one == "b"], "the borrower belongs to its trainer"


def test_a_wrong_table_is_corrected_from_the_measured_time_between_tokens() -> None:
    fleet = started()
    # Three sequences: 30 + 3 · 4 = 42 ms in the table, 84 ms measured.
    slow = WorkerMetrics(running=3.0, inter_token_seconds=0.084)
    fleet.measurements = Measurements(
        1.0, 1.0, engines={pod.uid: slow for pod in fleet.pods.values()}, live_trajectories=12
    )
    fleet.look()
    assert fleet.memory.model_scale == pytest.approx(2.0)
    absurd = WorkerMetrics(running=3.0, inter_token_seconds=1e3)
    fleet.measurements = replace(fleet.measurements, engines={pod.uid: absurd for pod in fleet.pods.values()})
    for _ in range(100):
        fleet.look()
    assert fleet.memory.model_scale == pytest.approx(20.0, rel=0.01)
    unmeasured = Measurements(1.0, None, live_trajectories=12)
    fleet.measurements = unmeasured
    fleet.look()
    assert fleet.memory.model_scale == pytest.approx(20.0, rel=0.01)
    fleet.policy = replace(fleet.policy, table=replace(TABLE, name="other/cpu"))
    fleet.look()
    assert fleet.memory.model_scale is None, "how wrong one table was says nothing of another"


def test_the_window_keeps_the_staleness_bound_and_the_kv_room() -> None:
    fleet = started(max_staleness=1, prior_groups=2, prior_group_size=4)
    assert fleet.look().recommended_in_flight == 16  # (1 + 1) · 8
    fleet.batch = Batch(0, 2, 4, 2, 0, 8, 3, 1.0, ())
    assert fleet.look().routing.in_flight_window == 13
    fleet.policy = replace(fleet.policy, table=replace(TABLE, kv_capacity_tokens=2000))
    fleet.profile = turns(40, 120)
    assert fleet.look().routing.in_flight_window == 7  # 3 workers · 2000 tokens / 800
    fleet.policy = replace(fleet.policy, window_automatic=False)
    assert fleet.look().routing.in_flight_window is None
    fleet.policy = replace(fleet.policy, window=5)
    assert fleet.look().routing.in_flight_window == 5


def test_a_pod_that_was_never_ready_is_deleted_without_a_drain() -> None:
    fleet = started()
    fleet.pods["w2-0"] = replace(fleet.pods["w2-0"], state=WorkerState.PENDING)
    fleet.budget = budget(2)
    assert fleet.look().actions == (DeleteWorker("uid-2-0", "w2-0", 2),)


def test_a_borrower_that_rests_does_not_keep_another_pod_from_leaving() -> None:
    fleet = started(reserved=2)
    fleet.pods["b"] = worker(
        1000, uid="b", pod="b", zone=Zone.BORROWED, activity=Activity.ASLEEP, loan="t", state=WorkerState.COLD
    )
    fleet.loans = (loan(name="t", phase="Draining", requested=False),)
    # An elastic pod whose slot number a reserved one took over, as after a change of budgets.
    fleet.pods["w1-9"] = worker(1, uid="old", pod="w1-9", zone=Zone.ELASTIC, incarnation=9)
    fleet.look()
    assert fleet.pods["w1-9"].activity is Activity.DRAINING
