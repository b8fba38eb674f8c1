"""Answers offers. An offer waits, in memory only, for the rollout's loop to answer it.

A grant is stored with its new epoch before the first agent hears of it, and given to all borrowers of the loan or,
as far as the trainer is told, to none.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pearl_api.loan import LoanPhase
from pearl_api.wire.loans import LendAnswer
from pearl_api.wire.worker import GrantRequest
from pearl_operator.errors import OperatorError
from pearl_operator.loans import record
from pearl_operator.loans.facts import Waiting
from pearl_operator.loans.problems import LoanReason
from pearl_operator.loans.world import COOL_SECONDS, KILL_SECONDS, Offer, lease_seconds

if TYPE_CHECKING:
    from pearl_api.wire.loans import LendRequest
    from pearl_operator.facts import LoanFact
    from pearl_operator.loans.world import Memory, World

log = logging.getLogger("pearl.loans")

ANSWER_SECONDS: Final = 3.0
"""How long an offer waits for the planner; the answer is expected within 0.1 s."""
GRANT_SECONDS: Final = 2.0
"""How long all agents together may take to accept a grant."""


@dataclass(frozen=True, slots=True)
class Lender:
    """Answers `lend`."""

    world: World

    async def lend(self, loan: LoanFact, request: LendRequest) -> LendAnswer:
        """Grants or refuses the offered GPUs; a repeated request is answered alike."""
        memory = self.world.memory((loan.namespace, loan.name))
        if memory.offer is not None and memory.offer.request_id != request.request_id:
            memory.offer.decide(granted=False, reason=LoanReason.SUPERSEDED)
        async with memory.lock:
            if memory.last is not None and memory.last[0] == request.request_id:
                return memory.last[1]
            memory.offered_at = self.world.clock.monotonic()
            answer = await self._lend(self.world.fresh(loan), request, memory)
            memory.last = (request.request_id, answer)
            return answer

    async def _lend(self, loan: LoanFact, request: LendRequest, memory: Memory) -> LendAnswer:
        epoch = max(loan.status.epoch, request.after_epoch) + 1
        refusal = self._not_now(loan, memory)
        if refusal is None:
            granted, reason = await self._ask(loan, request, epoch, memory)
            refusal = None if granted else reason
        if refusal is not None:
            return await self._refuse(loan, request, refusal)
        return await self._grant(loan, request, epoch)

    def _not_now(self, loan: LoanFact, memory: Memory) -> str | None:
        """Why no planner needs to be asked; None where it does."""
        if loan.status.phase in record.RETURNING and not self._cooled(loan, memory):
            return LoanReason.COOLING_DOWN
        pods = self.world.store.borrowers(loan)
        up = [pod for pod in pods if pod.running and not pod.deleting and pod.address.ip]
        return None if pods and len(up) == len(pods) else LoanReason.BORROWERS_STARTING

    def _cooled(self, loan: LoanFact, memory: Memory) -> bool:
        """The cool-down is over, though no look has recorded that yet."""
        if loan.status.phase is not LoanPhase.COOLING_DOWN:
            return False
        since = memory.cooling_since
        return since is None or self.world.clock.monotonic() - since >= COOL_SECONDS

    async def _ask(self, loan: LoanFact, request: LendRequest, epoch: int, memory: Memory) -> tuple[bool, str]:
        future: asyncio.Future[tuple[bool, str]] = asyncio.get_running_loop().create_future()
        memory.offer = Offer(request.request_id, Waiting(epoch, request.cap_seconds), future)
        self.world.wake(loan)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await future
        except TimeoutError:
            return False, LoanReason.NO_ANSWER
        finally:
            memory.offer = None

    async def _refuse(self, loan: LoanFact, request: LendRequest, reason: str, message: str = "") -> LendAnswer:
        # Offers repeat every few seconds; only what changes is written.
        if (loan.status.phase, loan.status.reason) != (LoanPhase.OFFERED, reason):
            loan = await self._offered(loan, request, reason)
        return self._answer(loan, granted=False, reason=reason, message=message)

    async def _offered(self, loan: LoanFact, request: LendRequest, reason: str) -> LoanFact:
        loan = self.world.fresh(loan)
        status = record.offered(
            loan.status,
            request_id=request.request_id,
            cap_seconds=request.cap_seconds,
            reason=reason,
            now=self.world.clock.now(),
        )
        # While GPUs come back the phase says so; the offer shows when they have.
        waits = reason == LoanReason.COOLING_DOWN
        return loan if waits else await self.world.store.write(loan, status)

    async def _grant(self, loan: LoanFact, request: LendRequest, epoch: int) -> LendAnswer:
        now = self.world.clock.now()
        offered = record.offered(
            loan.status,
            request_id=request.request_id,
            cap_seconds=request.cap_seconds,
            reason=LoanReason.GRANTED,
            now=now,
        )
        loan = await self.world.store.write(loan, record.granting(offered, epoch, now=now))
        problem = await self._grant_all(loan, GrantRequest(epoch=epoch, ttl_seconds=self._ttl(loan)))
        if problem is not None:
            # Agents that accepted get no heartbeat: their lease ends by itself, or the trainer fences it before.
            return await self._refuse(loan, request, LoanReason.AGENT_UNAVAILABLE, problem)
        log.info("granted", extra={"loan": f"{loan.namespace}/{loan.name}", "epoch": epoch})
        self.world.wake(loan)
        return self._answer(loan, granted=True, reason=LoanReason.GRANTED)

    def _ttl(self, loan: LoanFact) -> float:
        rollout = self.world.store.index.rollouts.get(loan.rollout)
        return lease_seconds(rollout.spec) if rollout is not None and rollout.spec is not None else KILL_SECONDS

    async def _grant_all(self, loan: LoanFact, request: GrantRequest) -> str | None:
        """None where every agent accepted; else why not."""
        pods = self.world.store.borrowers(loan)
        calls = (self.world.agents.grant(loan.rollout, pod.address, request) for pod in pods)
        try:
            async with asyncio.timeout(GRANT_SECONDS):
                results = await asyncio.gather(*calls, return_exceptions=True)
        except TimeoutError:
            return f"an agent did not answer within {GRANT_SECONDS:g} s"
        failed = []
        for pod, result in zip(pods, results, strict=True):
            if isinstance(result, OperatorError):
                failed.append(f"{pod.address.name}: {result}")
            elif isinstance(result, BaseException):
                raise result
        return "; ".join(failed) or None

    def _answer(self, loan: LoanFact, *, granted: bool, reason: str, message: str = "") -> LendAnswer:
        return LendAnswer(
            epoch=loan.status.epoch,
            granted=granted,
            reason=reason,
            message=message,
            agents=self.world.endpoints(loan),
        )
