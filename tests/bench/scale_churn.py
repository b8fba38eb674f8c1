"""What happens to the pods of the scale bench: they are deleted, and nodes end after a notice."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from scale_api import MERGE, PODS, Answered

from pearl_api import names

if TYPE_CHECKING:
    import random
    from collections.abc import Coroutine

    from scale_api import Api

Object = dict[str, Any]
Slot = tuple[str, str]
"""Rollout and slot."""

NOTICED_SHARE: Final = 0.2
"""Of the pods that go: those whose node ends."""
NOTICE_SECONDS: Final = 15.0
"""Between the taint and the end of the node."""
TAINT: Final = "pearl.dev/termination-notice"
SELECTOR: Final = f"{names.LABEL_ROLLOUT},{names.LABEL_COMPONENT}={names.COMPONENT_WORKER}"


@dataclass(slots=True)
class Fleet:
    """The worker pods as a watch of the bench's own sees them."""

    pods: dict[str, Object] = field(default_factory=dict)
    """By name; without those that are being deleted."""
    deleted_at: dict[Slot, float] = field(default_factory=dict)
    """When a pod of the slot was deleted that has no successor yet."""
    replaced: list[float] = field(default_factory=list)
    """Seconds from a deletion until the successor was seen."""

    async def follow(self, api: Api) -> None:
        """For ever."""
        async for event, pod in api.watch(PODS, labelSelector=SELECTOR):
            self.see(event, pod, asyncio.get_running_loop().time())

    def see(self, event: str, pod: Object, now: float) -> None:
        """A change of a pod."""
        name = pod["metadata"]["name"]
        if event == "DELETED" or "deletionTimestamp" in pod["metadata"]:
            self.pods.pop(name, None)
            return
        if name not in self.pods and (at := self.deleted_at.pop(slot_of(pod), None)) is not None:
            self.replaced.append(now - at)
        self.pods[name] = pod

    @property
    def ready(self) -> int:
        """Pods that are."""
        return sum(map(_is_ready, self.pods.values()))


def slot_of(pod: Object) -> Slot:
    """Which slot of which rollout it fills."""
    labels = pod["metadata"]["labels"]
    return labels[names.LABEL_ROLLOUT], labels[names.LABEL_SLOT]


def _is_ready(pod: Object) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", ()))


@dataclass(slots=True)
class Churn:
    """Takes pods away at a steady rate, whatever the API server takes for it."""

    api: Api
    fleet: Fleet
    random: random.Random
    deleted: int = 0
    """Pods deleted one by one."""
    noticed: int = 0
    """Pods on nodes when their notice came."""
    left_behind: int = 0
    """Those of them that were still there when the node ended."""
    nodes: int = 0
    _ending: set[str] = field(default_factory=set)
    _works: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def changes(self) -> int:
        """Pods that went or had to move."""
        return self.deleted + self.noticed

    async def run(self, rate: float, seconds: float) -> None:
        """So many pods per second for so long; the last nodes end later."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while (passed := loop.time() - began) < seconds:
            for _ in range(int(rate * passed) - self.changes):
                if self.noticed < NOTICED_SHARE * self.changes:
                    self._begin(self._notice())
                    break
                self.deleted += 1
                self._begin(self._delete())
            await asyncio.sleep(0.02)
        await asyncio.gather(*self._works)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._works.add(task)
        task.add_done_callback(self._works.discard)

    async def _delete(self) -> None:
        name = self.random.choice([each for each, pod in self.fleet.pods.items() if _is_ready(pod)])
        self.fleet.deleted_at[slot_of(self.fleet.pods.pop(name))] = asyncio.get_running_loop().time()
        await self._gone(name)

    async def _gone(self, name: str) -> None:
        with suppress(Answered):  # the operator may have been quicker
            await self.api.call("DELETE", f"{PODS}/{name}")

    async def _notice(self) -> None:
        """A node is announced to end, ends with what is still there, and comes back as a new one."""
        nodes = sorted({pod["spec"].get("nodeName", "") for pod in self.fleet.pods.values()} - self._ending - {""})
        node = self.random.choice(nodes)
        self._ending.add(node)
        self.nodes += 1
        self.noticed += len(self._pods_on(node))
        await self._taint(node, [{"key": TAINT, "effect": "NoSchedule"}])
        await asyncio.sleep(NOTICE_SECONDS)
        left = self._pods_on(node)
        self.left_behind += len(left)
        await asyncio.gather(*(self._gone(name) for name in left))
        await self._taint(node, [])
        self._ending.discard(node)

    async def _taint(self, node: str, more: list[Object]) -> None:
        always = {"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}
        spec = {"taints": [always, *more], "unschedulable": bool(more)}
        await self.api.call("PATCH", f"/api/v1/nodes/{node}", {"spec": spec}, kind=MERGE)

    def _pods_on(self, node: str) -> list[str]:
        return [name for name, pod in self.fleet.pods.items() if pod["spec"].get("nodeName") == node]
