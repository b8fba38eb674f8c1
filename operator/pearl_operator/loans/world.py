"""What the parts of the loan service share: the ports, and the little that each loan needs in memory."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from pearl_api import tokens
from pearl_api.loan import LoanPhase
from pearl_api.wire.loans import AgentEndpoint, LoanView
from pearl_operator.loans.facts import to_planner_loans
from pearl_operator.loans.gate import Gate
from pearl_operator.loans.limits import Limits
from pearl_operator.loans.metrics import LoanMetrics
from pearl_operator.loans.units import members_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from pearl_api.loan import GPULoanStatus
    from pearl_api.rollout import PearlRolloutSpec
    from pearl_api.wire.loans import LendAnswer
    from pearl_operator.facts import LoanFact, PodFact
    from pearl_operator.loans.facts import LoanKey, Waiting
    from pearl_operator.loans.store import Store
    from pearl_operator.loans.units import Unit
    from pearl_operator.ports import Agents, Clock, Keys, Resolver, RolloutKey
    from pearl_operator.settings import Settings
    from pearl_planner.types import Loan

KILL_SECONDS: Final = 2.0
"""Least time an agent keeps for killing its engine before a hard deadline."""
KEPT_ANSWERS: Final = 32
COOL_SECONDS: Final = 1.0
"""Between the end of a reclaim and the next grant."""


@dataclass(slots=True)
class Offer:
    """An offer that waits for the planner's answer: (granted, reason)."""

    request_id: str
    rollout: RolloutKey
    waiting: Waiting
    answer: asyncio.Future[tuple[bool, str]]

    def decide(self, *, granted: bool, reason: str) -> None:
        """Answers it; only the first answer counts."""
        if not self.answer.done():
            self.answer.set_result((granted, reason))


@dataclass(slots=True)
class Memory:
    """What one loan or group needs beside the record; nothing here must survive a restart. Instants are monotonic."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by whoever changes the loan."""
    offer: Offer | None = None
    answers: dict[str, LendAnswer] = field(default_factory=dict)
    """Of the last offers by request id, for repeats: a late duplicate of one that was refused is no new offer."""
    offered_at: float | None = None
    phase_since: float | None = None
    """When this process saw its phase change; None = before it started."""
    cooling_since: float | None = None
    trainer_checked_at: float | None = None
    followed_at: float | None = None
    access: str = ""
    """How the borrowers reach the GPUs; kept, because the GPULoan goes with its trainer."""


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
    limits: Limits = field(default_factory=Limits)
    metrics: LoanMetrics = field(default_factory=LoanMetrics)
    gate: Gate = field(default_factory=Gate)
    granting: set[LoanKey] = field(default_factory=set)
    """Loans whose grant is decided and not stored yet."""

    def memory(self, key: LoanKey) -> Memory:
        """The memory of one loan or group, made on first use."""
        return self.memories.setdefault(key, Memory())

    @asynccontextmanager
    async def holding(self, unit: Unit) -> AsyncIterator[None]:
        """Nobody else changes the unit or its loans inside; always in this order, so that nobody waits in a ring."""
        keys = dict.fromkeys((unit.key, *((loan.namespace, loan.name) for loan in unit.loans)))
        async with AsyncExitStack() as stack:
            for key in keys:
                await stack.enter_async_context(self.memory(key).lock)
            yield

    def planner_loans(self, rollout: RolloutKey, *, without: Iterable[LoanFact] = ()) -> tuple[Loan, ...]:
        """The planner's facts of a rollout's loans, with the offers that wait for its answer."""
        waiting = {
            key: memory.offer.waiting
            for key, memory in self.memories.items()
            if memory.offer is not None and memory.offer.rollout == rollout
        }
        left_out = {(loan.namespace, loan.name) for loan in without}
        known = [loan for loan in self.store.index.loans_of(rollout) if (loan.namespace, loan.name) not in left_out]
        return tuple(
            replace(loan, phase=LoanPhase.GRANTED.value) if (loan.namespace, loan.name) in self.granting else loan
            for loan in to_planner_loans(known, waiting, now=self.clock.now())
        )

    def wake(self, rollout: RolloutKey) -> None:
        """Makes the loop of this rollout look now."""
        self.store.index.wake(rollout)

    def fresh(self, unit: Unit) -> Unit:
        """The unit as it is now; other calls may have written since, and pods may have joined or left a group."""
        if unit.group:
            return replace(unit, loans=members_of(self.store.index.loans.values(), unit.namespace, unit.name))
        return replace(unit, loans=tuple(self.store.loan(loan.namespace, loan.name) or loan for loan in unit.loans))

    async def write(self, loan: LoanFact, status: GPULoanStatus) -> LoanFact:
        """Stores a status; a change of phase is timed."""
        stored = await self.store.write(loan, status)
        before, after = loan.status.phase, stored.status.phase
        if before is not after:
            memory, now = self.memory((loan.namespace, loan.name)), self.clock.monotonic()
            lasted = None if memory.phase_since is None else now - memory.phase_since
            memory.phase_since = now
            self.metrics.changed(loan.rollout, before, after, lasted)
        return stored

    async def endpoints(self, unit: Unit) -> list[AgentEndpoint]:
        """Its borrower pods and where their agents answer; ending pods, also of pods that left, are still there."""
        pods = self._pods(unit)
        root = await self.keys.root_key(unit.rollout) if unit.group and pods else ""
        return [
            AgentEndpoint(
                pod=pod.address.name,
                uid=pod.address.uid,
                url=self.resolver.agent(pod.address),
                token=_token_of(pod, root) if unit.group else None,
            )
            for pod in pods
        ]

    def _pods(self, unit: Unit) -> list[PodFact]:
        if unit.group:
            return self.store.borrowers_of_group(unit.namespace, unit.name)
        return [pod for loan in unit.loans for pod in self.store.borrowers(loan)]

    async def view(self, unit: Unit) -> LoanView:
        """The unit as the trainer sees it."""
        return LoanView(
            namespace=unit.namespace,
            name=unit.name,
            epoch=unit.epoch,
            phase=unit.phase.value,
            agents=await self.endpoints(unit),
        )


def _token_of(pod: PodFact, root: str) -> str:
    return tokens.loan_token(root, pod.address.namespace, pod.loan or "", pod.owner_uid or "")


def lease_seconds(spec: PearlRolloutSpec) -> float:
    """Life of a grant without a heartbeat: at most the soft deadline of a reclaim."""
    hard = spec.policy.deadlines.reclaim_seconds
    return max(hard - KILL_SECONDS, hard / 2)
