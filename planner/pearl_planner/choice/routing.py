"""What the gateway applies: the local append threshold and the in-flight window."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pearl_planner.choice.evaluate import coarse, coarse_count, forecast_of, measured_table
from pearl_planner.engine.model import sane_table
from pearl_planner.numbers import known_count
from pearl_planner.prediction.mean_turn import workload
from pearl_planner.types import RoutingParameters

if TYPE_CHECKING:
    from pearl_planner.prediction.predict import Forecast
    from pearl_planner.types import Batch, Policy, Shape, Snapshot

NOTICEABLE = 0.01
"""More in flight must raise the throughput by this much."""
WINDOW_STEPS = 12
"""Windows tried, from a small one to the limit."""


def batch_size(batch: Batch | None, policy: Policy) -> int:
    """Trajectories of one batch, from the open one or from the priors of the spec."""
    if batch is not None:
        return batch.groups * batch.group_size
    return max(1, policy.prior_groups) * max(1, policy.prior_group_size)


def recommended_window(snapshot: Snapshot, policy: Policy, shape: Shape) -> int:
    """W ≤ (η + 1)·B − finished but not consumed, within KV room, and no more than what still raises the throughput."""
    batch = snapshot.batch
    size = batch_size(batch, policy)
    window = (max(policy.max_staleness, 0) + 1) * size - (batch.finished if batch else 0)
    room = _kv_room(snapshot, policy, shape)
    limit = max(1, window if room is None else min(window, room))
    # Who starts later ends later, and the longest trajectory decides when a batch is complete: never less than a batch.
    return limit if limit <= size else max(size, useful_window(snapshot, policy, shape, limit))


def useful_window(snapshot: Snapshot, policy: Policy, shape: Shape, limit: int) -> int:
    """The smallest window whose steady throughput is the best one up to `limit`, but for `NOTICEABLE`."""
    load = None if snapshot.profile is None else workload(snapshot.profile, limit, None)
    if load is None or not shape.workers or not sane_table(policy.table_of(shape.mode)):
        return limit
    load, table = coarse(load), measured_table(policy, snapshot.memory, shape.mode)
    rates: dict[int, float] = {}
    for step in range(1, WINDOW_STEPS + 1):
        window = max(limit * step // WINDOW_STEPS, 1)
        forecast = forecast_of(shape, replace(load, trajectories=coarse_count(window)), table, None, None)
        rates[window] = forecast.prediction.turns_per_second or 0.0
    best = max(rates.values())
    return min((window for window, rate in rates.items() if rate >= best * (1.0 - NOTICEABLE)), default=limit)


def routing(
    snapshot: Snapshot, policy: Policy, shape: Shape, forecast: Forecast | None
) -> tuple[RoutingParameters, int]:
    """Parameters in force, and the recommended window."""
    recommended = recommended_window(snapshot, policy, shape)
    fixed = known_count(policy.window)
    window = recommended if policy.window_automatic else fixed or None
    local = forecast.local_append_tokens if forecast else snapshot.memory.local_append_tokens or 0
    return RoutingParameters(local, window), recommended


def _kv_room(snapshot: Snapshot, policy: Policy, shape: Shape) -> int | None:
    capacity = policy.table_of(shape.mode).kv_capacity_tokens
    context = snapshot.profile.context.known_mean() if snapshot.profile else None
    holders = shape.colocated + shape.decode
    if not capacity or not context or not holders:
        return None
    return max(1, int(holders * capacity / context))
