"""What holds for every prediction: finite where feasible, and better engines, workers and caches never hurt."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from planner_fleet import TABLE, turns

from pearl_planner.prediction.mean_turn import Workload, workload
from pearl_planner.prediction.paths import remainder
from pearl_planner.prediction.predict import predict
from pearl_planner.types import Batch, Shape, Trajectory

SLACK = 1.02
"""Settled to a tolerance, over steps of time."""
tokens = st.integers(1, 3000)
shapes = st.one_of(
    st.builds(Shape, st.integers(1, 12)), st.builds(Shape, st.just(0), st.integers(1, 8), st.integers(1, 8))
)
loads = st.tuples(tokens, tokens, st.floats(0.0, 30.0), st.integers(1, 40), st.integers(1, 40))


def load_of(drawn: tuple[int, int, float, int, int], *, paths: int = 12) -> Workload:
    appended, generated, wait, length, size = drawn
    profile = turns(appended, generated, wait=wait, length=length)
    running = tuple(Trajectory("g", k % (length + 1), 800, 1.0 if k % 3 else None) for k in range(size))
    batch = Batch(0, 2, size, 2, 0, size, 0, 0.0, running)
    found = workload(profile, 2 * size, remainder(profile, batch, paths=paths))
    assert found is not None
    return found


def seconds(shape: Shape, load: Workload, **changes: float) -> float:
    return predict(shape, load, replace(TABLE, **changes)).value_seconds  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(loads, shapes)
def test_predictions_are_finite_and_quantiles_ordered(drawn: tuple[int, int, float, int, int], shape: Shape) -> None:
    found = predict(shape, load_of(drawn), TABLE)
    assert found.prediction.feasible
    assert found.makespan is not None
    assert 0 < found.makespan.q10 <= found.makespan.q50 <= found.makespan.q90
    assert math.isfinite(found.makespan.mean)
    assert found.prediction.turns_per_second is not None
    assert 0 < found.prediction.turns_per_second < math.inf


@settings(max_examples=40, deadline=None)
@given(loads, shapes, st.floats(1.1, 5.0))
def test_slower_engines_smaller_caches_and_interference_never_help(
    drawn: tuple[int, int, float, int, int], shape: Shape, factor: float
) -> None:
    load = load_of(drawn)
    base = seconds(shape, load)
    assert predict(shape, load, TABLE.scaled(factor)).value_seconds * SLACK >= base
    assert seconds(shape, load, kv_capacity_tokens=1600) * SLACK >= base
    both = Shape(shape.workers)  # a split shape may answer with another threshold for local prefill
    assert seconds(both, load, interference_seconds=factor) * SLACK >= seconds(both, load)


@settings(max_examples=40, deadline=None)
@given(loads, st.integers(1, 10))
def test_more_workers_of_every_kind_never_hurt(drawn: tuple[int, int, float, int, int], count: int) -> None:
    load = load_of(drawn)
    assert seconds(Shape(2 * count), load) <= seconds(Shape(count), load) * SLACK
    assert seconds(Shape(0, 2 * count, 2 * count), load) <= seconds(Shape(0, count, count), load) * SLACK


@settings(max_examples=30, deadline=None)
@given(loads, shapes)
def test_an_unlimited_cache_is_no_cache_limit(drawn: tuple[int, int, float, int, int], shape: Shape) -> None:
    load = load_of(drawn)
    assert seconds(shape, load, kv_capacity_tokens=10**9) == seconds(shape, load)
