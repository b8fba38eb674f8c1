"""What the fleet works for: the rest of one batch, or one batch after the other without a gap; and how fast it is used.

docs/models.md, "Barrier and refill" and "TrainerBound".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl_planner.makespan import MAX_ROUNDS, end_chances
from pearl_planner.profile import turn_bin
from pearl_planner.routing import batch_size
from pearl_planner.types import Batch, Feeding

if TYPE_CHECKING:
    from pearl_planner.profile import Profile
    from pearl_planner.types import Policy, Snapshot

SOME_SHARE = 0.05
"""Trajectories beyond the open batch, as a share of it, that are evidence of refill."""
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
    beyond = live - len(batch.unfinished)
    if beyond >= max(2.0, SOME_SHARE * size):
        return Feeding.REFILL
    room = policy.window is None or policy.window > len(batch.unfinished)
    return Feeding.BARRIER if room and 2 * batch.finished >= size and beyond <= 0 else None


def whole_batch(batch: Batch) -> Batch:
    """The same batch before it began."""
    return Batch(batch.step, batch.groups, batch.group_size, batch.need_groups, 0, 0, 0, 0.0, ())


def turns_per_trajectory(profile: Profile) -> float | None:
    """Expected turns; None while no trajectory ended."""
    chances = end_chances(profile)
    if max(chances, default=0.0) <= 0:
        return None
    alive = total = 1.0
    for turn in range(1, MAX_ROUNDS):
        alive *= 1.0 - chances[turn_bin(turn)]
        total += alive
    return total


def trainer_floor_seconds(snapshot: Snapshot, policy: Policy) -> float:
    """Seconds per turn below which the trainer is the slower one; 0 = unknown."""
    trainer, profile = snapshot.trainer, snapshot.profile
    if trainer is None or not trainer.update_seconds or profile is None:
        return 0.0
    turns = turns_per_trajectory(profile)
    if turns is None:
        return 0.0
    return (1.0 - TRAINER_MARGIN) * trainer.update_seconds / (turns * batch_size(snapshot.batch, policy))
