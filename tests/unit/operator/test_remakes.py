"""How often a slot's pod is made again after it failed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from pearl_operator.remakes import Remakes
from pearl_planner.types import Activity, Role, Worker, WorkerState, Zone


def worker(state: WorkerState, uid: str = "a", slot: int = 1) -> Worker:
    return Worker(uid, uid, slot, 0, Zone.RESERVED, Role.COLOCATED, 0, Activity.ACTIVE, state, gpus=1)


def fail(remakes: Remakes, times: int, *, at: float = 0.0) -> list[float]:
    """Lets one pod after the other fail as soon as it may be made; when each failed."""
    seen = []
    for number in range(times):
        while not remakes.may(1, at):
            at += 1.0
        remakes.saw([worker(WorkerState.FAILED, f"pod-{number}")], [1], at)
        seen.append(at)
    return seen


def test_the_first_failure_costs_nothing_and_the_pause_doubles_to_five_minutes() -> None:
    pauses = [later - earlier for earlier, later in pairwise(fail(Remakes(), 2000))]
    assert pauses[:9] == [0, 5, 10, 20, 40, 80, 160, 300, 300]
    assert set(pauses[9:]) == {300}, "however often"


def test_a_pod_counts_once_and_one_that_serves_begins_anew() -> None:
    remakes = Remakes()
    for _ in range(5):
        remakes.saw([worker(WorkerState.FAILED)], [1], 0.0)
    assert remakes.may(1, 0.0)
    fail(remakes, 3)
    assert remakes.told() == ("pods of slot 1 failed 4 times in a row and are made again ever more rarely",)
    remakes.saw([replace(worker(WorkerState.READY), uid="b")], [1], 0.0)
    assert remakes.may(1, 0.0)
    assert remakes.told() == ()


@pytest.mark.parametrize("wanted", [[], [2]])
def test_a_slot_that_the_fleet_has_no_more_is_forgotten(wanted: list[int]) -> None:
    remakes = Remakes()
    fail(remakes, 4)
    remakes.saw([], [1], 0.0)
    assert not remakes.may(1, 0.0), "its pod is gone and waits to be made again"
    remakes.saw([], wanted, 0.0)
    assert remakes.told() == ()
    assert remakes.may(1, 0.0)
