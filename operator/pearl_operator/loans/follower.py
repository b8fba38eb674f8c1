"""Follows what trainers and agents do: phases, missing borrowers, trainers that ended, rollouts that are gone."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pearl_api import names
from pearl_api.loan import LoanPhase
from pearl_operator import kinds
from pearl_operator.errors import OperatorError
from pearl_operator.loans import record
from pearl_operator.loans.overlaps import Overlaps, ended_ago
from pearl_operator.loans.units import group_key
from pearl_operator.loans.world import COOL_SECONDS
from pearl_operator.ports import RolloutKey
from pearl_operator.resources.worker import shape_hash

if TYPE_CHECKING:
    from pearl_api.loan import GPULoanStatus
    from pearl_api.wire.loans import ReclaimedNotice, ReclaimingNotice
    from pearl_api.wire.worker import WorkerState
    from pearl_operator.facts import LoanFact, PodFact, RolloutFact
    from pearl_operator.loans.facts import LoanKey
    from pearl_operator.loans.units import Unit
    from pearl_operator.loans.world import Memory, World

log = logging.getLogger("pearl.loans")

FOLLOW_SECONDS: Final = 0.5
"""Between two looks at a loan that is on its way."""
REST_SECONDS: Final = 2.0
"""Between two looks at a loan that serves, or is not lent."""
STATE_SECONDS: Final = 1.0
"""How long all agents of a loan together may take to tell their state."""
OFFER_LAPSE_SECONDS: Final = 10.0
"""An offer that the trainer's SDK has not repeated for so long is over."""
TRAINER_SECONDS: Final = 15.0
"""Between two looks at a trainer pod, which no watch of ours sees."""
_MOVING: Final = (LoanPhase.GRANTED, LoanPhase.WAKING, *record.RETURNING)
_FOLLOWED: Final = (*record.ACTIVE, LoanPhase.DRAINING)


