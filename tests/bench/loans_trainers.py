"""The trainers' side of the loan bench: SDKs, and the agents of their borrower pods with emulated engines.

Engines take their time to start, wake, sleep and die; that time is not the protocol's and is kept apart.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx2
import uvicorn
from fake_borrower import GIB, BorrowerPod, FakeEngine

from pearl_trainer import NotReturned
from pearl_trainer.async_client import AsyncPearlClient
from pearl_trainer.gpus import MemoryProbe
from pearl_trainer.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from pathlib import Path

    from pearl_trainer.async_client import AsyncLoan

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds that an emulated engine takes (low, high), and the shares of reclaims with something special."""

    start: tuple[float, float] = (2.0, 4.0)
    wake: tuple[float, float] = (0.5, 1.5)
    sleep: tuple[float, float] = (0.1, 0.6)
    kill: tuple[float, float] = (0.2, 0.5)
    lent: tuple[float, float] = (2.0, 8.0)
    update: tuple[float, float] = (1.5, 4.0)
    stuck_share: float = 0.01
    """The engine does not sleep and has to be killed."""


class TimedEngine(FakeEngine):
    """Takes its time, keeps it, and sees when its GPU is in use by the trainer at the same time."""

    def __init__(self, pod: BorrowerPod, times: Times, dice: random.Random, trainer: Trainer) -> None:
        super().__init__(pod.device)
        self.times = times
        self.dice = dice
        self.trainer = trainer
        self.start_seconds = dice.uniform(*times.start)
        self.own_seconds = 0.0
        """Since the reclaim began."""

    def _take(self) -> None:
        self.trainer.double_holders += self.trainer.training
        self.device.used = 20 * GIB

    async def _last(self, bounds: tuple[float, float]) -> None:
        began = time.perf_counter()
        try:
            await asyncio.sleep(self.dice.uniform(*bounds))
        finally:
            self.own_seconds += time.perf_counter() - began

    async def launch(self) -> FakeEngine:
        launched = await super().launch()
        self._take()
        return launched

    async def wake(self, tags: str | None = None) -> None:
        if tags != "kv_cache":
            await self._last(self.times.wake)
            self._take()

    async def sleep(self, level: int) -> None:
        if self.dice.random() < self.times.stuck_share:
            await self._last((3600, 3600))
        await self._last(self.times.sleep)
        await super().sleep(level)

    async def kill(self) -> None:
        if self.running:
            await self._last(self.times.kill)
        await super().kill()


@dataclass
class Trainer:
    """One GPU set: its SDK, its borrower, and what was measured."""

    name: str
    client: AsyncPearlClient
    times: Times
    dice: random.Random
    grants: list[float] = field(default_factory=list)
    reclaims: list[tuple[float, float, float]] = field(default_factory=list)
    """When, total seconds, the engine's own seconds."""
    refusals: dict[str, int] = field(default_factory=dict)
    not_returned: list[str] = field(default_factory=list)
    """What each `NotReturned` said."""
    double_holders: int = 0
    training: bool = True
    pod: BorrowerPod | None = None
    counts_since: float = 0.0

    async def run(self, since: float, until: float, now: Callable[[], float]) -> None:
        """Joins at its turn before `since`, then lends and takes back, again and again; counts from `since` on."""
        await asyncio.sleep(self.dice.uniform(0.0, since - now()))
        self.counts_since = since
        loan = await self.client.register(rollout="swe", gpus=[f"GPU-{self.name}"], lend=False)
        while now() < until:
            await self._lend(loan, now)
            await asyncio.sleep(self.dice.uniform(*self.times.lent))
            await self._reclaim(loan, now)
            await asyncio.sleep(self.dice.uniform(*self.times.update))
        await loan.close()
        await self.client.close()

    async def _lend(self, loan: AsyncLoan, now: Callable[[], float]) -> None:
        self.training = False
        counts, began = now() >= self.counts_since, time.perf_counter()
        result = await loan.lend()
        if not counts:
            return
        if result.granted:
            self.grants.append(time.perf_counter() - began)
        else:
            self.refusals[result.reason] = self.refusals.get(result.reason, 0) + 1

    async def _reclaim(self, loan: AsyncLoan, now: Callable[[], float]) -> None:
        engine = self.pod.engine if self.pod is not None else None
        if isinstance(engine, TimedEngine):
            engine.own_seconds = 0.0
        at, began = now(), time.perf_counter()
        try:
            free = await loan.reclaim()
        except NotReturned as error:
            self.not_returned.append(str(error))
            return
        total = time.perf_counter() - began
        self.training = True
        self.double_holders += bool(self.pod is not None and self.pod.device.used)
        if at >= self.counts_since and free.via != "notLent" and isinstance(engine, TimedEngine):
            self.reclaims.append((at, total, engine.own_seconds))


class Agents:
    """The agents of all borrowers behind one port; the first part of the path is the pod."""

    def __init__(self, pipe: Connection, trainers: dict[str, Trainer], root: Path) -> None:
        self.pods: dict[str, BorrowerPod] = {}
        self._pipe = pipe
        self._trainers = trainers
        self._root = root
        asyncio.get_running_loop().add_reader(pipe.fileno(), self._made)

    def _made(self) -> None:
        body = self._pipe.recv()
        meta = body["metadata"]
        trainer = self._trainers[meta["name"].rpartition("-borrower-")[0]]
        made = TimedPod(body, self._root / meta["uid"], trainer)
        self.pods[meta["name"]] = trainer.pod = made
        self._pipe.send((meta["name"], False))

    async def __call__(self, scope: Object, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        _, name, rest = scope["path"].split("/", 2)
        await self.pods[name].app({**scope, "path": f"/{rest}", "raw_path": f"/{rest}".encode()}, receive, send)

    async def probe(self) -> None:
        """The kubelet's readiness probes."""
        told: dict[str, bool] = {}
        while True:
            for name, pod in self.pods.items():
                if told.get(name, False) != pod.worker.ready:
                    told[name] = pod.worker.ready
                    self._pipe.send((name, pod.worker.ready))
            await asyncio.sleep(1.0)


class TimedPod(BorrowerPod):
    """A borrower whose engine takes time."""

    def __init__(self, body: Object, state: Path, trainer: Trainer) -> None:
        self._trainer = trainer
        super().__init__(body, state)

    def make_engine(self) -> FakeEngine:
        return TimedEngine(self, self._trainer.times, self._trainer.dice, self._trainer)


def trainers(sets: int, operator_url: str, root: Path, times: Times, seed: int) -> dict[str, Trainer]:
    """One per GPU set."""
    made = {}
    for number in range(sets):
        name = f"trainer-{number}"
        (root / name).write_text(name)
        network = httpx2.AsyncHTTPTransport(verify=False)
        settings = Settings(operator_url, str(root / name))
        client = AsyncPearlClient(settings, transport=network, probe=MemoryProbe(lambda: None))
        made[name] = Trainer(name, client, times, random.Random(seed * 1000 + number))
    return made


def agents_server(app: Agents, port: int) -> uvicorn.Server:
    """Serves the agents."""
    config = uvicorn.Config(app, host="127.0.0.1", port=port, log_config=None, access_log=False, lifespan="off")
    return uvicorn.Server(config)
