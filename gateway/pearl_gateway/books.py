"""What there is once per gateway, as the trajectories of one process see it: batches, permits, the profile.

A gateway of one process keeps it itself (`OwnBooks`). With several, one of them does and the others see what it tells
(`pearl_gateway.processes.member`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from pearl_gateway.batches import Batches
    from pearl_gateway.groups import Groups
    from pearl_gateway.permits import Permits
    from pearl_gateway.trajectory import Trajectory
    from pearl_planner.workload.profile import TrajectoryRecord, TurnRecord


class Books(Protocol):
    """Asked and told for every new trajectory, so nothing here waits."""

    def min_version(self, step: int | None) -> int | None:
        """Oldest weight version that may generate tokens of the step's trajectories."""

    def current(self) -> int | None:
        """The oldest open step; None = unknown."""

    def is_admitted(self, group: str) -> bool:
        """Whether the group has a permit."""

    def started(self, trajectory: Trajectory) -> None:
        """A trajectory sent its first turn."""

    def ended(self, trajectory: str, group: str | None) -> str | None:
        """A trajectory is over; the name of its group if that is known to be over with it."""

    def waits_for(self, name: str) -> bool:
        """Whether an open batch still has to hand out a finished trajectory."""


class OwnBooks:
    """See `Books`: this process has the batches and the permits."""

    def __init__(self, batches: Batches, permits: Permits) -> None:
        self.min_version = batches.min_version
        self.current = batches.current
        self.is_admitted = permits.is_admitted
        self.started = batches.started
        self.ended = permits.ended
        self.waits_for = batches.waits_for


@dataclass(frozen=True, slots=True)
class Shared:
    """What another process of the gateway keeps for this one."""

    books: Books
    groups: Groups
    record: Callable[[TurnRecord | TrajectoryRecord], None]
    """Takes what goes into the profile."""
