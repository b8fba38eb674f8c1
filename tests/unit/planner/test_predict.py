from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from planner_fleet import TABLE, turns

from pearl_planner.prediction.local_append import local_append_tokens, split_appends
from pearl_planner.prediction.mean_turn import Workload, workload
from pearl_planner.prediction.predict import predict, stations_of, steady_rate, turn_of
from pearl_planner.prediction.stations import Presence, Slowness, Stations
from pearl_planner.types import Shape
from pearl_planner.workload.profile import Profile

if TYPE_CHECKING:
    from pearl_planner.engine.model import EngineTable


def load(appended: int, generated: int, *, trajectories: int = 12, wait: float = 1.0) -> Workload:
    result = workload(turns(appended, generated, wait=wait), trajectories, None)
    assert result is not None
    return result


def rates(one: Workload, shapes: tuple[Shape, ...] = (Shape(3), Shape(0, 1, 2), Shape(0, 2, 1))) -> list[float]:
    return [predict(shape, one, TABLE).prediction.turns_per_second or 0.0 for shape in shapes]


def slowness(shape: Shape, one: Workload, table: EngineTable = TABLE, *, decoding: float = 0.0) -> Slowness:
    """With one trajectory in flight, or with `decoding` of many at the workers."""
    running = 1e9 if decoding else 1.0
    at = Presence(running, 0.0, 0.0, decoding)
    return stations_of(shape, one, table, math.inf).slowness(turn_of(shape, one, 0), at, float(one.trajectories))


def test_tokens_to_prefill_are_derived_per_mode() -> None:
    one = load(100, 20)
    # Colocated, four others on two workers: each of three sequences pays 100 · 2.5 ms three times, and half a step.
    shared = slowness(Shape(2), one, decoding=4.0)
    assert shared.per_token == pytest.approx(0.030 + 3 * 0.004)
    assert shared.per_turn == pytest.approx(3 * 0.25 + 0.021)
    # Elsewhere: the 20 generated tokens again, a step's fixed 30 ms, 5 ms of hand-off and half a step of 34 ms.
    remote = slowness(Shape(0, 1, 1), one)
    assert remote.per_prefill == pytest.approx(0.030 + 120 * 0.0025)
    assert remote.per_turn == pytest.approx(0.030 + 120 * 0.0025 + 0.005 + 0.017)
    assert remote.per_token == pytest.approx(0.034)


def test_a_miss_rate_of_one_mode_is_not_carried_to_another() -> None:
    one = replace(load(100, 20), missed_tokens=(("colocated", 40.0),))
    assert slowness(Shape(2), one).per_turn == pytest.approx(140 * 0.0025 + 0.017)
    assert slowness(Shape(0, 1, 1), one).per_prefill == pytest.approx(0.030 + 120 * 0.0025)


def test_history_that_no_longer_fits_the_prefill_caches_is_prefilled_again() -> None:
    # 12 contexts of 800 tokens = 9,600; one prefill worker holds 4,800: (1 − 0.5^1.5) of the other 680 are lost.
    table = replace(TABLE, kv_capacity_tokens=4800)
    lost = (1 - 0.5**1.5) * 680
    assert slowness(Shape(0, 1, 2), load(100, 20), table).per_prefill == pytest.approx(0.030 + (120 + lost) * 0.0025)


def test_the_prefix_cache_cliff_of_a_published_replay() -> None:
    # docs/models.md, "Caches": prefix reuse 0.30 / 0.59 / 0.90 with 2 / 3 / 4 prefill workers of 782 thousand tokens
    # and 128 sessions of about 25 thousand.
    table = replace(TABLE, kv_capacity_tokens=782_000)
    for workers, reuse in ((2, 0.30), (3, 0.59), (4, 0.90)):
        computed = Stations(Shape(0, workers, 8 - workers), table).computed(1500, 25_000, 128, workers)
        assert 1 - computed / 25_000 == pytest.approx(reuse, abs=0.06)


def test_a_decode_worker_without_kv_room_makes_turns_wait() -> None:
    # Two contexts of 800 fit; of five sequences that are there three wait: a token takes 2.5 times a step of two.
    table = replace(TABLE, kv_capacity_tokens=1600)
    assert slowness(Shape(0, 1, 1), load(40, 100), table, decoding=4.0).per_token == pytest.approx(2.5 * 0.038)


def test_interference_is_paid_by_workers_that_do_both() -> None:
    table, one = replace(TABLE, interference_seconds=0.5), load(100, 20)
    assert slowness(Shape(2), one, table).per_turn - slowness(Shape(2), one).per_turn == pytest.approx(0.5)
    assert slowness(Shape(0, 1, 1), one, table) == slowness(Shape(0, 1, 1), one)
    assert local_append_tokens(one, table, sequences=2) < local_append_tokens(one, TABLE, sequences=2)


def test_appends_that_cost_less_than_the_hand_off_stay_on_the_decode_worker() -> None:
    # Here: 2.5 ms a token for each of the two sequences. Elsewhere: 100 tokens again, 30 ms, 5 ms and once a token.
    # Equal at 250 + 35 = 2.5·c, so at 114 tokens; the threshold is the power of two below.
    assert local_append_tokens(load(40, 100), TABLE, sequences=2) == 64
    assert local_append_tokens(load(40, 100), TABLE, sequences=200) == 0
    assert local_append_tokens(load(40, 100), TABLE, sequences=1) == 65536  # nobody is held up


