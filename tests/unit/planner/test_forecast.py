from __future__ import annotations

import pytest
from planner_fleet import TABLE, turns

from pearl_planner.prediction.forecast import Demand, forecast
from pearl_planner.types import Trajectory

PROFILE = turns(100, 20, wait=2.0)  # every wait lasts two seconds


def demand(*live: Trajectory, seconds: float, remote: bool = True) -> Demand:
    return forecast(live, PROFILE, TABLE, seconds, sequences=1.0, remote=remote)


def test_those_that_come_back_within_the_horizon_need_their_prefill() -> None:
    waiting = Trajectory("g", 3, 800, idle_seconds=1.0)
    soon = demand(waiting, seconds=4.0)
    assert soon.prefill_tokens == pytest.approx(120)  # 100 new ones and the 20 of the answer before
    assert soon.prefill_seconds == pytest.approx(0.030 + 120 * 0.0025)
    assert demand(waiting, seconds=4.0, remote=False).prefill_tokens == pytest.approx(100)
    assert demand(waiting, seconds=0.25).prefill_tokens == pytest.approx(0.0)


def test_answers_in_progress_need_what_is_left_of_them_or_what_fits_the_horizon() -> None:
    # A step of one sequence takes 34 ms; answers of 20 tokens are met half-way.
    decoding = Trajectory("g", 3, 800)
    assert demand(decoding, seconds=10.0).decode_tokens == pytest.approx(10)
    assert demand(decoding, seconds=0.17).decode_tokens == pytest.approx(5)
    assert demand(decoding, seconds=10.0).decode_seconds == pytest.approx(10 * 0.034)
    assert demand(decoding, seconds=10.0).prefill_tokens == 0.0


def test_who_outlasted_every_known_wait_comes_back_now() -> None:
    late = demand(Trajectory("g", 3, 800, idle_seconds=1e6), seconds=1.0)
    assert late.prefill_tokens == pytest.approx(120)
