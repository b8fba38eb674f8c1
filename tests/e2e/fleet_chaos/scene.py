"""A fleet of three workers on two nodes, of which one may die, under load; and what must hold when all is mended."""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loans_chaos import processes
from loans_chaos.load import Load

from pearl_api import names
from pearl_dev.fleet import wait_for
from pearl_dev.product import NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pearl_dev.fleet import Fleet
    from pearl_dev.product import Installation

SAFE, EDGE = 0, 1
"""Nodes: operator and gateway are on the first, one or two workers on the other."""
ROLES = {"prefill": 1, "decode": 2}
PER_SECOND = 1.5
LONG_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Scene:
    """PEARL and one rollout; every case begins and ends with one prefill and two decode workers."""

    installation: Installation
    fleet: Fleet

    def spread(self) -> None:
        """Operator and gateway stay on the first node; workers are on both."""
        safe = {"kubernetes.io/hostname": self.installation.cluster.nodes[SAFE].name}
        self.installation.install_chart({"operator": {"nodeSelector": safe}})
        labels = {names.LABEL_COMPONENT: names.COMPONENT_WORKER, names.LABEL_ROLLOUT: self.fleet.name}
        spread = {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": labels},
        }
        template = self.fleet.resource()["spec"]["podTemplate"]
        template["spec"]["topologySpreadConstraints"] = [spread]
        self.fleet.patch({"podTemplate": template, "gateway": {"podTemplate": {"spec": {"nodeSelector": safe}}}})

    def at_rest(self) -> dict[str, str]:
        """Wait for the shape that every case begins with; UIDs of its pods by name."""
        self.fleet.patch({"mode": "Disaggregated", "ratio": ROLES, "capacity": {"reserved": {"gpus": 3}}})
        self.fleet.wait_ready(3, seconds=LONG_SECONDS)
        self.fleet.wait_roles(ROLES, seconds=LONG_SECONDS)
        wait_for(self._nothing_else, seconds=LONG_SECONDS, what="no pod is left over", last=self.pods)
        return self.fleet.uids()

    def _nothing_else(self) -> bool:
        slots = self.fleet.status()["target"]["slots"]
        return len(self.pods()) == len(slots) == sum(ROLES.values())

    def pods(self) -> list[str]:
        """Names of all worker pods, those that are being deleted too."""
        selector = f"{names.LABEL_ROLLOUT}={self.fleet.name},{names.LABEL_COMPONENT}={names.COMPONENT_WORKER}"
        found = self.fleet.api.items("/api/v1/pods", labelSelector=selector)
        return [pod["metadata"]["name"] for pod in found]

    @contextmanager
    def load(self) -> Iterator[Load]:
        """Turns all the while; none may be lost."""
        load = Load(self.fleet, PER_SECOND, seed=1, max_tokens=(20, 120))
        try:
            self.goes_on(load)
            yield load
        finally:
            asked = load.close()
        assert [one for one in asked if one.problem] == []

    def goes_on(self, load: Load, turns: int = 5, seconds: float = 60.0) -> None:
        """Wait for further answers."""
        wanted = load.answered + turns
        wait_for(
            lambda: load.answered >= wanted, seconds=seconds, what="turns are answered", last=lambda: load.answered
        )

    def component(self, component: str) -> dict[str, Any]:
        """The one pod of operator or gateway."""
        label = f"{names.LABEL_COMPONENT}={component}"
        pods = self.fleet.api.items(f"/api/v1/namespaces/{NAMESPACE}/pods", labelSelector=label)
        return next(pod for pod in pods if "deletionTimestamp" not in pod["metadata"])

    def kill_operator(self) -> None:
        """SIGKILL, and a pod in its place at once: the kubelet would wait longer before each further start."""
        name = self.component("operator")["metadata"]["name"]
        self.installation.cluster.kubectl("-n", NAMESPACE, "delete", "pod", name, "--grace-period=0", "--force")

    def sandbox(self, pod: dict[str, Any]) -> int:
        """Process that keeps a pod's network."""
        found = processes.sandbox_of(pod["metadata"]["uid"])
        assert found is not None, f"{pod['metadata']['name']} has no network"
        return found

    @contextmanager
    def cut(self, pods: list[dict[str, Any]], others: list[dict[str, Any]]) -> Iterator[None]:
        """No packets between these pods and the others."""
        pairs = [(self.sandbox(one), other["status"]["podIP"]) for one in pods for other in others]
        for pid, address in pairs:
            assert processes.cut(pid, address)
        try:
            yield
        finally:
            for pid, address in pairs:
                processes.mend(pid, address)

    def of_role(self, role: str) -> list[dict[str, Any]]:
        """Worker pods of one role."""
        return [pod for pod in self.fleet.workers() if pod["metadata"]["labels"][names.LABEL_ROLE] == role]

    def transfers(self) -> tuple[float, float]:
        """KV transfers that failed and that arrived, of all decode workers, as their engines count."""
        said = [self._metrics(pod) for pod in self.of_role("decode")]

        def total(name: str) -> float:
            found = (re.findall(rf"^vllm:{name}{{.*}} (.*)$", text, re.MULTILINE) for text in said)
            return sum(float(value) for values in found for value in values)

        return total("nixl_num_failed_transfers_total"), total("nixl_xfer_time_seconds_count")

    def _metrics(self, pod: dict[str, Any]) -> str:
        token = self.fleet.worker_token(pod, "engine")
        url = f"http://{pod['status']['podIP']}:{names.PORT_ENGINE}/metrics"
        answer = self.fleet.http.get(url, headers={"Authorization": f"Bearer {token}"})
        answer.raise_for_status()
        return answer.text

    def node_is(self, ready: str, seconds: float = 120.0) -> None:
        """Wait for the second node's condition Ready."""
        name = self.installation.cluster.nodes[EDGE].name

        def seen() -> bool:
            node = self.fleet.api.get(f"/api/v1/nodes/{name}") or {}
            return any(c["type"] == "Ready" and c["status"] == ready for c in node["status"]["conditions"])

        wait_for(seen, seconds=seconds, what=f"{name} is Ready={ready}")

    def says(self, kind: str, word: str, seconds: float = 120.0) -> None:
        """Wait for a word in one condition's reason or message."""

        def seen() -> bool:
            condition = self.fleet.condition(kind)
            return word in f"{condition.get('reason')} {condition.get('message')}"

        wait_for(seen, seconds=seconds, what=f"{kind} says {word}", last=lambda: self.fleet.condition(kind))

    def holds_for(self, seconds: float, load: Load, uids: dict[str, str]) -> None:
        """For so long the pods are these, and turns are answered."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.goes_on(load, turns=1)
            assert self.fleet.uids() == uids
