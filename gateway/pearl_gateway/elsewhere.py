"""What the other processes of one gateway do, as they last told; see `pearl_gateway.processes`. Pure data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

NOBODY_TOLD = -1
"""`Elsewhere.served` while it is not known what the others use."""


@dataclass(frozen=True, slots=True)
class Load:
    """What one worker has of the other processes' requests."""

    in_flight: int = 0
    prefill_tokens: int = 0


NO_LOAD = Load()


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Nothing, where there is only one process."""

    loads: Mapping[str, Load] = field(default_factory=dict)
    """By pod UID."""
    served: int | None = None
    """Each of the other processes begins no turn on weights older than these; None = there are no others."""
    groups: frozenset[str] = frozenset()
    """Groups with live trajectories there."""
    oldest_version: int | None = None
    """First weight version of the oldest live trajectory of a batch there."""

    def load(self, uid: str) -> Load:
        """Of one worker."""
        return self.loads.get(uid, NO_LOAD)


NOWHERE = Elsewhere()
