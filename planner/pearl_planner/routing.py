"""What the gateway applies: the local append threshold and the in-flight window."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl_planner.numbers import known_count
from pearl_planner.types import RoutingParameters

if TYPE_CHECKING:
    from pearl_planner.predict import Forecast
    from pearl_planner.types import Batch, Policy, Shape, Snapshot


def batch_size(batch: Batch | None, policy: Policy) -> int:
    """Trajectories of one batch, from the open one or from the priors of the spec."""
    if batch is not None:
        return batch.groups * batch.group_size
    return max(1, policy.prior_groups) * max(1, policy.prior_group_size)


def recommended_window(snapshot: Snapshot, policy: Policy, shape: Shape) -> int:
    """W ≤ (η + 1)·B − finished but not consumed, within the KV room of the workers that decode; at least one."""
    batch = snapshot.batch
    size = batch_size(batch, policy)
    window = (max(policy.max_staleness, 0) + 1) * size - (batch.finished if batch else 0)
    room = _kv_room(snapshot, policy, shape)
    return max(1, window if room is None else min(window, room))


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
    capacity = policy.table.kv_capacity_tokens
    context = snapshot.profile.context.known_mean() if snapshot.profile else None
    holders = shape.colocated + shape.decode
    if not capacity or not context or not holders:
        return None
    return max(1, int(holders * capacity / context))