@dataclass(frozen=True, slots=True)
class Follower:
    """Records; the only decisions here are which borrower pods exist."""

    world: World
    overlaps: Overlaps = field(default_factory=Overlaps)

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

    async def run(self) -> None:
        """For ever: follows every loan at its pace."""
        while True:
            await self._follow_all()
            await self.world.clock.sleep(FOLLOW_SECONDS)

    async def _follow_all(self) -> None:
        index, now = self.world.store.index, self.world.clock.monotonic()
        due = [loan for loan in index.loans.values() if not _over(loan) and self._is_due(loan, now)]
        await asyncio.gather(*(self._follow(loan) for loan in due), *(self._overlap(key) for key in self._ended()))

    def _is_due(self, loan: LoanFact, now: float) -> bool:
        followed = self.world.memory((loan.namespace, loan.name)).followed_at
        pace = FOLLOW_SECONDS if loan.status.phase in _MOVING else REST_SECONDS
        return followed is None or now - followed >= pace

    async def _follow(self, loan: LoanFact) -> None:
        """The one place where every exception is caught: one loan's trouble is not the others'."""
        memory = self.world.memory((loan.namespace, loan.name))
        if memory.lock.locked():
            return  # a call is changing it
        async with memory.lock:
            memory.followed_at = self.world.clock.monotonic()
            where = f"{loan.namespace}/{loan.name}"
            try:
                await self._sync(loan, memory)
            except OperatorError as error:
                log.warning("loan not followed", extra={"loan": where, "error": str(error)})
            except Exception:
                log.exception("bug in following a loan", extra={"loan": where})

    def _ended(self) -> list[LoanKey]:
        """Trainers that ended while their borrowers are still there; some are known by their borrowers alone."""
        index, now = self.world.store.index, self.world.clock.monotonic()
        orphans: dict[LoanKey, list[PodFact]] = {}
        for pod in index.borrowers():
            key = (pod.address.namespace, pod.loan or "")
            if key not in index.loans or index.loans[key].deleting:
                orphans.setdefault(key, []).append(pod)
        for key, pods in orphans.items():
            self.overlaps.begin(key, pods, access=self.world.memory(key).access, since=now)
        return list(self.overlaps.open)

    async def _overlap(self, key: LoanKey) -> None:
        overlap = self.overlaps.open[key]
        pods = [pod for pod in self.world.store.index.borrowers() if pod.address.uid in overlap.holding]
        states = await asyncio.gather(*(self._state(overlap.rollout, pod) for pod in pods))
        over = self.overlaps.seen(key, {pod.address.uid: state for pod, state in zip(pods, states, strict=True)})
        if over is not None:
            seconds = self.world.clock.monotonic() - over.since
            self.world.metrics.overlapped(over.rollout, over.access, seconds)

    def count(self, rollout: RolloutKey) -> None:
        """Tells the metrics how many loans of a rollout there are, by phase."""
        self.world.metrics.count(rollout, self.world.store.index.loans_of(rollout), self.overlaps.count(rollout))

    async def prune(self) -> None:
        """Ends the loans of rollouts that are gone; their trainers keep their GPUs to themselves."""
        index, gone = self.world.store.index, set[RolloutKey]()
        for loan in list(index.loans.values()):
            if _over(loan) or loan.rollout in index.rollouts:
                continue
            # The index may just not have heard of it yet.
            if await self.world.store.kube.get(kinds.ROLLOUT, loan.rollout.name, loan.rollout.namespace) is None:
                async with self.world.memory((loan.namespace, loan.name)).lock:
                    await self.end(loan, LoanPhase.DEREGISTERED)
                gone.add(loan.rollout)
        self._forget(gone)

    def _forget(self, gone: set[RolloutKey]) -> None:
        """Drops what is remembered of loans and rollouts that are gone; the end of their loans was counted last."""
        index, memories = self.world.store.index, self.world.memories
        kept = index.loans.keys() | self.overlaps.open.keys()
        kept |= {(loan.namespace, group_key(loan.spec.group)) for loan in index.loans.values() if loan.spec.group}
        for key in [key for key, memory in memories.items() if key not in kept and not memory.lock.locked()]:
            del memories[key]
        for rollout in (self.world.gate.known() | gone) - index.rollouts.keys():
            self.world.gate.forget(rollout)
            self.world.metrics.forget(rollout)

    async def _sync(self, loan: LoanFact, memory: Memory) -> None:
        index = self.world.store.index
        now = index.loans.get((loan.namespace, loan.name))  # a call may just have ended it
        rollout = index.rollouts.get(loan.rollout)
        if now is None or _over(now) or rollout is None or rollout.deleting or rollout.spec is None:
            return  # deleted rollouts are pruned when they are gone
        loan, memory.access = now, now.spec.access.value
        left = self._without_borrowers(loan)
        if left is not None:
            memory.trainer_checked_at = None  # did they go with it?
        if not await self._trainer_lives(loan, memory):
            await self.end(loan, LoanPhase.LOST)
            return
        if left is not None:
            loan = await self._gone(loan, left)
        await self._mend(loan, rollout)
        status = loan.status
        if status.phase in _FOLLOWED:
            status = record.observed(status, await self._states(loan), now=self.world.clock.now())
            if status.phase is LoanPhase.DRAINING and loan.status.phase is not LoanPhase.DRAINING:
                memory.trainer_checked_at = None  # nobody asked for it: is the trainer still there?
        elif status.phase is LoanPhase.ASLEEP:
            status = record.cooling(status)
        await self.world.write(loan, self._with_time(status, memory))

    def _without_borrowers(self, loan: LoanFact) -> GPULoanStatus | None:
        there = {pod.address.uid for pod in self.world.store.borrowers(loan)}
        status = record.without_borrowers(loan.status, there, now=self.world.clock.now())
        return None if status is loan.status else status

    async def _gone(self, loan: LoanFact, left: GPULoanStatus) -> LoanFact:
        where = f"{loan.namespace}/{loan.name}"
        log.warning("no borrower of this loan is left: it is over", extra={"loan": where, "epoch": left.epoch})
        self.world.wake(loan.rollout)
        return await self.world.write(loan, left)

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
        if pod is not None and pod["metadata"]["uid"] != loan.spec.trainer.uid:
            pod = None
        if pod is not None and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
            return True
        since = now - ended_ago(pod, now=self.world.clock.now())
        key = (loan.namespace, loan.name)
        self.overlaps.begin(key, self.world.store.borrowers(loan), access=memory.access, since=since)
        return False

    async def _mend(self, loan: LoanFact, rollout: RolloutFact) -> None:
        """Makes missing borrowers; replaces those of an older template while nothing is lent."""
        assert rollout.spec is not None  # noqa: S101 - the caller checked
        parallel = rollout.spec.engine.tensor_parallel
        count = len(loan.spec.gpus) // parallel
        if loan.status.phase in (LoanPhase.IDLE, LoanPhase.OFFERED):
            shape = shape_hash(rollout.spec, names.Zone.BORROWED, parallel)
            wanted = {names.borrower_pod(loan.name, index) for index in range(count)}
            for pod in self.world.store.borrowers(loan):
                outdated = pod.shape != shape or pod.address.name not in wanted or pod.phase in ("Failed", "Succeeded")
                if outdated and not pod.deleting:
                    await self.world.store.delete_borrower(pod)
        await self.world.store.ensure_borrowers(loan, rollout, count)

    async def _states(self, loan: LoanFact) -> dict[str, WorkerState | None]:
        pods = self.world.store.borrowers(loan)
        states = await asyncio.gather(*(self._state(loan.rollout, pod) for pod in pods))
        return {pod.address.name: state for pod, state in zip(pods, states, strict=True)}

    async def _state(self, rollout: RolloutKey, pod: PodFact) -> WorkerState | None:
        try:
            async with asyncio.timeout(STATE_SECONDS):
                return await self.world.agents.state(rollout, pod.address)
        except (OperatorError, TimeoutError):
            return None


def _over(loan: LoanFact) -> bool:
    return loan.deleting or loan.status.phase in record.TERMINAL
