"""Plays one event on a scene and undoes it; which one it was is the event's own business, when it comes is `run`'s."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway_chaos.events import Event, Kind
from gateway_chaos.link import DECODE, PREFILL, Late
from gateway_chaos.scene import ROLES
from pearl_api.names import Activity

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway_chaos.pod import Pod
    from gateway_chaos.scene import Scene


@dataclass(frozen=True, slots=True)
class Pace:
    """How long things last, in seconds."""

    away: float = 0.4
    """Of a worker that was drained, put to sleep or reclaimed."""
    reclaim: float = 8.0
    partition: float = 0.6
    stall: float = 1.3
    """Of the gateway: longer than a lease."""
    least_ready: int = 4
    """Workers that must serve, and the gateway answer, before the next event: nothing is lost where nothing runs."""


class Player:
    """`play` returns what did not hold, or nothing."""

    def __init__(self, scene: Scene, pace: Pace) -> None:
        self._scene = scene
        self._pace = pace
        self.skipped = 0
        """Events that found no worker to happen to."""

    async def play(self, event: Event) -> str:
        scene = self._scene
        whole: dict[Kind, Callable[[], Awaitable[object]]] = {
            Kind.UPDATE: scene.publish,
            Kind.GATEWAY_STALL: lambda: scene.gateway.stand_still(self._pace.stall * (0.3 + event.chance)),
            Kind.GATEWAY_KILL: lambda: scene.gateway.kill(event.chance),
            Kind.GATEWAY_RESTART: scene.gateway.restart,
        }
        if event.kind in whole:
            await whole[event.kind]()
            return ""
        pod = scene.pick(event.victim, borrowed=True if event.kind is Kind.RECLAIM else None)
        if pod is None:
            self.skipped += 1
            return ""
        scene.busy.add(pod.uid)
        try:
            return await self._on(pod, event)
        finally:
            scene.busy.discard(pod.uid)

    async def _on(self, pod: Pod, event: Event) -> str:
        lease = self._scene.stage.lease_seconds
        steps: dict[Kind, Callable[[], Awaitable[str | None]]] = {
            Kind.KILL: pod.launcher.murder,
            Kind.REPLACE: lambda: self._replace(pod),
            Kind.DRAIN: lambda: self._away(pod, Activity.DRAINING, event.chance),
            Kind.SLEEP: lambda: self._away(pod, Activity.ASLEEP, event.chance),
            Kind.FLIP: lambda: self._flip(pod, event.chance),
            Kind.RECLAIM: lambda: pod.reclaim(self._pace.reclaim, self._pace.away * event.chance),
            Kind.TORN: lambda: self._torn(pod),
            Kind.LEASE: lambda: self._late(pod, event.chance, lease),
            Kind.PARTITION: lambda: self._partition(pod, event.chance),
            Kind.KV_PARTITION: lambda: pod.launcher.split(self._pace.partition * 2 * event.chance),
            Kind.CUT: lambda: self._cut(pod),
        }
        return await steps[event.kind]() or ""

    async def _replace(self, pod: Pod) -> None:
        await self._scene.replace(pod)

    async def _away(self, pod: Pod, activity: Activity, chance: float) -> None:
        pod.say(activity, deadline_seconds=self._pace.away * chance)
        await asyncio.sleep(self._pace.away * (0.5 + chance))
        pod.say(Activity.ACTIVE)

    @staticmethod
    async def _flip(pod: Pod, chance: float) -> None:
        others = [role for role in ROLES if role is not pod.role or chance < 0.1]
        pod.flip(others[int(chance * len(others))])

    async def _torn(self, pod: Pod) -> None:
        pod.launcher.tear_next_load()
        await self._scene.publish()

    @staticmethod
    async def _late(pod: Pod, chance: float, lease: float) -> None:
        """Hand-offs through this worker are late by about a lease, some just before its end and some after it."""
        pod.link.late = late = Late(DECODE if chance < 0.5 else PREFILL, lease * (0.4 + 1.4 * ((2 * chance) % 1)), 4)
        for _ in range(8):
            await asyncio.sleep(lease / 4)
            if not late.count:
                break
        pod.link.late = None

    async def _partition(self, pod: Pod, chance: float) -> None:
        for link in (pod.link, pod.agent_link):
            link.hold()
        await asyncio.sleep(self._pace.partition * (0.2 + 4 * chance * chance))
        for link in (pod.link, pod.agent_link):
            link.heal()

    @staticmethod
    async def _cut(pod: Pod) -> None:
        pod.link.cut()
