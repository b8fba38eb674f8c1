"""Follows what trainers and agents do: phases, missing borrowers, trainers that ended, rollouts that are gone."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pearl_api import names
from pearl_api.loan import LoanPhase
from pearl_operator import kinds
from pearl_operator.errors import OperatorError
from pearl_operator.loans import record
from pearl_operator.loans.world import COOL_SECONDS
from pearl_operator.resources.worker import shape_hash

if TYPE_CHECKING:
    from pearl_api.loan import GPULoanStatus
    from pearl_api.wire.loans import ReclaimedNotice, ReclaimingNotice
    from pearl_api.wire.worker import WorkerState
    from pearl_operator.facts import LoanFact, PodFact, RolloutFact
    from pearl_operator.loans.units import Unit
    from pearl_operator.loans.world import Memory, World

log = logging.getLogger("pearl.loans")

STATE_SECONDS: Final = 1.0
"""How long all agents of a loan together may take to tell their state."""
OFFER_LAPSE_SECONDS: Final = 10.0
"""An offer that the trainer's SDK has not repeated for so long is over."""
TRAINER_SECONDS: Final = 15.0
"""Between two looks at a trainer pod, which no watch of ours sees."""
_FOLLOWED: Final = (*record.ACTIVE, LoanPhase.DRAINING)


