"""How long borrowers outlive their trainer pod: until then somebody else may hold the same GPU (VisibleDevices).

Bounded by what is left of the lease and the time it takes to vacate; measured here, for the metric. A trainer pod's end
is what its containers say (their node's clock), or the moment in which this process learns that it is gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pearl_api.wire.worker import WorkerPhase
from pearl_operator.clock import from_rfc3339

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pearl_api.wire.worker import WorkerState
    from pearl_operator.facts import PodFact
    from pearl_operator.loans.facts import LoanKey
    from pearl_operator.ports import RolloutKey

_AT_REST = (WorkerPhase.COLD, WorkerPhase.ASLEEP, WorkerPhase.STOPPED)


@dataclass(slots=True)
class Overlap:
    """A trainer that ended at `since` (monotonic), and the UIDs of its borrowers that may hold a GPU."""

    rollout: RolloutKey
    access: str
    since: float
    holding: set[str]


@dataclass(slots=True)
class Overlaps:
    """Those that are not over."""

    open: dict[LoanKey, Overlap] = field(default_factory=dict)

    def begin(self, key: LoanKey, pods: Iterable[PodFact], *, access: str, since: float) -> None:
        """A trainer ended; repeated calls change nothing."""
        left = list(pods)
        if left and key not in self.open:
            self.open[key] = Overlap(left[0].rollout, access, since, {pod.address.uid for pod in left})

    def count(self, rollout: RolloutKey) -> int:
        """How many of this rollout are open."""
        return sum(overlap.rollout == rollout for overlap in self.open.values())

    def seen(self, key: LoanKey, states: dict[str, WorkerState | None]) -> Overlap | None:
        """What the pods that still exist say, by UID (None = no answer); the overlap where it is over now."""
        overlap = self.open[key]
        overlap.holding = {uid for uid in overlap.holding if uid in states and not _rests(states[uid])}
        return None if overlap.holding else self.open.pop(key)


def _rests(state: WorkerState | None) -> bool:
    if state is None or state.loan is None:
        return False
    return not state.loan.granted and state.loan.memory_free is True and state.phase in _AT_REST


def ended_ago(pod: dict[str, Any] | None, *, now: float) -> float:
    """Seconds since the containers of a pod ended, by the wall clock; 0 where nothing says when."""
    statuses = ((pod or {}).get("status") or {}).get("containerStatuses") or []
    ends = [from_rfc3339(((each.get("state") or {}).get("terminated") or {}).get("finishedAt")) for each in statuses]
    known = [end for end in ends if end is not None]
    return max(now - max(known), 0.0) if known else 0.0
