"""Answers offers. An offer waits, in memory only, for the planner's answer.

A grant is stored with its new epoch in every loan of the unit before the first agent hears of it, and given to all
borrowers or, as far as the trainer is told, to none.
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
from pearl_operator.loans.facts import Waiting, offer_of
from pearl_operator.loans.problems import LoanReason
from pearl_operator.loans.world import COOL_SECONDS, KEPT_ANSWERS, KILL_SECONDS, Offer, lease_seconds

if TYPE_CHECKING:
    from pearl_api.loan import GPULoanStatus
    from pearl_api.wire.loans import LendRequest
    from pearl_operator.facts import LoanFact
    from pearl_operator.loans.units import Unit
    from pearl_operator.loans.world import Memory, World

log = logging.getLogger("pearl.loans")

ANSWER_SECONDS: Final = 3.0
"""How long an offer waits for the planner; the answer is expected within 0.1 s."""
GRANT_SECONDS: Final = 2.0
"""How long all agents together may take to accept a grant."""
_FREE: Final = (LoanPhase.IDLE, LoanPhase.OFFERED, LoanPhase.COOLING_DOWN)
"""Nothing is lent; elsewhere a refused offer leaves the phase alone."""


@dataclass(frozen=True, slots=True)
class _No:
    """A refusal: closed reason, sentence."""

    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Lender:
    """Answers `lend`."""

    world: World

    async def lend(self, unit: Unit, request: LendRequest) -> LendAnswer:
        """Grants or refuses the offered GPUs; a repeated request is answered alike."""
        began = self.world.clock.monotonic()
        memory = self.world.memory(unit.key)
        if memory.offer is not None and memory.offer.request_id != request.request_id:
            memory.offer.decide(granted=False, reason=LoanReason.SUPERSEDED)
        async with self.world.holding(unit):
            if (before := memory.answers.get(request.request_id)) is not None:
                return before
            unit = self.world.fresh(unit)
            self._offered_now(unit)
            answer = await self._lend(unit, request, memory)
            memory.answers[request.request_id] = answer
            if len(memory.answers) > KEPT_ANSWERS:
                del memory.answers[next(iter(memory.answers))]
        seconds = self.world.clock.monotonic() - began
        self.world.metrics.answered(unit.rollout, seconds, granted=answer.granted, reason=answer.reason)
        return answer

    def _offered_now(self, unit: Unit) -> None:
        for loan in unit.loans:
            self.world.memory((loan.namespace, loan.name)).offered_at = self.world.clock.monotonic()

    async def _lend(self, unit: Unit, request: LendRequest, memory: Memory) -> LendAnswer:
        if repeated := record.answered_before(unit.loans, request.request_id):
            return await self._repeat(unit, repeated)
        epoch = max(unit.epoch, request.after_epoch) + 1
        refusal = self._not_now(unit, request)
        if refusal is None:
            granted, reason = await self._ask(unit, request, epoch, memory)
            refusal = None if granted else _No(reason)
        if refusal is not None:
            return await self._refuse(unit, request, refusal)
        deciding = {(loan.namespace, loan.name) for loan in unit.loans}
        self.world.granting.update(deciding)  # offers that come meanwhile are weighed against it
        try:
            return await self._grant(unit, request, epoch)
        finally:
            self.world.granting.difference_update(deciding)

    async def _repeat(self, unit: Unit, before: record.Before) -> LendAnswer:
        """This process or an earlier one granted that very request: the same epoch, if it still can be."""
        if before is record.Before.OVER:
            return await self._answer(unit, _No(LoanReason.WITHDRAWN, "this grant was taken back meanwhile"))
        problem = await self._grant_all(unit, unit.epoch)
        return await self._answer(unit, None if problem is None else _No(LoanReason.AGENT_UNAVAILABLE, problem))

    def _not_now(self, unit: Unit, request: LendRequest) -> _No | None:
        """Why no planner needs to be asked; None where it does."""
        if unit.epoch > request.after_epoch:
            return _No(
                LoanReason.SUPERSEDED,
                f"epoch {unit.epoch} was granted since this offer was made after {request.after_epoch}: fence it, "
                f"and offer anew with afterEpoch {unit.epoch}",
            )
        if any(self._cools(loan) for loan in unit.loans):
            return _No(LoanReason.COOLING_DOWN)
        if unit.group and len(unit.loans) != request.members:
            there = ", ".join(loan.name for loan in unit.loans)
            return _No(
                LoanReason.GROUP_INCOMPLETE,
                f"{len(unit.loans)} pods of group {unit.name} are enrolled ({there}) and the driver expects "
                f"{request.members}: all register with this group, or change `members`",
            )
        pods = [pod for loan in unit.loans for pod in self.world.store.borrowers(loan)]
        missing = [pod.address.name for pod in pods if not pod.running or pod.deleting or not pod.address.ip]
        if pods and not missing:
            return None
        return _No(LoanReason.BORROWERS_STARTING, f"not running yet: {', '.join(missing) or 'borrower pods'}")

    def _cools(self, loan: LoanFact) -> bool:
        """Its GPUs come back, or came back a moment ago; a cool-down may be over before a look has recorded that."""
        if loan.status.phase is not LoanPhase.COOLING_DOWN:
            return loan.status.phase in record.RETURNING
        since = self.world.memory((loan.namespace, loan.name)).cooling_since
        return since is not None and self.world.clock.monotonic() - since < COOL_SECONDS

    async def _ask(self, unit: Unit, request: LendRequest, epoch: int, memory: Memory) -> tuple[bool, str]:
        waiting = Waiting(unit, epoch, request.cap_seconds)
        if (answer := self._at_once(waiting)) is not None:
            return answer
        future: asyncio.Future[tuple[bool, str]] = asyncio.get_running_loop().create_future()
        memory.offer = Offer(request.request_id, unit.rollout, waiting, future)
        self.world.wake(unit.rollout)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await future
        except TimeoutError:
            return False, LoanReason.NO_ANSWER
        finally:
            memory.offer = None

    def _at_once(self, waiting: Waiting) -> tuple[bool, str] | None:
        """The planner's rule over what its last look saw; None = wait for the next look."""
        unit = waiting.unit
        rollout = self.world.store.index.rollouts.get(unit.rollout)
        if rollout is None:
            return None
        return self.world.gate.answer(
            offer_of(waiting, now=self.world.clock.now()),
            self.world.planner_loans(unit.rollout, without=unit.loans),
            rollout=unit.rollout,
            generation=rollout.generation,
            now=self.world.clock.monotonic(),
        )

    async def _refuse(self, unit: Unit, request: LendRequest, refusal: _No) -> LendAnswer:
        await asyncio.gather(*(self._offered(loan, request, refusal.reason) for loan in unit.loans))
        return await self._answer(self.world.fresh(unit), refusal)

    async def _offered(self, loan: LoanFact, request: LendRequest, reason: str) -> None:
        # Offers repeat every few seconds; only what changes is written. While GPUs come back the phase says so.
        unchanged = (loan.status.phase, loan.status.reason) == (LoanPhase.OFFERED, reason)
        if unchanged or loan.status.phase not in _FREE or reason == LoanReason.COOLING_DOWN:
            return
        await self.world.write(loan, self._offer_of(loan, request, reason))

    def _offer_of(self, loan: LoanFact, request: LendRequest, reason: str) -> GPULoanStatus:
        return record.offered(
            loan.status,
            request_id=request.request_id,
            cap_seconds=request.cap_seconds,
            reason=reason,
            now=self.world.clock.now(),
        )

    async def _grant(self, unit: Unit, request: LendRequest, epoch: int) -> LendAnswer:
        await asyncio.gather(*(self._granting(loan, request, epoch) for loan in unit.loans))
        unit = self.world.fresh(unit)
        problem = await self._grant_all(unit, epoch)
        if problem is not None:
            # Agents that accepted get no heartbeat: their lease ends by itself, or the trainer fences it before.
            await asyncio.gather(*(self._withdraw(loan) for loan in unit.loans))
            return await self._answer(self.world.fresh(unit), _No(LoanReason.AGENT_UNAVAILABLE, problem))
        log.info("granted", extra={"loan": unit.path, "epoch": epoch})
        self.world.wake(unit.rollout)
        return await self._answer(unit, None)

    async def _granting(self, loan: LoanFact, request: LendRequest, epoch: int) -> None:
        offered = self._offer_of(loan, request, LoanReason.GRANTED)
        holders = {pod.address.name: pod.address.uid for pod in self.world.store.borrowers(loan)}
        await self.world.write(loan, record.granting(offered, epoch, now=self.world.clock.now(), holders=holders))

    async def _withdraw(self, loan: LoanFact) -> None:
        status = loan.status.model_copy(update={"phase": LoanPhase.OFFERED, "reason": LoanReason.AGENT_UNAVAILABLE})
        await self.world.write(loan, status)

    async def _grant_all(self, unit: Unit, epoch: int) -> str | None:
        """None where every agent accepted; else why not."""
        request = GrantRequest(epoch=epoch, ttl_seconds=self._ttl(unit))
        pods = [pod for loan in unit.loans for pod in self.world.store.borrowers(loan)]
        calls = (self.world.agents.grant(unit.rollout, pod.address, request) for pod in pods)
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

    def _ttl(self, unit: Unit) -> float:
        rollout = self.world.store.index.rollouts.get(unit.rollout)
        return lease_seconds(rollout.spec) if rollout is not None and rollout.spec is not None else KILL_SECONDS

    async def _answer(self, unit: Unit, refusal: _No | None) -> LendAnswer:
        return LendAnswer(
            epoch=unit.epoch,
            granted=refusal is None,
            reason=LoanReason.GRANTED if refusal is None else refusal.reason,
            message="" if refusal is None else refusal.message,
            agents=await self.world.endpoints(unit),
        )
