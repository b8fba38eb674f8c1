from __future__ import annotations

from planner_fleet import Fleet, budget, policy, turns

from pearl_planner.choice.routing import recommended_window, useful_window
from pearl_planner.types import Batch, Feeding, Memory, Shape


def fleet(appended: int, generated: int, *, wait: float = 1.0) -> Fleet:
    return Fleet(budget(3), policy(), profile=turns(appended, generated, wait=wait))


def test_a_full_prefill_worker_needs_no_more_in_flight_than_keep_it_busy() -> None:
    # 1.5 s of prefill a turn against 1 s of waiting and 0.6 s of decode: a handful keeps the worker busy.
    one = fleet(600, 16)
    assert useful_window(one.snapshot(), one.policy, Shape(0, 1, 2), 120) == 10
    assert useful_window(one.snapshot(), one.policy, Shape(0, 12, 12), 120) > 20


def test_a_fleet_that_waits_for_environments_takes_all_that_may_be_in_flight() -> None:
    one = fleet(40, 10, wait=100.0)
    assert useful_window(one.snapshot(), one.policy, Shape(3), 64) == 64


def test_a_batch_is_never_cut() -> None:
    one = fleet(600, 16)
    one.batch = Batch(0, 2, 20, 2, 0, 0, 0, 0.0)
    for feeding in Feeding:
        one.memory = Memory(feeding=feeding)
        assert recommended_window(one.snapshot(), one.policy, Shape(0, 1, 2)) == 40


def test_without_a_profile_staleness_is_the_only_limit() -> None:
    one = fleet(600, 16)
    one.profile, one.batch = None, Batch(0, 2, 20, 2, 0, 0, 0, 0.0)
    assert recommended_window(one.snapshot(), one.policy, Shape(0, 1, 2)) == 80
