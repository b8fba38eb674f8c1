"""What the fleet works for: the rest of one batch, or one batch after the other without a gap; and how fast it is used.

docs/models.md, "Barrier and refill" and "TrainerBound".
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pearl_planner.choice.evaluate import coarse_count, grid
from pearl_planner.choice.routing import batch_size
from pearl_planner.types import Feeding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pearl_planner.types import Policy, Snapshot

SOME_SHARE = 0.05
"""Trajectories beyond the open batch, as a share of it, that are evidence of refill."""
ROUNDS_GRID = 0.05
TRAINER_MARGIN = 0.1
"""Rollout must be faster than training by this much before GPUs are given back for it."""


def evident_feeding(snapshot: Snapshot, policy: Policy) -> Feeding | None:
    """What this look shows; None = it shows nothing."""
    if policy.max_staleness < 1:
        return Feeding.BARRIER
    if snapshot.feeding is not None:
        return snapshot.feeding
    batch, live = snapshot.batch, snapshot.measurements.live_trajectories
    if batch is None or live is None or batch.started < batch.groups * batch.group_size:
        return None
    size = batch.groups * batch.group_size
    beyond = max(live - len(batch.unfinished), batch.started - size)
    if beyond >= max(2.0, SOME_SHARE * size):
        return Feeding.REFILL
    room = policy.window is None or policy.window > len(batch.unfinished)
    return Feeding.BARRIER if room and 2 * batch.finished >= size and beyond <= 0 else None


def held_up(snapshot: Snapshot, policy: Policy) -> bool:
    """Whether the trainer waits for groups to become complete while the staleness bound admits no further group.

    Then nobody takes the places of those that end, as with a barrier.
    """
    trainer, batch, live = snapshot.trainer, snapshot.batch, snapshot.measurements.live_trajectories
    if trainer is None or batch is None or live is None or not trainer.waiting_seconds:
        return False
    if batch.complete_groups >= batch.need_groups:
        return False
    admitted = live + (trainer.ready_trajectories or 0)
    return admitted + batch.group_size > (policy.max_staleness + 1) * batch.groups * batch.group_size


def full_flight(snapshot: Snapshot, policy: Policy) -> int:
    """Trajectories in flight with refill when the window is full: no more than were seen lately."""
    bound = (policy.max_staleness + 1) * batch_size(snapshot.batch, policy)
    window = policy.window or bound
    live = snapshot.measurements.live_trajectories or 0
    peak = snapshot.memory.live_peak
    return max(live, min(window, bound, round(peak) if peak is not None else live))


def next_flight(snapshot: Snapshot, policy: Policy) -> int:
    """Trajectories in flight with refill in the near future: the window fills as far as the staleness bound admits."""
    full, trainer, batch = full_flight(snapshot, policy), snapshot.trainer, snapshot.batch
    if trainer is None or not trainer.waiting_seconds or (batch and batch.complete_groups >= batch.need_groups):
        return full
    bound = (policy.max_staleness + 1) * batch_size(snapshot.batch, policy)
    live = snapshot.measurements.live_trajectories or 0
    return max(live, min(full, bound - (trainer.ready_trajectories or 0)))


def rounds_of(shares: Sequence[float], size: int) -> tuple[tuple[int, float], ...]:
    """(alive, rounds) of a batch of `size` whose trajectories make at most s turns with chance `shares[s]`.

    A round is one more turn of everybody alive; rounds are gathered at `size`, a quarter of it, and so on down to one.
    """
    found: dict[int, float] = {}
    for share in shares[:-1]:
        alive = max(size * (1.0 - share), 1.0)
        step = round(math.log(size / alive, 4)) if size > 1 else 0
        place = max(1, coarse_count(size) // 4**step)
        found[place] = found.get(place, 0.0) + alive / place
    return tuple((alive, grid(rounds, ROUNDS_GRID)) for alive, rounds in sorted(found.items(), reverse=True))


def trainer_floor_seconds(snapshot: Snapshot, policy: Policy, turns_per_trajectory: float | None) -> float:
    """Seconds per turn below which the trainer is the slower one; 0 = unknown."""
    trainer = snapshot.trainer
    if trainer is None or not trainer.update_seconds or not turns_per_trajectory:
        return 0.0
    turns = turns_per_trajectory * batch_size(snapshot.batch, policy)
    return (1.0 - TRAINER_MARGIN) * trainer.update_seconds / turns
