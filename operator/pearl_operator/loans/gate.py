"""Answers offers between two looks, by the planner's own rule over what the last look saw.

A look reads gateway, Prometheus and all agents, so that it may wait for somebody who is dead; an offer must not.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from pearl_planner.plan import answer_loans

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pearl_operator.look import Look
    from pearl_operator.ports import RolloutKey
    from pearl_planner.types import Loan

FRESH_SECONDS: Final = 10.0
"""An older look answers nothing: the next one does. Looks are at most 5 s apart while nothing fails."""


@dataclass(slots=True)
class Gate:
    """The last look of every rollout; instants are seconds of a monotonic clock."""

    _looks: dict[RolloutKey, tuple[Look, float]] = field(default_factory=dict)

    def looked(self, look: Look, now: float) -> None:
        """A look was complete at `now`."""
        self._looks[look.rollout.key] = (look, now)

    def known(self) -> set[RolloutKey]:
        """Rollouts that were looked at."""
        return set(self._looks)

    def forget(self, rollout: RolloutKey) -> None:
        """The rollout is gone."""
        self._looks.pop(rollout, None)

    def answer(
        self, offer: Loan, loans: Iterable[Loan], *, rollout: RolloutKey, generation: int, now: float
    ) -> tuple[bool, str] | None:
        """Granted or not, and the reason; None where a look has to answer.

        Args:
            offer: What waits.
            loans: All other loans of the rollout, as they are now.
            rollout: Who would borrow.
            generation: Of its spec now; a decision about an older one answers nothing.
            now: The present instant.
        """
        known = self._looks.get(rollout)
        if known is None:
            return None
        look, at = known
        if now - at > FRESH_SECONDS or look.rollout.generation != generation:
            return None
        others = tuple(replace(loan, requested=False) for loan in loans)
        snapshot = replace(look.snapshot, loans=(*others, offer), memory=look.plan.memory)
        (answer,) = answer_loans(snapshot, look.policy, look.plan.shape)
        return answer.granted, answer.reason
