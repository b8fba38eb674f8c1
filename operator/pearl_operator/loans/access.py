"""How the borrowers of a trainer pod reach its GPUs, and why not otherwise; pure.

`explain` looks at every strategy and gives each one sentence: what it does here, or what to change before it can be
used. docs/access.md lists the reasons.

`SharedClaim`: the borrowers name the trainer's own ResourceClaim; the scheduler keeps everybody else off its devices.
`VisibleDevices`: they ask for no GPU and see the trainer's through the container runtime.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pearl_api.loan import LoanAccess
from pearl_api.rollout import BorrowAccess
from pearl_operator.loans import shared_claim
from pearl_operator.loans.strategies import Access, AccessReason, Obstacle, Option

if TYPE_CHECKING:
    from pearl_operator.loans.strategies import Question


def explain(question: Question) -> Access:
    """Looks at every strategy and chooses the wanted one; `Auto` takes SharedClaim where it can."""
    parts = shared_claim.parts_of(question.devices)
    gpus = shared_claim.ordered(question, parts)
    obstacle = shared_claim.obstacle(question, parts, gpus)
    shared = _option(LoanAccess.SHARED_CLAIM, obstacle, shared_claim.sentence(question, parts))
    visible = _option(LoanAccess.VISIBLE_DEVICES, _visible_obstacle(question), _visible_sentence(question))
    options = _choose(question.wanted, (shared, visible))
    used = tuple(shared_claim.lent(part) for part in parts) if options[0].chosen else ()
    return Access(options, gpus, used)


def _option(access: LoanAccess, obstacle: Obstacle | None, sentence: str) -> Option:
    if obstacle is not None:
        return Option(access, possible=False, reason=obstacle.reason, message=obstacle.message)
    return Option(access, possible=True, reason=AccessReason.POSSIBLE, message=sentence)


def _choose(wanted: BorrowAccess, options: tuple[Option, ...]) -> tuple[Option, ...]:
    fitting = [each for each in options if each.possible and wanted in (BorrowAccess.AUTO, each.access)]
    chosen = fitting[0] if fitting else None
    other = "Auto prefers SharedClaim" if wanted is BorrowAccess.AUTO else f"spec.capacity.borrowed.access is {wanted}"
    return tuple(
        replace(each, chosen=True, reason=AccessReason.CHOSEN)
        if each is chosen
        else replace(each, message=f"{each.message}; not used: {other}")
        if each.possible
        else each
        for each in options
    )


def _visible_obstacle(question: Question) -> Obstacle | None:
    if question.visible_allowed:
        return None
    return Obstacle(
        AccessReason.NAMESPACE_NOT_ALLOWED,
        f"namespace {question.namespace} is not in the chart's value visibleDevices.allowedNamespaces: add it, or let "
        "the trainer hold its GPUs by a ResourceClaim",
    )


def _visible_sentence(question: Question) -> str:
    return (
        "borrowers ask for no GPU and see the trainer's by NVIDIA_VISIBLE_DEVICES, which the node's container runtime "
        "must honour; when the trainer pod has ended, an engine may overlap with the GPU's next owner for at most "
        f"{question.overlap_seconds:g} s"
    )
