"""Loans as the planner sees them; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pearl_api.loan import LoanPhase
from pearl_operator.loans.record import TERMINAL
from pearl_planner.types import Loan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pearl_api.loan import GPULoanStatus
    from pearl_operator.facts import LoanFact

LoanKey = tuple[str, str]
"""Namespace and name of a GPULoan."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """An offer that waits for the planner's answer; `epoch` is what a grant would make."""

    epoch: int
    cap_seconds: float | None


def to_planner_loans(loans: Iterable[LoanFact], waiting: Mapping[LoanKey, Waiting]) -> tuple[Loan, ...]:
    """The planner's facts of all loans that still exist, in the given order."""
    return tuple(
        _loan(fact, waiting.get((fact.namespace, fact.name)))
        for fact in loans
        if fact.status.phase not in TERMINAL and not fact.deleting
    )


def _loan(fact: LoanFact, offer: Waiting | None) -> Loan:
    status = fact.status
    return Loan(
        name=fact.name,
        namespace=fact.namespace,
        epoch=offer.epoch if offer else status.epoch,
        phase=(LoanPhase.OFFERED if offer else status.phase).value,
        gpus=len(fact.spec.gpus),
        workers=tuple(slot.pod for slot in status.slots),
        requested=offer is not None,
        cap_seconds=offer.cap_seconds if offer else status.cap_seconds,
        expected_idle_seconds=expected_idle_seconds(status),
    )


def expected_idle_seconds(status: GPULoanStatus) -> float | None:
    """Mean of how long past loans lasted, from grant to reclaim; None before the first."""
    lasted = [
        (past.waking_seconds or 0.0) + past.serving_seconds
        for past in status.history
        if past.serving_seconds is not None
    ]
    return sum(lasted) / len(lasted) if lasted else None
