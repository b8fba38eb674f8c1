"""Trainer pods that lend their GPUs between updates and take them back, through the operator's real loan service."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from soak_cluster import NAMESPACE, TRAINERS

from pearl_api.wire.loans import LendRequest, ReclaimedNotice, ReclaimingNotice, RegisterRequest
from pearl_dev.virtual.kube import Killed
from pearl_operator import kinds
from pearl_operator.errors import OperatorError
from pearl_operator.loans.limits import Calls
from pearl_operator.loans.problems import LoanProblem

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Iterator

    from soak_cluster import Cluster, Object, Process

    from pearl_api.wire.loans import LendAnswer, RegisterAnswer
    from pearl_operator.loans.service import LoanService

OFFER_SECONDS = 5.0
"""Between two offers that were refused."""
MINUTE = 60.0


def review(kube_objects: dict[tuple[str, str | None, str], Object], spec: Object) -> Object:
    """TokenReview of `token of POD`."""
    pod = kube_objects.get(("pods", TRAINERS, str(spec["token"]).removeprefix("token of ")))
    if pod is None:
        return {"authenticated": False, "error": "the pod is gone"}
    meta = pod["metadata"]
    values = {"pod-name": meta["name"], "pod-uid": meta["uid"], "node-name": pod["spec"]["nodeName"]}
    extra = {f"authentication.kubernetes.io/{name}": [value] for name, value in values.items()}
    user = {"username": f"system:serviceaccount:{TRAINERS}:default", "extra": extra}
    return {"authenticated": True, "audiences": ["pearl"], "user": user}


@dataclass
class Trainer:
    """One trainer after the other in the same place, each with `gpus` GPUs."""

    name: str
    rollout: str
    gpus: int
    cluster: Cluster
    process: Process
    random: random.Random
    told: Callable[[str, str], None]
    """(rollout, event) of what forces changes."""
    reclaiming: Callable[[str, float], None] = lambda _pod, _seconds: None
    """A reclaim of this pod's GPUs began, to be over by so many seconds."""
    lent_since: float | None = None
    resting: bool = False
    """No trainer starts any more."""
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _requests: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    async def run(self) -> None:
        """For ever."""
        while not self.resting:
            pod = f"{self.name}-{next(self._numbers)}"
            self._appear(pod)
            try:
                await self._live(pod)
            finally:
                self.lent_since = None
            self.told(self.rollout, f"trainer {pod} ended")
            self.cluster.kube.remove(kinds.POD, pod, TRAINERS)
            await asyncio.sleep(self.random.uniform(10, 30) * MINUTE)

    def _appear(self, pod: str) -> None:
        container = {"name": "train", "resources": {"limits": {"nvidia.com/gpu": str(self.gpus)}}}
        body = {
            "metadata": {"name": pod, "namespace": TRAINERS, "labels": {"role": "trainer"}},
            "spec": {"nodeName": f"machine-of-{self.name}", "containers": [container]},
            "status": {"phase": "Running"},
        }
        self.cluster.kube.store(kinds.POD, body)

    async def _live(self, pod: str) -> None:
        """Until it has done its updates; every third trainer dies while its GPUs are lent."""
        gpus = [f"GPU-{pod}-{number}" for number in range(self.gpus)]
        request = RegisterRequest(rollout=self.rollout, rollout_namespace=NAMESPACE, gpus=gpus)
        known = await self._until(lambda service: service.register(request, f"token of {pod}"), 10.0)
        epoch, updates, dies = known.epoch, self.random.randint(4, 30), self.random.random() < 1 / 3
        for update in range(updates):
            await asyncio.sleep(self.random.uniform(5, 60) * MINUTE)
            epoch = await self._lend(known, epoch, self.random.uniform(5, 40) * MINUTE)
            if dies and update == updates - 1:
                return
            await self._reclaim(known, epoch)

    async def _lend(self, known: RegisterAnswer, epoch: int, seconds: float) -> int:
        """Offers until granted, and lets the rest of the time pass; the newest epoch."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            answer = await self._offer(known, epoch, end - loop.time())
            if answer is not None:
                epoch = max(epoch, answer.epoch)
                if answer.granted:
                    self.lent_since = loop.time()
                    self.told(self.rollout, f"{known.name} lent its GPUs (epoch {epoch})")
                    await asyncio.sleep(end - loop.time())
                    return epoch
            await asyncio.sleep(OFFER_SECONDS)
        return epoch

    async def _offer(self, known: RegisterAnswer, epoch: int, left: float) -> LendAnswer | None:
        offer = LendRequest(request_id=f"{known.name}-{next(self._requests)}", cap_seconds=left, after_epoch=epoch)

        async def lend(service: LoanService) -> LendAnswer:
            unit = await service.unit(known.namespace, known.name, known.token, Calls.CHANGE, group=False)
            return await service.lend(unit, offer)

        return await self._call(lend)

    async def _reclaim(self, known: RegisterAnswer, epoch: int) -> None:
        """Straight to the agents, whatever the operator does; it is told as far as it answers."""
        lent, self.lent_since = self.lent_since is not None, None
        if lent:
            self.told(self.rollout, f"{known.name} takes its GPUs back (epoch {epoch})")
            self.reclaiming(known.name, known.reclaim_seconds)
        notice = ReclaimingNotice(epoch=epoch, within_seconds=known.reclaim_seconds if lent else 0.0)
        told = asyncio.create_task(self._tell(known, lambda service, unit: service.reclaiming(unit, notice)))
        await asyncio.sleep(self.random.uniform(0.5, 3.0))
        for borrower in list(self.cluster.borrowers.values()):
            if borrower.pod in {agent.pod for agent in known.agents}:
                borrower.fence(epoch)
        await told
        over = ReclaimedNotice(epoch=epoch, free=True, total_seconds=2.0)
        await self._tell(known, lambda service, unit: service.reclaimed(unit, over))

    async def _tell(self, known: RegisterAnswer, say: Callable[[LoanService, Any], Awaitable[Any]]) -> None:
        async def tell(service: LoanService) -> bool:
            unit = await service.unit(known.namespace, known.name, known.token, Calls.CHANGE, group=False)
            await say(service, unit)
            return True

        for _ in range(5):
            if await self._call(tell):
                return
            await asyncio.sleep(2.0)

    async def _call(self, call: Callable[[LoanService], Awaitable[Any]]) -> Any:
        """None where the operator does not answer, or refuses."""
        service = self.process.service
        if service is None:
            return None
        try:
            async with asyncio.timeout(10.0):
                return await call(service)
        except (OperatorError, LoanProblem, TimeoutError):
            return None
        except Killed:
            self.process.kill()
            return None

    async def _until(self, call: Callable[[LoanService], Awaitable[RegisterAnswer]], pause: float) -> RegisterAnswer:
        while True:
            answer: RegisterAnswer | None = await self._call(call)
            if answer is not None:
                return answer
            await asyncio.sleep(pause)
