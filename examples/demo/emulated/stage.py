"""The operator with everything around it on one event loop, and the course of the act."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from examples.demo.emulated import scenario as played
from pearl_api.rollout import PearlRolloutSpec
from pearl_dev.virtual.agents import SimulatedAgents
from pearl_dev.virtual.clock import VirtualClock
from pearl_dev.virtual.data_plane import DataPlane
from pearl_dev.virtual.kube import FakeKube
from pearl_dev.virtual.kubelet import FakeKubelet
from pearl_dev.virtual.operator import Operator, assembled
from pearl_dev.virtual.trainer_pod import NAMESPACE as TRAINERS
from pearl_dev.virtual.trainer_pod import TrainerPod, review
from pearl_operator import kinds
from pearl_operator.ports import RolloutKey
from pearl_operator.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from pearl_simulator.types import Scenario

NAMESPACE, NAME = "rl", "swe"
KEY = RolloutKey(NAMESPACE, NAME)
TICK_SECONDS = 1.0
DRAIN_SECONDS = 1800.0
"""After the trace nothing new begins, and what has begun may end."""


@dataclass
class Stage:
    """One PearlRollout, its operator, its emulated workers, its trainer."""

    scenario: Scenario
    seed: int
    kube: FakeKube = field(init=False)
    plane: DataPlane = field(init=False)
    operator: Operator = field(init=False)
    trainer: TrainerPod = field(init=False)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        clock = VirtualClock()
        self.kube = FakeKube(clock)
        self.kube.review = lambda spec: review(self.kube, spec)
        self.plane = DataPlane(self.scenario, self.seed, self.kube, FakeKubelet(self.kube, schedule=False))
        self.operator = assembled(
            kube=self.kube,
            gateway=self.plane.gateway,
            prometheus=self.plane.gateway,
            agents=SimulatedAgents(self.plane),
            clock=clock,
            settings=Settings(namespace=NAMESPACE, gateway_image="example/operator:1", trainer_namespaces=(TRAINERS,)),
        )
        gpus = self.scenario.fleet.borrowed_max_gpus
        self.trainer = TrainerPod(NAME, gpus, played.TRAINER_LABELS, self.plane, self.operator.service)
        self.plane.world.trainer.lender = self.trainer

    async def play(self, every_second: Callable[[], None], say: Callable[[str], None]) -> None:
        """The trace to its end, then until what has begun has ended."""
        world = self.plane.world
        await self._begin()
        try:
            while not self.plane.over:
                await self._tick(every_second)
            say("the trace ends: nothing new begins, and what has begun may end")
            world.feed.closed = True
            end = world.clock.now + DRAIN_SECONDS
            while world.feed.live and world.clock.now < end:
                await self._tick(every_second)
            await self._give_back()
            await self._tick(every_second)
        finally:
            await self._end()

    async def _tick(self, every_second: Callable[[], None]) -> None:
        await asyncio.sleep(TICK_SECONDS)
        for task in self._tasks:
            if task.done():
                task.result()
        self.trainer.check()
        self.plane.advance()
        self.plane.world.check()
        every_second()

    async def _begin(self) -> None:
        spec = PearlRolloutSpec.model_validate(played.spec(self.scenario))
        body = {
            "metadata": {"name": NAME, "namespace": NAMESPACE},
            "spec": spec.model_dump(mode="json", by_alias=True, exclude_none=True),
        }
        self.kube.store(kinds.ROLLOUT, body)
        self.kube.watchers.append(self.operator.watch)
        await self.operator.resync.once()
        runs = (self.operator.core.supervisor.run(), self.operator.service.run(), self.operator.resync.run())
        self._tasks = [asyncio.create_task(one) for one in runs]
        self.trainer.start()
        self.plane.start()

    async def _give_back(self) -> None:
        """The trainer takes its GPUs for good."""
        back = asyncio.Event()
        self.trainer.reclaim(back.set)
        await back.wait()

    async def _end(self) -> None:
        await self.trainer.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
