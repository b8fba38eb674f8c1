"""The simulated trainer's pod: it lends through the operator's real loan service, and takes back at the agents."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pearl_api.wire.loans import LendRequest, ReclaimedNotice, ReclaimingNotice, RegisterRequest
from pearl_operator import kinds
from pearl_operator.errors import OperatorError
from pearl_operator.loans.limits import Calls
from pearl_operator.loans.problems import LoanProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from pearl_api.wire.loans import LendAnswer, RegisterAnswer
    from pearl_dev.virtual.borrower import Borrower
    from pearl_dev.virtual.data_plane import DataPlane
    from pearl_dev.virtual.kube import FakeKube, Object
    from pearl_operator.loans.service import LoanService
    from pearl_operator.loans.units import Unit

NAMESPACE, NAME, NODE = "ml", "trainer", "training-node"
OFFER_SECONDS = 5.0
"""Between two offers that were refused."""
ENROL_SECONDS = 5.0
FREE_SECONDS = 0.1
"""Between two questions to the agents whether the GPUs are free, as the SDK polls."""


def review(kube: FakeKube, spec: Object) -> Object:
    """TokenReview of `token of POD`, for pods of the trainer's namespace."""
    pod = kube.objects.get((kinds.POD.plural, NAMESPACE, str(spec["token"]).removeprefix("token of ")))
    if pod is None:
        return {"authenticated": False, "error": "the pod is gone"}
    meta = pod["metadata"]
    values = {"pod-name": meta["name"], "pod-uid": meta["uid"], "node-name": pod["spec"]["nodeName"]}
    extra = {f"authentication.kubernetes.io/{name}": [value] for name, value in values.items()}
    user = {"username": f"system:serviceaccount:{NAMESPACE}:default", "extra": extra}
    return {"authenticated": True, "audiences": ["pearl"], "user": user}


@dataclass(frozen=True, slots=True)
class Reclaim:
    """One time that the trainer wanted its GPUs."""

    at: float
    """Loop time."""
    was_lent: bool
    seconds: float
    """Until the agents of all borrowers said that the memory is free."""
    deadline_seconds: float


@dataclass
class TrainerPod:
    """One pod with all training GPUs. `offer` and `reclaim` are called by the simulated trainer."""

    rollout: str
    gpus: int
    labels: dict[str, str]
    plane: DataPlane
    service: LoanService
    reclaims: list[Reclaim] = field(default_factory=list)
    lent: bool = False
    _known: asyncio.Future[RegisterAnswer] | None = None
    _epoch: int = 0
    _offer: asyncio.Task[None] | None = None
    _over: asyncio.Event = field(default_factory=asyncio.Event)
    """The trainer waits no more."""
    _requests: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def start(self) -> None:
        """The pod appears and registers."""
        container = {"name": "train", "resources": {"limits": {"nvidia.com/gpu": str(self.gpus)}}}
        body = {
            "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": self.labels},
            "spec": {"nodeName": NODE, "containers": [container]},
            "status": {"phase": "Running"},
        }
        self.plane.kube.store(kinds.POD, body)
        self._known = asyncio.get_running_loop().create_future()
        self._run(self._enrol(self._known))

    async def close(self) -> None:
        """It does no more."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def check(self) -> None:
        """Raises what went wrong in the background."""
        for task in [one for one in self._tasks if one.done()]:
            self._tasks.discard(task)
            task.result()

    # ---- what the simulated trainer calls

    def offer(self) -> None:
        """Its GPUs may be had from now on."""
        self._over.clear()
        self._offer = self._run(self._offering())

    def reclaim(self, then: Callable[[], None]) -> None:
        """Its GPUs are wanted back: `then()` once they are free."""
        self._run(self._reclaim(then))

    def _run(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        return task

    async def _enrol(self, known: asyncio.Future[RegisterAnswer]) -> None:
        request = RegisterRequest(
            rollout=self.rollout, rollout_namespace="rl", gpus=[f"GPU-{number}" for number in range(self.gpus)]
        )
        while not known.done():
            try:
                known.set_result(await self.service.register(request, f"token of {NAME}"))
            except (OperatorError, LoanProblem):
                await asyncio.sleep(ENROL_SECONDS)

    async def _registered(self) -> RegisterAnswer:
        if self._known is None:
            raise RuntimeError("start() comes first")
        return await asyncio.shield(self._known)

    async def _unit(self) -> Unit:
        known = await self._registered()
        return await self.service.unit(known.namespace, known.name, known.token, Calls.CHANGE, group=False)

    async def _offering(self) -> None:
        """Again and again until one is granted, or the GPUs are wanted back."""
        await self._registered()
        while not self._over.is_set():
            answer = await self._lend()
            if answer is not None:
                self._epoch = max(self._epoch, answer.epoch)
                if answer.granted:
                    self.lent = True
                    return
            try:
                async with asyncio.timeout(OFFER_SECONDS):
                    await self._over.wait()
            except TimeoutError:
                continue

    async def _lend(self) -> LendAnswer | None:
        offer = LendRequest(request_id=f"{NAME}-{next(self._requests)}", after_epoch=self._epoch)
        try:
            return await self.service.lend(await self._unit(), offer)
        except (OperatorError, LoanProblem):
            return None

    async def _reclaim(self, then: Callable[[], None]) -> None:
        """An offer that is under way is answered first, as the SDK's lock has it."""
        began = asyncio.get_running_loop().time()
        self._over.set()
        if self._offer is not None:
            await self._offer
        lent, self.lent = self.lent, False
        deadline = (await self._registered()).reclaim_seconds
        told = asyncio.create_task(self._tell(ReclaimingNotice(epoch=self._epoch, within_seconds=deadline)))
        for borrower in self._borrowers():
            borrower.fence(self._epoch)
        while not all(borrower.memory_free for borrower in self._borrowers()):  # noqa: ASYNC110 - as the SDK asks agents
            await asyncio.sleep(FREE_SECONDS)
        seconds = asyncio.get_running_loop().time() - began
        await told
        await self._tell(ReclaimedNotice(epoch=self._epoch, free=True, total_seconds=seconds))
        self.reclaims.append(Reclaim(began, lent, seconds, deadline))
        self.plane.advance()
        then()

    def _borrowers(self) -> list[Borrower]:
        return list(self.plane.borrowers.values())

    async def _tell(self, notice: ReclaimingNotice | ReclaimedNotice) -> None:
        """The operator records it; the GPUs come back without."""
        try:
            unit = await self._unit()
            if isinstance(notice, ReclaimingNotice):
                await self.service.reclaiming(unit, notice)
            else:
                await self.service.reclaimed(unit, notice)
        except (OperatorError, LoanProblem):
            return
