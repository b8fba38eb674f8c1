"""A kubelet on virtual time: writes the status of worker pods."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pearl_api import names
from pearl_operator import kinds
from pearl_operator.clock import to_rfc3339

if TYPE_CHECKING:
    from pearl_dev.virtual.kube import FakeKube, Object
    from pearl_operator.kinds import Kind

START_SECONDS = 5.0


@dataclass
class FakeKubelet:
    """Runs worker pods: an address after a second, ready after `start_seconds`."""

    kube: FakeKube
    start_seconds: float = START_SECONDS
    schedule: bool = True
    _addresses: Any = field(default_factory=lambda: itertools.count(2))

    def __post_init__(self) -> None:
        self.kube.watchers.append(self._seen)

    def _seen(self, event: str, kind: Kind, body: Object) -> None:
        if kind is not kinds.POD or event != "ADDED" or not self.schedule:
            return
        loop, meta = asyncio.get_running_loop(), body["metadata"]
        loop.call_later(1.0, self._status, meta["name"], meta["namespace"], meta["uid"], "starting")
        loop.call_later(self.start_seconds, self._status, meta["name"], meta["namespace"], meta["uid"], "ready")

    def _status(self, name: str, namespace: str, uid: str, state: str) -> None:
        pod = self.kube.objects.get(("pods", namespace, name))
        if pod is None or pod["metadata"]["uid"] != uid:
            return
        self.set_status(pod, ready=state == "ready")

    def set_status(self, pod: Object, *, ready: bool) -> Object:
        """The pod runs on a node of its own, and is ready or not."""
        now = to_rfc3339(self.kube.clock.now())
        address = pod.get("status", {}).get("podIP") or f"10.0.0.{next(self._addresses)}"
        status = {
            "phase": "Running",
            "podIP": address,
            "containerStatuses": [{"name": "worker", "restartCount": 0, "state": {"running": {"startedAt": now}}}],
            "conditions": [
                {"type": "PodScheduled", "status": "True"},
                {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": now},
            ],
        }
        slot = pod["metadata"].get("labels", {}).get(names.LABEL_SLOT, "0")
        spec = {"nodeName": f"node-{slot}", **pod.get("spec", {})}  # every slot has a node of its own
        return self.kube.store(kinds.POD, {**pod, "spec": spec, "status": status})
