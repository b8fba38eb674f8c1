from __future__ import annotations

import pytest

from pearl_planner.makespan import makespan_seconds, remainder
from pearl_planner.profile import TURN_BINS, Profile
from pearl_planner.queueing import Solution
from pearl_planner.types import Batch, Trajectory

MANY = 1e9  # so many that the prior does not matter


def profile(*chances: float) -> Profile:
    """Ends after turn k with the k-th chance; after the last one given, with that one."""
    padded = [*chances, *[chances[-1]] * (TURN_BINS - len(chances))]
    return Profile(ended=tuple(MANY * c for c in padded), continued=tuple(MANY * (1 - c) for c in padded))


def batch(*groups: int, need: int | None = None, done: int = 0) -> Batch:
    """Groups of so many running trajectories, all in the engine."""
    running = tuple(Trajectory(str(g), done, 100) for g, size in enumerate(groups) for _ in range(size))
    return Batch(0, len(groups), max(groups), need or len(groups), 0, len(groups) * max(groups), 0, 0.0, running)


SECOND_EACH = Solution((0.0, 1.0, 1.0, 1.0, 1.0))  # one turn a second, however many run: cycle(n) = n


def test_two_turns_for_everybody_take_two_rounds() -> None:
    rest = remainder(profile(0.0, 1.0), batch(2))
    assert rest is not None
    assert rest.alive == pytest.approx((2.0, 2.0))
    assert rest.unfinished == pytest.approx((1.0, 1.0))
    assert makespan_seconds(rest, SECOND_EACH, 4) == pytest.approx(4.0)


def test_progress_counts() -> None:
    rest = remainder(profile(0.0, 0.0, 1.0), batch(1, done=2))  # the third and last turn is running
    assert rest is not None
    assert rest.turns == pytest.approx(1.0)


def test_the_last_of_two_decides() -> None:
    # Both end with chance 1/2 a turn: E[max] of two geometric numbers is 8/3.
    rest = remainder(profile(0.5), batch(2))
    assert rest is not None
    assert sum(rest.unfinished) == pytest.approx(8 / 3, abs=0.01)
    # Round 0 with two (2 s), then (1 s) with at most one.
    assert makespan_seconds(rest, SECOND_EACH, 4) == pytest.approx(2 + 5 / 3, abs=0.01)


def test_only_the_needed_groups_are_waited_for() -> None:
    # The first of two groups of one: E[min] is 4/3.
    rest = remainder(profile(0.5), batch(1, 1, need=1))
    assert rest is not None
    assert sum(rest.unfinished) == pytest.approx(4 / 3, abs=0.01)


def test_more_alive_than_run_at_once_take_turns() -> None:
    rest = remainder(profile(1.0), batch(4))
    assert rest is not None
    assert makespan_seconds(rest, Solution((0.0, 1.0, 2.0, 3.0, 4.0)), 2) == pytest.approx(2.0)  # 4 turns, 2 a second


def test_trajectories_that_did_not_begin_are_part_of_the_rest() -> None:
    waiting = Batch(0, 2, 2, 2, 0, 0, 0, 0.0, ())
    rest = remainder(profile(1.0), waiting)
    assert rest is not None
    assert rest.alive == pytest.approx((4.0,))


def test_nothing_is_said_before_any_trajectory_ended() -> None:
    assert remainder(Profile(), batch(2)) is None
    done = Batch(0, 1, 2, 1, 1, 2, 2, 9.0, ())
    rest = remainder(profile(0.5), done)
    assert rest is not None
    assert makespan_seconds(rest, SECOND_EACH, 2) == 0.0
