from __future__ import annotations

import json

import pytest
from planner_fleet import turns

from pearl_planner.makespan import end_chances
from pearl_planner.profile import Profile, TrajectoryRecord, TurnRecord, token_bin, turn_bin, update


def turn(number: int = 1, **changes: object) -> TurnRecord:
    facts: dict[str, object] = {"appended_tokens": 100, "generated_tokens": 20, "context_tokens": 500, **changes}
    return TurnRecord(trajectory="a", turn=number, **facts)  # type: ignore[arg-type]


def test_means_follow_a_change_of_phase() -> None:
    profile = update(None, [turn(appended_tokens=40)] * 500)
    assert profile.appended.mean == pytest.approx(40)
    profile = update(profile, [turn(appended_tokens=600)] * 64)  # one half-life
    assert profile.appended.mean == pytest.approx(320, rel=0.03)
    assert profile.turns == 564
    assert profile.effective_turns == pytest.approx(64 / 0.693, rel=0.03)  # how sure it can ever be


def test_evaluation_traffic_and_impossible_numbers_leave_no_trace() -> None:
    evil = [turn(appended_tokens=-1), turn(context_tokens=float("nan")), turn(generated_tokens=float("inf"))]
    before = update(None, [turn()])
    assert update(before, [turn(kind="eval", appended_tokens=9999), *evil]) == before


def test_the_retained_share_is_of_what_was_generated_before() -> None:
    profile = update(None, [turn(2, previous_generated_tokens=200, retained_tokens=50)])
    assert profile.retained.mean == pytest.approx(0.25)


def test_misses_are_what_the_route_need_not_prefill() -> None:
    base = {"context_tokens": 1000, "appended_tokens": 100, "previous_generated_tokens": 50, "retained_tokens": 50}
    colocated = update(None, [turn(2, route="colocated", cached_tokens=900, **base)])
    assert colocated.missed["colocated"].mean == 0.0
    remote = update(None, [turn(2, route="disaggregated", cached_tokens=700, **base)])
    assert remote.missed["disaggregated"].mean == pytest.approx(150)  # 300 prefilled, 150 of them had to be


def test_unfinished_trajectories_are_censored_not_short() -> None:
    # Two end after turn 1; two go on to turn 2 and are still running.
    records = [turn(1) for _ in range(4)] + [turn(2), turn(2)]
    records_end = [TrajectoryRecord("a", 1), TrajectoryRecord("b", 1)]
    profile = update(None, [*records, *records_end])
    assert profile.ended[0] == pytest.approx(2, rel=0.03)
    assert profile.continued[0] == pytest.approx(2, rel=0.03)
    assert end_chances(profile)[0] == pytest.approx(0.5, abs=0.01)
    aborted = update(profile, [TrajectoryRecord("c", 1, cause="aborted")])
    assert aborted.ended == profile.ended
    assert aborted.aborted == 1


def test_bins() -> None:
    assert [turn_bin(n) for n in (1, 32, 33, 64, 65, 10**9)] == [0, 31, 32, 32, 33, 37]
    assert [token_bin(n) for n in (0, 1, 2, 3, 4, 1024, 10**9)] == [0, 0, 1, 1, 2, 10, 19]


def test_the_sketch_is_small_and_comes_back() -> None:
    profile = turns(600, 16)
    text = json.dumps(profile.to_dict())
    assert len(text) < 8192
    again = Profile.from_dict(json.loads(text))
    assert again is not None
    assert again.appended.mean == pytest.approx(profile.appended.mean)
    assert again.to_dict() == profile.to_dict()
    assert Profile.from_dict({"version": 99}) is None
    assert Profile.from_dict(None) is None
