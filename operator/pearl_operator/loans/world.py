"""What the parts of the loan service share: the ports, and the little that each loan needs in memory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pearl_api.wire.loans import AgentEndpoint, LoanView

if TYPE_CHECKING:
    from pearl_api.rollout import PearlRolloutSpec
    from pearl_api.wire.loans import LendAnswer
    from pearl_operator.facts import LoanFact
    from pearl_operator.loans.facts import LoanKey, Waiting
    from pearl_operator.loans.store import Store
    from pearl_operator.ports import Agents, Clock, Keys, Resolver
    from pearl_operator.settings import Settings

KILL_SECONDS: Final = 2.0
"""Least time an agent keeps for killing its engine before a hard deadline."""
COOL_SECONDS: Final = 1.0
"""Between the end of a reclaim and the next grant."""


@dataclass(slots=True)
class Offer:
    """An offer that waits for the planner's answer: (granted, reason)."""

    request_id: str
    waiting: Waiting
    answer: asyncio.Future[tuple[bool, str]]

    def decide(self, *, granted: bool, reason: str) -> None:
        """Answers it; only the first answer counts."""
        if not self.answer.done():
            self.answer.set_result((granted, reason))


@dataclass(slots=True)
class Memory:
    """What one loan needs beside its record; nothing in it must survive a restart. Instants are monotonic."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by whoever changes the loan."""
    offer: Offer | None = None
    last: tuple[str, LendAnswer] | None = None
    """Request id and answer of the last offer, for repeats."""
    offered_at: float | None = None
    cooling_since: float | None = None
    trainer_checked_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The ports, and the memory of all loans.

    Args:
        store: GPULoans and borrowers in the cluster.
        agents: The worker agents.
        keys: Root keys of the rollouts.
        clock: Time.
        resolver: Where agents and gateways answer.
        settings: Of the operator.
    """

    store: Store
    agents: Agents
    keys: Keys
    clock: Clock
    resolver: Resolver
    settings: Settings
    memories: dict[LoanKey, Memory] = field(default_factory=dict)

    def memory(self, loan: LoanKey) -> Memory:
        """The memory of one loan, made on first use."""
        return self.memories.setdefault(loan, Memory())

    def wake(self, loan: LoanFact) -> None:
        """Makes the loop of its rollout look now."""
        self.store.index.wake(loan.rollout)

    def fresh(self, loan: LoanFact) -> LoanFact:
        """The loan as it is now; other calls may have written since."""
        return self.store.loan(loan.namespace, loan.name) or loan

    def endpoints(self, loan: LoanFact) -> list[AgentEndpoint]:
        """Its borrower pods and where their agents answer; ending pods are still there."""
        return [
            AgentEndpoint(pod=pod.address.name, uid=pod.address.uid, url=self.resolver.agent(pod.address))
            for pod in self.store.borrowers(loan)
        ]

    def view(self, loan: LoanFact) -> LoanView:
        """The loan as the trainer sees it."""
        return LoanView(
            namespace=loan.namespace,
            name=loan.name,
            epoch=loan.status.epoch,
            phase=loan.status.phase.value,
            agents=self.endpoints(loan),
        )


def lease_seconds(spec: PearlRolloutSpec) -> float:
    """Life of a grant without a heartbeat: at most the soft deadline of a reclaim."""
    hard = spec.policy.deadlines.reclaim_seconds
    return max(hard - KILL_SECONDS, hard / 2)
