"""What is lent and taken back together: the loan of one pod, or all loans of a group; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pearl_api.loan import LoanPhase
from pearl_operator.loans.record import TERMINAL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pearl_operator.facts import LoanFact
    from pearl_operator.loans.facts import LoanKey
    from pearl_operator.ports import RolloutKey

_HOLDS_BACK: Final = (
    LoanPhase.DRAINING,
    LoanPhase.GRANTED,
    LoanPhase.WAKING,
    LoanPhase.SERVING,
    LoanPhase.ASLEEP,
    LoanPhase.COOLING_DOWN,
    LoanPhase.OFFERED,
    LoanPhase.IDLE,
)
"""A group is in the first of these phases that one of its loans is in: what the others wait for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One handle of a trainer. `loans` of a group may be empty: no pod has registered yet."""

    namespace: str
    name: str
    rollout: RolloutKey
    loans: tuple[LoanFact, ...]
    group: bool = False

    @property
    def key(self) -> LoanKey:
        """Under which its offers wait; no loan has a `/` in its name."""
        return (self.namespace, group_key(self.name) if self.group else self.name)

    @property
    def path(self) -> str:
        """Path of its calls in the loan API."""
        return f"/v1/{'groups' if self.group else 'loans'}/{self.namespace}/{self.name}"

    @property
    def epoch(self) -> int:
        """Highest epoch of any of its loans."""
        return max((loan.status.epoch for loan in self.loans), default=0)

    @property
    def phase(self) -> LoanPhase:
        """Of a group, the phase that holds the others back."""
        phases = {loan.status.phase for loan in self.loans}
        return next((phase for phase in _HOLDS_BACK if phase in phases), LoanPhase.DEREGISTERED)

    @property
    def gpus(self) -> int:
        """All GPUs that it lends."""
        return sum(len(loan.spec.gpus) for loan in self.loans)


def group_key(group: str) -> str:
    """Stands for a group where loans go by their name."""
    return f"group/{group}"


def unit_of(loan: LoanFact) -> Unit:
    """The loan of one pod."""
    return Unit(namespace=loan.namespace, name=loan.name, rollout=loan.rollout, loans=(loan,))


def members_of(loans: Iterable[LoanFact], namespace: str, group: str) -> tuple[LoanFact, ...]:
    """The loans of a group that are enrolled, by name."""
    found = (
        loan
        for loan in loans
        if loan.namespace == namespace and loan.spec.group == group and not loan.deleting and not is_over(loan)
    )
    return tuple(sorted(found, key=lambda loan: loan.name))


def is_over(loan: LoanFact) -> bool:
    """Whether its enrolment has ended."""
    return loan.status.phase in TERMINAL
