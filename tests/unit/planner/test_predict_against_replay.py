"""The closed form against engines replayed step by step: the numbers are close and the order is right."""

from __future__ import annotations

import random

import pytest
from planner_fleet import TABLE, turns
from step_replay import Replay

from pearl_planner.prediction.mean_turn import workload
from pearl_planner.prediction.predict import predict
from pearl_planner.types import Shape

SHAPES = (Shape(3), Shape(0, 1, 2), Shape(0, 2, 1))


@pytest.mark.parametrize(("appended", "generated"), [(40, 120), (600, 16), (200, 60)])
def test_predicted_throughput_is_close_to_the_replay_and_ranks_the_shapes_alike(appended: int, generated: int) -> None:
    load = workload(turns(appended, generated, wait=1.0), 12, None)
    assert load is not None
    predicted, replayed = [], []
    for shape in SHAPES:
        predicted.append(predict(shape, load, TABLE).prediction.turns_per_second or 0.0)
        replay = Replay(shape, TABLE, appended, generated, 800, 1.0, 1500.0, random.Random(7))
        replayed.append(replay.run(12))
    assert predicted == pytest.approx(replayed, rel=0.1)
    order = sorted(range(3), key=predicted.__getitem__)
    assert order == sorted(range(3), key=replayed.__getitem__)
