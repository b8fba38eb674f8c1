"""Loans as the planner sees them; pure.

Every loan is there as recorded, for the workers that serve under it. An offer that waits is the offer of a unit: of one
pod's loan it is told with the loan, of a group it is an entry of its own, which the planner takes or leaves as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pearl_api.loan import LoanPhase
from pearl_operator.clock import from_rfc3339
from pearl_operator.loans.record import ACTIVE, TERMINAL
from pearl_planner.types import Loan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pearl_api.loan import GPULoanStatus
    from pearl_operator.facts import LoanFact
    from pearl_operator.loans.units import Unit

LoanKey = tuple[str, str]
"""Namespace and name of a GPULoan, or `units.group_key` of a group."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """An offer that waits for the planner's answer; `epoch` is what a grant would make."""

    unit: Unit
    epoch: int
    cap_seconds: float | None


def to_planner_loans(loans: Iterable[LoanFact], waiting: Mapping[LoanKey, Waiting], *, now: float) -> tuple[Loan, ...]:
    """The planner's facts of all loans that still exist, in the given order, then the offers of groups."""
    known = tuple(_loan(fact, now) for fact in loans if fact.status.phase not in TERMINAL and not fact.deleting)
    offers = {key: offer_of(offer, now=now) for key, offer in waiting.items()}
    told = tuple(offers.pop((loan.namespace, loan.name), loan) for loan in known)
    return told + tuple(offer for key, offer in sorted(offers.items()) if waiting[key].unit.group)


def _loan(fact: LoanFact, now: float) -> Loan:
    status = fact.status
    return Loan(
        name=fact.name,
        namespace=fact.namespace,
        epoch=status.epoch,
        phase=status.phase.value,
        gpus=len(fact.spec.gpus),
        workers=tuple(slot.pod for slot in status.slots),
        requested=False,
        cap_seconds=status.cap_seconds,
        expected_idle_seconds=expected_idle_seconds(status, now=now),
    )


def offer_of(offer: Waiting, *, now: float) -> Loan:
    """What waits for the planner's answer; `now` in seconds since the epoch."""
    unit = offer.unit
    idle = [expected_idle_seconds(loan.status, now=now) for loan in unit.loans]
    return Loan(
        name=unit.key[1],
        namespace=unit.namespace,
        epoch=offer.epoch,
        phase=LoanPhase.OFFERED.value,
        gpus=unit.gpus,
        workers=tuple(slot.pod for loan in unit.loans for slot in loan.status.slots),
        requested=True,
        cap_seconds=offer.cap_seconds,
        expected_idle_seconds=min((one for one in idle if one is not None), default=None),
    )


def expected_idle_seconds(status: GPULoanStatus, *, now: float) -> float | None:
    """How long the trainer will still leave its GPUs idle, as its past idle times tell; None before the first.

    Their mean less what has passed of the present one. One that is longer than that is believed to last as long again,
    so that short ones of the past never keep a trainer from lending for good.
    """
    mean = status.idle_seconds
    since = from_rfc3339(status.offered_at) if status.phase in (LoanPhase.OFFERED, *ACTIVE) else None
    if mean is None or since is None:
        return mean
    passed = max(now - since, 0.0)
    return mean - passed if passed < mean else passed
