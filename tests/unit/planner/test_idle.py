"""A fleet that nobody asks for anything sleeps or goes, and is back when somebody does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planner_fleet import Fleet, budget, policy, turns

from pearl_planner.types import Activity, IdleAction, Loan, Measurements, Reason, SetActivity, WorkerState, Zone

ZERO, SLEEP = IdleAction.SCALE_TO_ZERO, IdleAction.SLEEP


def asked(seconds: float | None, uptime: float = 10_000.0, age: float | None = 1.0) -> Measurements:
    return Measurements(age, live_trajectories=0, asked_seconds=seconds, gateway_uptime_seconds=uptime)


def started(action: IdleAction, reserved: int = 3) -> Fleet:
    fleet = Fleet(budget(reserved), policy(idle_action=action, idle_after_seconds=600.0))
    fleet.profile, fleet.measurements = turns(600, 16), asked(1.0)
    fleet.settle()
    fleet.now += 1000
    return fleet


def states(fleet: Fleet) -> list[WorkerState]:
    return [one.state for one in fleet.pods.values()]


def test_without_the_action_nothing_happens_however_long_nobody_asks() -> None:
    fleet = started(IdleAction.NONE)
    fleet.measurements = asked(1e6)
    fleet.settle()
    assert states(fleet) == [WorkerState.READY] * 3


def test_an_idle_fleet_is_drained_and_deleted_and_says_why() -> None:
    fleet = started(ZERO)
    fleet.measurements = asked(598.0)
    assert not fleet.look().actions
    fleet.measurements = asked(599.0)
    result = fleet.look()
    assert {type(one) for one in result.actions} == {SetActivity}
    assert (result.reason, result.message) == (
        Reason.IDLE,
        "no turn, permit or batch was asked for in 600 s: no workers until one is",
    )
    fleet.settle()
    assert not fleet.pods


def test_engines_sleep_in_their_pods_and_no_look_wants_anything_else() -> None:
    fleet = started(SLEEP)
    fleet.measurements = asked(700.0)
    result = fleet.settle()
    assert states(fleet) == [WorkerState.ASLEEP] * 3
    assert (result.reason, fleet.deleted) == (Reason.IDLE, [])
    assert result.next_look_seconds == 5.0


@pytest.mark.parametrize("action", [ZERO, SLEEP])
def test_it_is_back_as_soon_as_somebody_asks(action: IdleAction) -> None:
    fleet = started(action)
    fleet.measurements = asked(700.0)
    fleet.settle()
    fleet.measurements = asked(0.5)
    first = fleet.look()
    assert first.actions
    fleet.settle()
    assert states(fleet) == [WorkerState.READY] * 3
    assert all(one.activity is Activity.ACTIVE for one in fleet.pods.values())
    if action is ZERO:
        assert "something is asked for again" in first.message
    else:
        assert len(fleet.created) == 3


@pytest.mark.parametrize("action", [ZERO, SLEEP])
@pytest.mark.parametrize(
    "unknown",
    [
        asked(None, uptime=30.0),  # the gateway was started anew and nobody has asked since
        asked(700.0, age=None),
        asked(0.5, age=300.0),
        asked(None, age=1.0, uptime=float("nan")),
    ],
)
def test_what_is_not_known_neither_ends_nor_begins_it(action: IdleAction, unknown: Measurements) -> None:
    fleet = started(action)
    fleet.measurements = unknown
    fleet.settle()
    assert states(fleet) == [WorkerState.READY] * 3
    fleet.measurements = asked(700.0)
    fleet.settle()
    fleet.measurements = unknown
    fleet.settle()
    assert set(states(fleet)) <= {WorkerState.ASLEEP}


def test_a_rollout_that_was_never_used_is_idle_as_well() -> None:
    fleet = started(ZERO)
    fleet.measurements = asked(None, uptime=600.0)
    fleet.settle()
    assert not fleet.pods


def test_nobody_is_put_to_sleep_while_the_fleet_is_held() -> None:
    fleet = started(SLEEP)
    fleet.policy = replace(fleet.policy, hold=True)
    fleet.measurements = asked(700.0)
    fleet.settle()
    assert states(fleet) == [WorkerState.READY] * 3


def test_a_smaller_budget_is_obeyed_without_waking_anybody() -> None:
    fleet = started(SLEEP)
    fleet.measurements = asked(700.0)
    fleet.settle()
    fleet.budget = replace(fleet.budget, reserved_gpus=2)
    woken = False
    for _ in range(20):
        result = fleet.look()
        woken |= any(isinstance(one, SetActivity) and one.activity is Activity.ACTIVE for one in result.actions)
    assert states(fleet) == [WorkerState.ASLEEP] * 2
    assert not woken


def test_a_pod_that_dies_while_all_sleep_is_replaced_and_sleeps_too() -> None:
    fleet = started(SLEEP)
    fleet.measurements = asked(700.0)
    fleet.settle()
    name, pod = next(iter(fleet.pods.items()))
    del fleet.pods[name]
    fleet.memory = replace(fleet.memory, next_incarnations=((pod.slot, pod.incarnation + 1),))
    fleet.settle()
    assert states(fleet) == [WorkerState.ASLEEP] * 3


@pytest.mark.parametrize("action", [ZERO, SLEEP])
def test_nothing_is_borrowed_while_nobody_asks(action: IdleAction) -> None:
    fleet = started(action)
    fleet.budget = replace(fleet.budget, borrowed_max_gpus=8)
    fleet.measurements = asked(700.0)
    fleet.loans = (Loan("l", "n", 1, "Offered", 1, (), requested=True),)
    fleet.look()
    assert [(one.granted, one.reason) for one in fleet.answers] == [(False, "Idle")]
    assert all(one.zone is not Zone.BORROWED for one in fleet.pods.values())


def test_a_fleet_whose_target_was_lost_with_its_status_sleeps_too() -> None:
    fleet = started(SLEEP)
    fleet.target, fleet.measurements = None, asked(700.0)
    fleet.settle()
    assert states(fleet) == [WorkerState.ASLEEP] * 3
