"""The loan service: one object for the HTTP API and for the loops of the rollouts."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pearl_api.loan import LoanPhase
from pearl_operator.errors import OperatorError, Unavailable
from pearl_operator.loans import api
from pearl_operator.loans.enroller import Enroller
from pearl_operator.loans.follower import Follower
from pearl_operator.loans.lender import Lender
from pearl_operator.loans.problems import LoanReason
from pearl_operator.loans.store import Store
from pearl_operator.loans.world import World

if TYPE_CHECKING:
    from fastapi import APIRouter
    from prometheus_client import CollectorRegistry

    from pearl_api.wire.loans import (
        AccessAnswer,
        AccessRequest,
        GroupRequest,
        LendAnswer,
        LendRequest,
        LoanView,
        ReclaimedNotice,
        ReclaimingNotice,
        RegisterAnswer,
        RegisterRequest,
    )
    from pearl_operator.facts import RolloutFact
    from pearl_operator.index import Index
    from pearl_operator.loans.limits import Calls
    from pearl_operator.loans.units import Unit
    from pearl_operator.look import Look
    from pearl_operator.ports import Agents, Clock, Keys, Kube, Resolver, RolloutKey
    from pearl_operator.settings import Settings
    from pearl_planner.types import AnswerLoan, Loan

PRUNE_SECONDS: Final = 10.0

log = logging.getLogger("pearl.loans")


class LoanService:
    """Enrols, grants and records. See `World` for the arguments."""

    def __init__(  # noqa: PLR0913 - one argument per port
        self,
        *,
        kube: Kube,
        index: Index,
        agents: Agents,
        keys: Keys,
        clock: Clock,
        resolver: Resolver,
        settings: Settings,
    ) -> None:
        self._world = World(
            store=Store(kube, index),
            agents=agents,
            keys=keys,
            clock=clock,
            resolver=resolver,
            settings=settings,
        )
        self._enroller = Enroller(self._world)
        self._lender = Lender(self._world)
        self._follower = Follower(self._world)
        self._open = False

    @property
    def metrics(self) -> CollectorRegistry:
        """All series about loans."""
        return self._world.metrics.registry

    def refused(self, reason: str) -> None:
        """Counts a call of the API that was refused."""
        self._world.metrics.refused(reason)

    def router(self) -> APIRouter:
        """The loan API over HTTP."""
        return api.router(self)

    async def register(self, request: RegisterRequest, token: str) -> RegisterAnswer:
        """Enrols the pod that the token is bound to; raises LoanProblem where it may not lend."""
        self._check_open()
        return await self._enroller.register(request, token)

    async def access(self, request: AccessRequest, token: str) -> AccessAnswer:
        """How borrowers would reach the GPUs of the pod that the token is bound to; enrols nothing."""
        self._check_open()
        return await self._enroller.access(request, token)

    async def register_group(self, request: GroupRequest, token: str) -> RegisterAnswer:
        """Gives the pod that the token is bound to the handle of a group."""
        self._check_open()
        return await self._enroller.register_group(request, token)

    async def unit(self, namespace: str, name: str, token: str, calls: Calls, *, group: bool) -> Unit:
        """The loan or group whose token this is.

        Raises:
            LoanProblem: there is none, the token is another's, or it calls too often.
        """
        self._check_open()
        return await self._enroller.authorised(namespace, name, token, calls, group=group)

    def _check_open(self) -> None:
        # An index that is still empty knows no rollout and no loan, which is no reason to refuse a trainer for good.
        if not self._open:
            raise Unavailable("the operator is starting, or waits for its Lease: try again", seconds=2.0)

    async def lend(self, unit: Unit, request: LendRequest) -> LendAnswer:
        """Grants or refuses the offered GPUs; a repeated request is answered alike."""
        self._enroller.check_may_lend(unit, request)
        return await self._lender.lend(unit, request)

    async def reclaiming(self, unit: Unit, notice: ReclaimingNotice) -> LoanView:
        """A reclaim began; an offer that still waits is over."""
        memory = self._world.memory(unit.key)
        if memory.offer is not None:
            memory.offer.decide(granted=False, reason=LoanReason.WITHDRAWN)
        async with self._world.holding(unit):
            await self._follower.reclaiming(unit, notice)
        return await self.view(unit)

    async def reclaimed(self, unit: Unit, notice: ReclaimedNotice) -> LoanView:
        """A reclaim ended."""
        async with self._world.holding(unit):
            await self._follower.reclaimed(unit, notice)
        return await self.view(unit)

    async def deregister(self, unit: Unit) -> LoanView:
        """The trainer leaves: borrowers go, the record stays until the trainer pod goes."""
        async with self._world.holding(unit):
            ended = [await self._follower.end(loan, LoanPhase.DEREGISTERED) for loan in self._world.fresh(unit).loans]
        return await self._world.view(replace(unit, loans=tuple(ended)))

    async def view(self, unit: Unit) -> LoanView:
        """The unit as the trainer sees it; its agents are the borrower pods that exist."""
        return await self._world.view(self._world.fresh(unit))

    def planner_loans(self, rollout: RolloutKey) -> tuple[Loan, ...]:
        """The planner's facts of a rollout's loans, with the offers that wait for its answer."""
        return self._world.planner_loans(rollout)

    def decided(self, look: Look) -> None:
        """Offers that come before the next look are answered from this one."""
        self._world.gate.looked(look, self._world.clock.monotonic())

    async def answer(self, action: AnswerLoan, rollout: RolloutFact) -> None:
        """Passes the planner's decision on to the offer that waits; a late one is dropped."""
        memory = self._world.memories.get((action.namespace, action.loan))
        offer = memory.offer if memory is not None else None
        if offer is not None and offer.waiting.epoch == action.epoch:
            offer.decide(granted=action.granted, reason=action.reason)
        else:
            log.info("nobody waits for this answer", extra={"rollout": str(rollout.key), "answer": repr(action)})

    async def sync(self, rollout: RolloutFact) -> None:
        """Counts the loans; at every look. What agents and trainers do is followed beside the looks."""
        self._follower.count(rollout.key)

    async def run(self) -> None:
        """For ever, once the index is filled: answers trainers, follows their loans, ends those nobody wants."""
        self._open = True
        async with asyncio.TaskGroup() as works:
            works.create_task(self._follower.run())
            works.create_task(self._prune())

    async def _prune(self) -> None:
        while True:
            await self._world.clock.sleep(PRUNE_SECONDS)
            try:
                await self._follower.prune()
            except OperatorError as error:
                log.warning("loans not pruned", extra={"error": str(error)})