@dataclass(frozen=True, slots=True)
class Follower:
    """Records; the only decisions here are which borrower pods exist."""

    world: World

    async def reclaiming(self, unit: Unit, notice: ReclaimingNotice) -> None:
        """The trainer has begun to take its GPUs back: plan and route around them at once."""
        now = self.world.clock.now()
        unit = self.world.fresh(unit)
        changes = ((loan, record.reclaiming(loan.status, notice.epoch, now=now)) for loan in unit.loans)
        await asyncio.gather(*(self.world.write(loan, status) for loan, status in changes))
        self.world.wake(unit.rollout)

    async def reclaimed(self, unit: Unit, notice: ReclaimedNotice) -> None:
        """The trainer says what the agents answered."""
        unit = self.world.fresh(unit)
        await asyncio.gather(*(self._reclaimed(loan, notice) for loan in unit.loans))
        self.world.metrics.reclaimed(unit.rollout, notice.total_seconds, free=notice.free, killed=notice.killed)
        self.world.wake(unit.rollout)

    async def _reclaimed(self, loan: LoanFact, notice: ReclaimedNotice) -> None:
        kept = {slot.pod for slot in loan.status.slots} & set(notice.kept)
        own = notice.model_copy(update={"free": notice.free or (bool(notice.kept) and not kept)})
        status = record.reclaimed(loan.status, own, now=self.world.clock.now())
        memory = self.world.memory((loan.namespace, loan.name))
        await self.world.write(loan, self._with_time(status, memory))

    async def end(self, loan: LoanFact, phase: LoanPhase) -> LoanFact:
        """Removes the borrowers; the record stays until the trainer pod goes. `phase` is a terminal one."""
        loan = self.world.store.loan(loan.namespace, loan.name) or loan
        await self.world.store.dismantle(loan)
        change = record.lost if phase is LoanPhase.LOST else record.deregistered
        return await self.world.write(loan, change(loan.status))

    async def sync(self, rollout: RolloutFact) -> None:
        """One look at all loans of a rollout at once; a loan that a call is changing waits for the next look."""
        await asyncio.gather(*(self._follow(loan, rollout) for loan in self.world.store.index.loans_of(rollout.key)))

    async def _follow(self, loan: LoanFact, rollout: RolloutFact) -> None:
        memory = self.world.memory((loan.namespace, loan.name))
        if _over(loan) or memory.lock.locked():
            return
        async with memory.lock:
            now = self.world.store.loan(loan.namespace, loan.name)  # a call may just have ended it
            if now is None or _over(now):
                return
            try:
                await self._sync(now, rollout, memory)
            except OperatorError as error:
                where = f"{loan.namespace}/{loan.name}"
                log.warning("loan not followed", extra={"loan": where, "error": str(error)})

    async def prune(self) -> None:
        """Ends the loans of rollouts that are gone; their trainers keep their GPUs to themselves."""
        index = self.world.store.index
        for loan in list(index.loans.values()):
            if _over(loan) or loan.rollout in index.rollouts:
                continue
            # The index may just not have heard of it yet.
            if await self.world.store.kube.get(kinds.ROLLOUT, loan.rollout.name, loan.rollout.namespace) is None:
                async with self.world.memory((loan.namespace, loan.name)).lock:
                    await self.end(loan, LoanPhase.DEREGISTERED)

    async def _sync(self, loan: LoanFact, rollout: RolloutFact, memory: Memory) -> None:
        if rollout.deleting or rollout.spec is None:
            return  # deleted ones are pruned when they are gone
        if not await self._trainer_lives(loan, memory):
            await self.end(loan, LoanPhase.LOST)
            return
        await self._mend(loan, rollout)
        status = loan.status
        if status.phase in _FOLLOWED:
            status = record.observed(status, await self._states(loan), now=self.world.clock.now())
        elif status.phase is LoanPhase.ASLEEP:
            status = record.cooling(status)
        await self.world.write(loan, self._with_time(status, memory))

    def _with_time(self, status: GPULoanStatus, memory: Memory) -> GPULoanStatus:
        """What ends by time: the cool-down, and offers that nobody repeats."""
        now = self.world.clock.monotonic()
        if status.phase is not LoanPhase.COOLING_DOWN:
            memory.cooling_since = None
        elif memory.cooling_since is None:
            memory.cooling_since = now
        elif now - memory.cooling_since >= COOL_SECONDS:
            return record.cooled(status)
        if status.phase is LoanPhase.OFFERED:
            memory.offered_at = now if memory.offered_at is None else memory.offered_at
            if now - memory.offered_at >= OFFER_LAPSE_SECONDS:
                return record.withdrawn(status)
        return status

    async def _trainer_lives(self, loan: LoanFact, memory: Memory) -> bool:
        now = self.world.clock.monotonic()
        if memory.trainer_checked_at is not None and now - memory.trainer_checked_at < TRAINER_SECONDS:
            return True
        pod = await self.world.store.kube.get(kinds.POD, loan.spec.trainer.name, loan.namespace)
        memory.trainer_checked_at = now
        phase = ((pod or {}).get("status") or {}).get("phase")
        return (
            pod is not None and pod["metadata"]["uid"] == loan.spec.trainer.uid and phase not in ("Succeeded", "Failed")
        )

    async def _mend(self, loan: LoanFact, rollout: RolloutFact) -> None:
        """Makes missing borrowers; replaces those of an older template while nothing is lent."""
        assert rollout.spec is not None  # noqa: S101 - the caller checked
        count = len(loan.spec.gpus) // rollout.spec.engine.tensor_parallel
        if loan.status.phase in (LoanPhase.IDLE, LoanPhase.OFFERED):
            shape = shape_hash(rollout.spec, names.Zone.BORROWED)
            wanted = {names.borrower_pod(loan.name, index) for index in range(count)}
            for pod in self.world.store.borrowers(loan):
                outdated = pod.shape != shape or pod.address.name not in wanted or pod.phase in ("Failed", "Succeeded")
                if outdated and not pod.deleting:
                    await self.world.store.delete_borrower(pod)
        await self.world.store.ensure_borrowers(loan, rollout, count)

    async def _states(self, loan: LoanFact) -> dict[str, WorkerState | None]:
        pods = self.world.store.borrowers(loan)
        states = await asyncio.gather(*(self._state(loan, pod) for pod in pods))
        return {pod.address.name: state for pod, state in zip(pods, states, strict=True)}

    async def _state(self, loan: LoanFact, pod: PodFact) -> WorkerState | None:
        try:
            async with asyncio.timeout(STATE_SECONDS):
                return await self.world.agents.state(loan.rollout, pod.address)
        except (OperatorError, TimeoutError):
            return None


def _over(loan: LoanFact) -> bool:
    return loan.deleting or loan.status.phase in record.TERMINAL
