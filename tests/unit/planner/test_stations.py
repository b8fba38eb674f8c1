"""Mean values of the stations against the exact product form, and against engines replayed step by step elsewhere."""

from __future__ import annotations

import math

import pytest

from pearl_planner.engine.model import EngineTable
from pearl_planner.prediction.makespan import Member, settle
from pearl_planner.prediction.queueing import Network, solve
from pearl_planner.prediction.stations import Presence, Stations, Turn
from pearl_planner.types import Shape

STEP, PER_SEQUENCE = 0.00423, (0.0065 + 0.0242 * 16) / 1000
TABLE = EngineTable("calibrated", STEP, PER_SEQUENCE, 0.0, 0.0, 25e-6, 0.0, transfer_fixed_seconds=0.0)
TURN = Turn(16_000.0, 0.0, 4000.0, 0.0, 200.0)


def turns_per_second(shape: Shape, running: float, variation: float = 1.0) -> float:
    stations = Stations(shape, TABLE, variation=variation, placed=running)
    return settle(stations, TURN, [Member(running, 1.0, 1.0, 200.0)], running).turns_per_second


@pytest.mark.parametrize(("prefill", "decode"), [(1, 1), (2, 3), (3, 3), (3, 5), (4, 4), (4, 9), (4, 12)])
def test_mean_values_are_close_to_the_product_form(prefill: int, decode: int) -> None:
    exact = solve(Network(prefill, 0.1, decode, lambda n: 200 * (STEP + PER_SEQUENCE * n), 1.0), 64).at(64)
    assert turns_per_second(Shape(0, prefill, decode), 64.0) == pytest.approx(exact, rel=0.05)


def test_one_trajectory_never_waits() -> None:
    # 0.1 s prefill, 200 steps of 4.6237 ms and half a step, 1 s of environment
    alone = 0.1 + 200.5 * (STEP + PER_SEQUENCE) + 1.0
    assert turns_per_second(Shape(0, 2, 3), 1.0) == pytest.approx(1 / alone, rel=1e-6)


def test_prefill_that_varies_less_waits_less() -> None:
    assert turns_per_second(Shape(0, 2, 6), 32.0, 0.0) > turns_per_second(Shape(0, 2, 6), 32.0, 1.0)


def test_a_full_station_does_no_more_than_it_can() -> None:
    assert turns_per_second(Shape(0, 2, 30), 500.0) <= 2 / 0.1 * 1.02


def test_survivors_of_an_even_placement_meet_each_other_by_chance() -> None:
    # Eight on eight workers: nobody meets anybody. Sixteen on eight: each met one, of 15 others.
    stations = Stations(Shape(8), TABLE, placed=8.0)
    turn = Turn(16_000.0, 0.0, 0.0, 1.0, 200.0)
    assert stations.slowness(turn, Presence(8.0, 0.0, 0.0, 8.0), 8.0).per_token == pytest.approx(STEP + PER_SEQUENCE)
    pairs = Stations(Shape(8), TABLE, placed=16.0).slowness(turn, Presence(16.0, 0.0, 0.0, 16.0), 16.0)
    assert pairs.per_token == pytest.approx(STEP + 2 * PER_SEQUENCE)
    assert math.isfinite(pairs.per_turn)
