"""A shape for every part of the run, written down beforehand: what a hindsight search fills in."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from pearl_planner.facts import sizes
from pearl_planner.types import Reason
from pearl_simulator.rules.base import decision, with_share

if TYPE_CHECKING:
    from pearl_planner.choice.decide import Decision
    from pearl_planner.types import Loan, Policy, Snapshot


@dataclass(frozen=True, slots=True)
class ScheduleRule:
    """The share of workers that prefill, by time and by how much of the batch is left; 0 = colocated."""

    starts_seconds: tuple[float, ...] = (0.0,)
    """Of the parts, rising."""
    shares: tuple[float, ...] = (0.0,)
    """One per part."""
    tail_share: float = 0.0
    """Instead of them once less than `tail_below` of the batch is unfinished."""
    tail_below: float = 0.0
    """Share of the batch; 0 = there is no tail."""
    borrow: bool = True

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in pairwise(self.starts_seconds))
        if len(self.starts_seconds) != len(self.shares) or not self.shares or not rising:
            raise ValueError("schedule: give start_0 < start_1 < … and as many share_0, share_1, …")

    def decide(self, snapshot: Snapshot, policy: Policy) -> Decision:
        """All GPUs there are, in the shape of this part."""
        room = sizes(snapshot)
        part = max((i for i, start in enumerate(self.starts_seconds) if start <= snapshot.now), default=0)
        batch, share = snapshot.batch, self.shares[part]
        if batch is not None:
            left = 1.0 - batch.finished / max(batch.groups * batch.group_size, 1)
            share = self.tail_share if left < self.tail_below else share
        shape = with_share(room.fixed + room.elastic_high, share)
        return decision(snapshot, policy, room.elastic_high, shape, f"part {part} of the schedule")

    def answer_loan(self, snapshot: Snapshot, policy: Policy, loan: Loan, count: int, added: int) -> tuple[bool, str]:
        """All or none."""
        del snapshot, policy, loan, count, added
        return self.borrow, (Reason.APPLIED if self.borrow else Reason.BORROW_NOT_WORTHWHILE).value
