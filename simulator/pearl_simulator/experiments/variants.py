"""PEARL with a part of its decision taken out; only ablations use them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pearl_planner.facts import sizes
from pearl_planner.rule import PEARL
from pearl_planner.types import Reason
from pearl_simulator.rules import make_rule

if TYPE_CHECKING:
    from pearl_planner.choice.decide import Decision
    from pearl_planner.rule import Rule
    from pearl_planner.types import Loan, Policy, Snapshot


@dataclass(frozen=True, slots=True)
class Ungated:
    """Takes every loan that the budget allows."""

    def decide(self, snapshot: Snapshot, policy: Policy) -> Decision:
        """As PEARL."""
        return PEARL.decide(snapshot, policy)

    def answer_loan(self, snapshot: Snapshot, policy: Policy, loan: Loan, count: int, added: int) -> tuple[bool, str]:
        """Yes."""
        del snapshot, policy, loan, count, added
        return True, Reason.APPLIED.value


@dataclass(slots=True)
class PerBatch:
    """Decides when another batch is open or the number of workers that may be had changed, and holds in between.

    Mutable by design: it remembers for which batch it decided. One instance per run.
    """

    _decided_for: tuple[int | None, int, int] | None = None

    def decide(self, snapshot: Snapshot, policy: Policy) -> Decision:
        """As PEARL, or what there is."""
        room = sizes(snapshot)
        step = None if snapshot.batch is None else snapshot.batch.step
        situation = (step, room.fixed, room.elastic_high)
        held = situation == self._decided_for
        self._decided_for = situation
        return PEARL.decide(snapshot, replace(policy, hold=policy.hold or held))

    def answer_loan(self, snapshot: Snapshot, policy: Policy, loan: Loan, count: int, added: int) -> tuple[bool, str]:
        """As PEARL."""
        return PEARL.answer_loan(snapshot, policy, loan, count, added)


def rule_of(name: str, parameters: dict[str, float]) -> Rule:
    """One of the above, or one of `pearl_simulator.rules`."""
    if name == "pearl-ungated":
        return Ungated()
    return PerBatch() if name == "pearl-per-batch" else make_rule(name, parameters)
