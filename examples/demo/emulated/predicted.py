"""How long a batch takes at the rate that the planner predicts: on the shape it chose, and on a fixed fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl_planner.choice.situation import situation
from pearl_planner.types import Shape

if TYPE_CHECKING:
    from pearl_planner.choice.evaluate import Situation
    from pearl_planner.types import Plan, Policy, Snapshot


def predicted(
    snapshot: Snapshot, policy: Policy, plan: Plan, *, fixed_workers: int
) -> tuple[float | None, float | None]:
    """Seconds on the chosen shape and on `fixed_workers` colocated ones; None where nothing can be predicted."""
    known = situation(snapshot, policy)
    if isinstance(known, tuple):
        return None, None
    size = policy.prior_groups * policy.prior_group_size
    return _seconds(known, plan.shape, size), _seconds(known, Shape(colocated=fixed_workers), size)


def _seconds(known: Situation, shape: Shape, size: int) -> float | None:
    turns, rate = known.load.turns_per_trajectory, known.forecast(shape).prediction.turns_per_second
    return size * turns / rate if turns and rate else None
