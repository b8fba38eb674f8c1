"""A burst ahead: first prompts of a whole batch press the prefill worker, though the mean turn does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planner_fleet import Fleet, budget, policy

from pearl_planner.choice.ahead import HORIZON_SECONDS, lasting, pressed, with_mix
from pearl_planner.choice.evaluate import Situation
from pearl_planner.choice.situation import situation
from pearl_planner.types import Batch, Measurements, Mode, Shape, Trajectory
from pearl_planner.workload.profile import update
from pearl_planner.workload.records import TrajectoryRecord, TurnRecord

SHAPE = Shape(0, 1, 2)


def fleet(turns_done: int) -> Fleet:
    """20 trajectories in the engines; first prompts have 2000 tokens, later ones 20, answers 20."""
    records: list[TurnRecord | TrajectoryRecord] = []
    for number in range(20):
        records += [
            TurnRecord(str(number), turn, 2000 if turn == 1 else 20, 20, 2000 + 40 * turn, retained_tokens=20)
            for turn in range(1, 9)
        ]
        records.append(TrajectoryRecord(str(number), 8))
    found = Fleet(budget(3), policy(modes=(Mode.DISAGGREGATED,)))
    found.profile = update(None, records)
    found.measurements = Measurements(1.0, live_trajectories=20)
    running = tuple(Trajectory("g", turns_done, 2000) for _ in range(20))
    found.batch = Batch(0, 1, 20, 1, 0, 20, 0, 1.0, running)
    return found


def known(one: Fleet) -> Situation:
    found = situation(one.snapshot(), one.policy)
    assert isinstance(found, Situation)
    return found


def test_first_prompts_of_all_are_more_than_one_prefill_worker_can_do() -> None:
    # 20 · 5 s of prefill in 30 s for one worker, 20 answers of 20 tokens for two: far more prefill than usual.
    one = fleet(0)
    factor = pressed(one.snapshot(), known(one), SHAPE)
    assert factor == 4.0  # the most that is believed
    burst = with_mix(known(one), factor)
    assert burst.load.appended_tokens == pytest.approx(4 * known(one).load.appended_tokens, rel=0.04)
    assert (burst.horizon_seconds, burst.returns, burst.load.rest) == (HORIZON_SECONDS, True, None)


def test_answers_under_way_press_nobody() -> None:
    one = fleet(4)
    assert pressed(one.snapshot(), known(one), SHAPE) is None
    assert pressed(one.snapshot(), known(one), Shape(3)) is None
    assert pressed(replace(one.snapshot(), batch=None), known(one), SHAPE) is None


def test_what_is_over_before_a_flip_is_none_of_it() -> None:
    assert not lasting(None, None, 100.0)
    assert not lasting(99.5, None, 100.0)
    assert lasting(98.0, None, 100.0)
    assert not lasting(98.0, 6.0, 100.0)
