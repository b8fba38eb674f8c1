"""What one worker can still be: part of a target, serving without a start, or fit for a role."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl_planner.types import WorkerState, Zone

if TYPE_CHECKING:
    from pearl_planner.types import Budget, Role, Worker

LIVE = frozenset({WorkerState.READY, WorkerState.UNREADY, WorkerState.ASLEEP})
"""Served before and will serve again without a start."""


def stays(worker: Worker) -> bool:
    """Whether a worker can be part of a target at all."""
    gone = worker.state in (WorkerState.TERMINATING, WorkerState.FAILED)
    return not gone and worker.notice_seconds is None


def is_live(worker: Worker) -> bool:
    """Served before; a role change of it moves turns."""
    return worker.state in LIVE


def made_for(worker: Worker, role: Role, budget: Budget) -> bool:
    """Whether a worker may take a role without being replaced.

    Lent ones may take every role, and serve on with an old template: they are replaced when their loan is over.
    """
    if worker.zone is Zone.BORROWED:
        return True
    return worker.shape_current and (not budget.staged or worker.gpus == budget.gpus_of(role))