def test_the_share_of_local_turns_comes_from_the_histogram() -> None:
    bins = [0.0] * 20
    bins[5], bins[9] = 3.0, 1.0  # three of 32–63 tokens, one of 512–1023
    one = replace(load(40, 100), appended_bins=tuple(bins), appended_tokens=228.0)
    share, local, remote = split_appends(one, 64)
    assert share == 0.75
    assert share * local + (1 - share) * remote == pytest.approx(228.0)
    assert local == pytest.approx(48 * 228 / 228)
    assert remote == pytest.approx(768)


def test_a_turn_that_misses_much_is_not_prefilled_on_the_decode_worker() -> None:
    bins = [0.0] * 20
    bins[5] = 4.0  # all of 32–63 tokens
    one = replace(load(40, 100), appended_bins=tuple(bins), missed_tokens=(("disaggregated", 9000.0),))
    # The gateway compares 40 + 9000 uncached tokens with the threshold.
    assert turn_of(Shape(0, 1, 1), one, 64).local_share == 0.0
    assert turn_of(Shape(0, 1, 1), replace(one, missed_tokens=()), 64).local_share == 1.0
    measured = replace(one, missed_tokens=(("disaggregated", 9000.0), ("local", 0.0)))
    assert turn_of(Shape(0, 1, 1), measured, 64).local_share == 1.0


def test_decode_heavy_and_prefill_heavy_work_want_opposite_ratios() -> None:
    for trajectories in (6, 12, 24):
        _, one_two, two_one = rates(load(40, 120, trajectories=trajectories))
        assert one_two > 1.2 * two_one
        _, one_two, two_one = rates(load(600, 16, trajectories=trajectories))
        assert two_one > 1.5 * one_two


def test_a_clean_engine_favours_colocated_workers_that_share_all_work() -> None:
    colocated, *others = rates(load(40, 120))
    assert colocated > max(others)


def test_disaggregation_wins_where_the_kv_room_or_the_prefill_stall_decides() -> None:
    # 64 sequences on 3 workers whose steps barely grow with the batch: two decode workers lose little, and the
    # colocated ones pay a fixed 2 s of extra prefill step for every turn of every neighbour.
    table = replace(TABLE, decode_per_sequence_seconds=0.0, prefill_fixed_seconds=2.0, prefill_per_token_seconds=0.0)
    colocated = predict(Shape(3), load(40, 120, trajectories=24), table).prediction.turns_per_second or 0.0
    split = predict(Shape(0, 1, 2), load(40, 120, trajectories=24), table).prediction.turns_per_second or 0.0
    assert split < colocated  # one prefill worker is the bottleneck: 0.5 turns a second
    batched = replace(table, prefill_fixed_seconds=0.2)
    colocated = predict(Shape(3), load(40, 120, trajectories=24), batched).prediction.turns_per_second or 0.0
    split = predict(Shape(0, 1, 2), load(40, 120, trajectories=24), batched).prediction.turns_per_second or 0.0
    assert split > colocated


def test_the_threshold_in_force_stays_unless_another_is_clearly_better() -> None:
    one = load(40, 120, trajectories=6)  # every append is of 40 tokens
    assert predict(Shape(0, 1, 2), one, TABLE).local_append_tokens == 64
    assert predict(Shape(0, 1, 2), one, TABLE, present_threshold=128).local_append_tokens == 128  # the same turns
    assert predict(Shape(0, 1, 2), one, TABLE, present_threshold=0).local_append_tokens == 64


def test_what_does_not_fit_is_not_feasible() -> None:
    tiny = replace(TABLE, kv_capacity_tokens=100)  # one context of 800 tokens does not fit
    assert not predict(Shape(3), load(40, 120), tiny).prediction.feasible
    assert not predict(Shape(), load(40, 120), TABLE).prediction.feasible
    broken = replace(TABLE, decode_fixed_seconds=float("nan"))
    assert not predict(Shape(3), load(40, 120), broken).prediction.feasible


def test_trajectories_per_second_are_turns_over_the_turns_of_one() -> None:
    one = load(40, 120)  # eight turns each
    turns_per_second = predict(Shape(3), one, TABLE).prediction.turns_per_second or 0.0
    assert steady_rate(Shape(3), one, TABLE) == pytest.approx(turns_per_second / 8, rel=0.01)


def test_too_few_turns_predict_nothing() -> None:
    assert workload(Profile(), 8, None) is None


@pytest.mark.slow
def test_one_evaluation_of_64_trajectories_takes_two_milliseconds() -> None:
    one = load(40, 120, trajectories=64)
    best = min(_seconds(lambda: predict(Shape(0, 3, 5), one, TABLE)) for _ in range(20))
    assert best < 0.002


def _seconds(call: object) -> float:
    begin = time.perf_counter()
    call()  # type: ignore[operator]
    return time.perf_counter() - begin


def test_a_decode_worker_that_prefills_everything_itself_is_a_colocated_worker() -> None:
    bins = tuple(100.0 if k == 4 else 0.0 for k in range(20))  # appends of 16 to 31 tokens
    for generated in (4.0, 200.0):
        one = replace(load(24.0, generated), trajectories=24, appended_bins=bins)
        here = predict(Shape(0, 1, 2), one, TABLE, present_threshold=1024)
        assert here.local_append_tokens == 1024
        rate = predict(Shape(2), one, TABLE).prediction.turns_per_second
        assert here.prediction.turns_per_second == pytest.approx(rate, rel=0.03)
