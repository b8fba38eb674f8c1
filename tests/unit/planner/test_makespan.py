from __future__ import annotations

import pytest
from planner_fleet import TABLE

from pearl_planner.prediction.makespan import Limits, Step, course, finish_seconds
from pearl_planner.prediction.paths import remainder
from pearl_planner.prediction.stations import Stations, Turn
from pearl_planner.prediction.work import Work
from pearl_planner.types import Batch, Shape, Trajectory
from pearl_planner.workload.profile import TURN_BINS, Moments, Profile, TrajectoryRecord, TurnRecord, update

MANY = 1e9  # so many that the prior does not matter
FREE = Limits(1e9)


def profile(*chances: float, wait: float = 0.0, generated: float = 100.0) -> Profile:
    """Ends after turn k with the k-th chance; after the last one given, with that one. Members are independent."""
    padded = [*chances, *[chances[-1]] * (TURN_BINS - len(chances))]
    return Profile(
        generated=Moments(MANY, generated, 0.0),
        environment=Moments(MANY, wait, 0.0),
        ended=tuple(MANY * c for c in padded),
        continued=tuple(MANY * (1 - c) for c in padded),
        log_length=Moments(MANY, 1.0, 1.0),
        sibling_pairs=(MANY, 0.0),
    )


def batch(*groups: int, need: int | None = None, done: int = 0) -> Batch:
    """Groups of so many running trajectories, all in the engine."""
    running = tuple(Trajectory(str(g), done, 100) for g, size in enumerate(groups) for _ in range(size))
    return Batch(0, len(groups), max(groups), need or len(groups), 0, len(groups) * max(groups), 0, 0.0, running)


def second_each(path_profile: Profile, rest_of: Batch) -> float:
    """Mean time when every turn takes one second, whoever else runs."""
    rest = remainder(path_profile, rest_of, paths=4000)
    assert rest is not None
    ends = finish_seconds(rest, [Step(1e9, 1.0, 0.0, 1.0)], FREE)
    return sum(ends) / len(ends)


def test_two_turns_for_everybody_take_two_seconds() -> None:
    assert second_each(profile(0.0, 1.0), batch(2)) == pytest.approx(2.0)


def test_progress_counts() -> None:
    rest = remainder(profile(0.0, 0.0, 1.0), batch(1, done=2))  # the third and last turn is running
    assert rest is not None
    assert rest.turns == pytest.approx(1.0)


def test_the_last_of_two_decides() -> None:
    # Both end with chance 1/2 a turn: E[max] of two geometric numbers is 8/3.
    assert second_each(profile(0.5), batch(2)) == pytest.approx(8 / 3, rel=0.02)


def test_only_the_needed_groups_are_waited_for() -> None:
    # The first of two groups of one: E[min] is 4/3.
    assert second_each(profile(0.5), batch(1, 1, need=1)) == pytest.approx(4 / 3, rel=0.02)


def finished(name: str, turns: int, group: str) -> list[TurnRecord | TrajectoryRecord]:
    """A trajectory of equal turns."""
    return [*[TurnRecord(name, k, 10, 100, 500) for k in range(1, turns + 1)], TrajectoryRecord(name, turns, group)]


def test_members_of_a_group_that_are_alike_end_sooner_together() -> None:
    alike = [record for k in range(120) for record in finished(str(k), 4 + k // 3 % 20, f"g{k // 3}")]
    apart = [record for k in range(120) for record in finished(str(k), 4 + k // 3 % 20, f"g{k}")]
    together, alone = (second_each(update(None, records), batch(8)) for records in (alike, apart))
    assert together < alone - 1


def test_finished_siblings_inform_the_rest() -> None:
    known = [record for k in range(160) for record in finished(str(k), 30 if k // 4 % 2 else 3, f"g{k // 4}")]
    short = [record for k in "abcd" for record in finished(k, 3, "new")]
    long = [record for k in "abcd" for record in finished(k, 30, "new")]
    running = Batch(0, 1, 5, 1, 0, 5, 4, 0.0, (Trajectory("new", 1, 100),))
    after_short, after_long = (second_each(update(None, [*known, *own]), running) for own in (short, long))
    assert after_short < 10
    assert after_long > 20


def test_trajectories_that_did_not_begin_are_part_of_the_rest() -> None:
    rest = remainder(profile(1.0), Batch(0, 2, 2, 2, 0, 0, 0, 0.0, ()))
    assert rest is not None
    assert rest.alive == 4
    assert sum(many for many, _ in rest.crowd) == pytest.approx(4.0)


def test_nothing_is_said_before_any_trajectory_ended() -> None:
    assert remainder(Profile(), batch(2)) is None
    rest = remainder(profile(0.5), Batch(0, 1, 2, 1, 1, 2, 2, 9.0, ()))
    assert rest is not None
    assert rest.alive == 0
    assert not rest.paths


def test_two_sequences_on_one_worker_slow_each_other_down_until_one_is_done() -> None:
    # 10 and 20 tokens; a step takes 34 ms for one sequence and 38 ms for two. No prefill, no waits.
    rest = remainder(profile(1.0), batch(2), paths=1)
    assert rest is not None
    works = (Work(0.0, 1e-6, 10.0, 0.0, 0.0), Work(0.0, 1e-6, 20.0, 0.0, 0.0))
    crowd = tuple((1.0, work) for work in works)
    rest = type(rest)(crowd, ((works,),), 1, 2, 2.0)
    turn = Turn(800.0, 0.0, 0.0, 1.0, 15.0)
    free_prefill = Stations(Shape(1), TABLE)
    steps = course(rest, free_prefill, lambda _: turn, FREE)
    assert finish_seconds(rest, steps, FREE) == [pytest.approx(10 * 0.038 + 10 * 0.034, rel=0.02)]


def test_more_alive_than_may_run_at_once_take_turns() -> None:
    # One worker for each: four alone are as fast as one; two at a time need twice as long.
    rest = remainder(profile(1.0), batch(4))
    assert rest is not None
    turn = Turn(800.0, 1.0, 0.0, 1.0, 100.0)
    stations = Stations(Shape(1000), TABLE)
    free, held = (
        finish_seconds(rest, course(rest, stations, lambda _: turn, limits), limits)[0]
        for limits in (FREE, Limits(2.0))
    )
    assert held == pytest.approx(2 * free, rel=0.05)


def test_the_same_paths_every_time() -> None:
    assert remainder(profile(0.3, 0.5), batch(3, 3)) == remainder(profile(0.3, 0.5), batch(3, 3))
