"""What `plan()` asks a decision rule: the fleet to have, and whether to take a loan.

Targets, safe steps, forced changes and explanation are the same for every rule. PEARL's own is the default; the
simulator gives others (fixed fleets, published policies), so that nothing but the decision differs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from pearl_planner.choice.decide import Decision, decide
from pearl_planner.choice.evaluate import Situation
from pearl_planner.choice.gates import borrow_answer, over_before_it_serves
from pearl_planner.choice.situation import exact, situation
from pearl_planner.facts import sizes
from pearl_planner.types import Reason, Zone

if TYPE_CHECKING:
    from pearl_planner.fleet.room import Many
    from pearl_planner.types import Loan, Policy, Snapshot


class Rule(Protocol):
    """Pure: the same facts give the same answers."""

    def decide(self, snapshot: Snapshot, policy: Policy) -> Decision:
        """Sizes per zone and the shape to have now; the snapshot is already cleaned."""
        ...

    def answer_loan(self, snapshot: Snapshot, policy: Policy, loan: Loan, count: int, added: int) -> tuple[bool, str]:
        """Whether to take a loan that adds `added` workers to `count`, and the reason told to the trainer."""
        ...


@dataclass(frozen=True, slots=True)
class PearlRule:
    """Predict every shape, take the best where it is better enough (docs/models.md)."""

    def decide(self, snapshot: Snapshot, policy: Policy) -> Decision:
        """See `pearl_planner.choice.decide`."""
        return decide(snapshot, policy)

    def answer_loan(self, snapshot: Snapshot, policy: Policy, loan: Loan, count: int, added: int) -> tuple[bool, str]:
        """See `pearl_planner.choice.gates.borrow_answer`."""
        if over_before_it_serves(snapshot, loan):
            return False, Reason.COLD_START_TOO_LONG.value
        known = situation(snapshot, policy)
        rest = exact(snapshot, known) if isinstance(known, Situation) else None
        return borrow_answer(rest, loan, _room(snapshot, count), added, now=snapshot.now)


def _room(snapshot: Snapshot, count: int) -> Many:
    """Of `count` workers, those that are lent already among them."""
    if not snapshot.budget.staged:
        return count
    room = sizes(snapshot)
    slots = snapshot.target.slots if snapshot.target is not None else ()
    own = sum(1 for slot in slots if slot.zone is not Zone.BORROWED)
    return replace(room.room(room.elastic_kept), borrowed=max(count - own, room.borrowed) if slots else room.borrowed)


PEARL = PearlRule()
