from __future__ import annotations

import json
import time

import pytest
from planner_fleet import turns

from pearl_planner.prediction.makespan import end_chances
from pearl_planner.workload.bins import stage, wait_bin
from pearl_planner.workload.profile import Profile, TrajectoryRecord, TurnRecord, token_bin, turn_bin, update


def turn(number: int = 1, /, **changes: object) -> TurnRecord:
    facts: dict[str, object] = {"appended_tokens": 100, "generated_tokens": 20, "context_tokens": 500, **changes}
    return TurnRecord(trajectory="a", turn=number, **facts)  # type: ignore[arg-type]


def test_a_change_of_phase_is_noticed_within_the_turns_of_one_small_batch() -> None:
    profile = update(None, [turn(2, appended_tokens=40)] * 500)
    assert profile.appended.mean == pytest.approx(40)
    profile = update(profile, [turn(2, appended_tokens=600)] * 64)
    # Noticed after 16 turns at the earliest; from then on what was known weighs 16 turns.
    assert 350 < profile.appended.mean < 700
    assert profile.turns == 564
    assert profile.effective_turns == pytest.approx(16 + 64 - 18, abs=4)


def test_single_turns_change_phase_too() -> None:
    profile = update(None, [turn(1, appended_tokens=1500, generated_tokens=2)] * 600)
    profile = update(profile, [turn(1, appended_tokens=20, generated_tokens=200)] * 48)
    assert profile.appended.mean < 200
    assert profile.generated.mean > 100


def test_groups_with_long_and_short_prompts_are_no_change_of_phase() -> None:
    groups = [turn(1, appended_tokens=tokens) for tokens in (200, 3000, 800, 400, 1600) for _ in range(16)]
    assert update(None, groups * 5).effective_turns > 390


def test_trajectories_in_no_group_change_phase_out_of_a_mixture_too() -> None:
    def alone(number: int, appended: int) -> TurnRecord:
        name = f"t{number}"
        return TurnRecord(name, 1, appended, generated_tokens=50, context_tokens=appended, group=name)

    mixture = [alone(number, (20, 1500)[number % 2]) for number in range(1000)]
    profile = update(None, mixture)
    assert profile.effective_turns > 950, "a mixture is no change of phase"
    profile = update(profile, [alone(number, 1500) for number in range(96)])
    assert profile.appended.mean > 1300


def test_noise_is_no_change_of_phase() -> None:
    noisy = [turn(2, appended_tokens=number) for number in (5, 20, 80, 320, 1280)] * 100
    profile = update(update(None, noisy), noisy)
    # (1 − 2^(−1000/16384)) / (1 − 2^(−1/16384)): 1000 turns that fade with a half-life of 16,384
    assert profile.effective_turns == pytest.approx(979, abs=1)


def test_a_long_environment_makes_a_phase_too() -> None:
    profile = update(None, [turn(2, environment_seconds=0.5)] * 200)
    profile = update(profile, [turn(2, environment_seconds=10.0)] * 64)
    assert profile.environment.mean > 6


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


def test_what_a_change_of_the_fleet_makes_cold_is_no_miss_of_the_route() -> None:
    cold = {"context_tokens": 1000, "appended_tokens": 100, "route": "disaggregated", "cached_tokens": 0}
    assert not update(None, [turn(2, moved=True, **cold)]).missed
    assert update(None, [turn(2, **cold)]).missed["disaggregated"].mean == pytest.approx(900)


def test_routes_that_served_other_parts_of_the_trajectories_are_compared_by_the_same_history() -> None:
    # Both miss a tenth of the history: one early, when it has 1,000 tokens, the other late, when it has 9,000.
    early = turn(2, route="colocated", appended_tokens=100, context_tokens=1100, cached_tokens=900)
    late = turn(9, route="disaggregated", appended_tokens=100, context_tokens=9100, cached_tokens=8100)
    profile = update(None, [early] * 30 + [late] * 10)
    assert profile.missed_tokens() == pytest.approx({"colocated": 300.0, "disaggregated": 300.0}, rel=0.01)
    assert Profile.from_dict(profile.to_dict()).missed_tokens() == pytest.approx(profile.missed_tokens(), rel=1e-4)


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


def test_siblings_are_alike_as_far_as_their_lengths_are() -> None:
    lengths = {"a": 4, "b": 16, "c": 8, "d": 32}
    equal = [TrajectoryRecord(f"{g}{i}", n, g) for g, n in lengths.items() for i in range(8)]
    assert update(None, equal).likeness > 0.6  # 112 equal pairs against 60 of a prior with 0.3
    mixed = [TrajectoryRecord(f"{g}{i}", 4 + 28 * (i % 2), g) for g in lengths for i in range(8)]
    assert update(None, mixed).likeness < 0.15
    assert update(None, []).likeness == pytest.approx(0.3)


def test_only_part_of_a_shared_first_prompt_is_computed() -> None:
    base = {"context_tokens": 1000, "appended_tokens": 1000, "route": "colocated"}
    profile = update(None, [turn(1, cached_tokens=0, **base), turn(1, cached_tokens=999, **base)])
    assert profile.first_computed.mean == pytest.approx(500.5, abs=0.5)
    assert not profile.missed


def test_many_records_cost_a_few_microseconds_each() -> None:
    records = [turn(k % 9 + 1, environment_seconds=1.0, cached_tokens=400, route="colocated") for k in range(4000)]
    begin = time.process_time()
    update(None, records)
    assert (time.process_time() - begin) / len(records) < 5e-6 * 8  # room for a busy machine


def test_bins() -> None:
    assert [turn_bin(n) for n in (1, 32, 64, 65, 128, 129, 10**9)] == [0, 31, 63, 64, 64, 65, 69]
    assert [stage(n) for n in (1, 2, 3, 4, 5, 64, 65, 10**6)] == [0, 1, 2, 2, 3, 6, 7, 7]
    assert [wait_bin(seconds) for seconds in (0.0, 2.0**-8, 1.0, 1.5, 10**9)] == [0, 0, 16, 17, 47]
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
    first = {"version": 1, "generated": [20, 16, 0], "appended": [20, 600, 4], "context": [20, 900, 0]}
    old = Profile.from_dict(first)  # a sketch from before stages
    assert old is not None
    assert update(old, [turn(2, appended_tokens=600)]).appended.mean == pytest.approx(600)
    assert Profile.from_dict(None) is None
