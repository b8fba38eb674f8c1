"""Elastic nodes that come and go by recorded spot traces, announced as clouds do, or not at all."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from soak_cluster import NAMESPACE, Node

from pearl_operator import kinds
from pearl_operator.clock import to_rfc3339
from pearl_simulator.workloads.capacity import MOST_GPUS, RESERVED_GPUS, load_shipped

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    from soak_cluster import Cluster, Object

MOST_NODES = MOST_GPUS - RESERVED_GPUS
"""Of a trace."""
LAST_SECONDS = 600.0
"""How long a trace's last count stands before it begins anew."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """How a machine's end is told: a taint, an annotation with the time, a condition of the pod, or nothing."""

    cloud: str
    seconds: float
    """From the sign to the end."""
    taint: str | None = None


ANNOUNCEMENTS = (
    Announcement("GKE", 15.0, "cloud.google.com/impending-node-termination"),
    Announcement("EKS", 120.0, "aws-node-termination-handler/spot-itn"),
    Announcement("AKS", 30.0, "remediator.kubernetes.azure.com/unschedulable"),
    Announcement("autoscaler", 60.0, "ToBeDeletedByClusterAutoscaler"),
    Announcement("Karpenter", 90.0),
    Announcement("eviction", 30.0),
    Announcement("none", 0.0),
)


def changes(traces: tuple[str, ...], most: int) -> Iterator[tuple[float, int]]:
    """(seconds until the next change, nodes from now on), for ever: one trace after the other, scaled to `most`."""
    for name in itertools.cycle(traces):
        known = load_shipped(name)
        following = [one.at_seconds for one in known[1:]] + [known[-1].at_seconds + LAST_SECONDS]
        for change, until in zip(known, following, strict=True):
            yield until - change.at_seconds, round(change.elastic_gpus * most / MOST_NODES)


@dataclass
class Pool:
    """The elastic nodes of one rollout."""

    rollout: str
    traces: tuple[str, ...]
    most: int
    cluster: Cluster
    random: random.Random
    told: Callable[[str, str], None]
    """(rollout, event) of what forces changes."""
    noticed: Callable[[str], None]
    """Of rollouts for which there is more room."""
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _ends: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self) -> None:
        """For ever."""
        for seconds, nodes in changes(self.traces, self.most):
            self._become(nodes)
            await asyncio.sleep(seconds)

    def _become(self, count: int) -> None:
        staying = [one for one in self.cluster.nodes.values() if one.pool == self.rollout and not one.leaving]
        for _ in range(count - len(staying)):
            self.cluster.add_node(Node(f"{self.rollout}-{next(self._numbers)}", self.rollout))
            self.noticed(self.rollout)
        for node in self.random.sample(staying, max(len(staying) - count, 0)):
            task = asyncio.create_task(self._end(node, self.random.choice(ANNOUNCEMENTS)))
            self._ends.add(task)
            task.add_done_callback(self._ends.discard)

    async def _end(self, node: Node, how: Announcement) -> None:
        node.leaving = True
        if node.pod is not None:
            self.told(self.rollout, f"node {node.name} with {node.pod} ends in {how.seconds:.0f} s ({how.cloud})")
        self._announce(node, how)
        await asyncio.sleep(how.seconds)
        if node.pod is not None:
            self.told(self.rollout, f"node {node.name} with {node.pod} is gone")
        self.cluster.remove_node(node.name)

    def _announce(self, node: Node, how: Announcement) -> None:
        kube, now = self.cluster.kube, self.cluster.kube.clock.now()
        body: Object = {"metadata": {"name": node.name}, "status": {"conditions": []}}
        if how.taint is not None:
            taint = {"key": how.taint, "effect": "NoSchedule", "timeAdded": to_rfc3339(now, digits="seconds")}
            kube.store(kinds.NODE, {**body, "spec": {"taints": [taint]}})
        elif how.cloud == "Karpenter":
            end = {"karpenter.sh/nodeclaim-termination-timestamp": to_rfc3339(now + how.seconds)}
            kube.store(kinds.NODE, {**body, "metadata": {"name": node.name, "annotations": end}})
        elif how.cloud == "eviction" and node.pod is not None:
            pod = kube.objects.get(("pods", NAMESPACE, node.pod))
            if pod is not None:
                told = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
                status = pod.get("status") or {}
                kube.store(
                    kinds.POD, {**pod, "status": {**status, "conditions": [*status.get("conditions", []), told]}}
                )
