"""The operator against a real API server, scheduler, garbage collector and kubelet.

What counts here is the Kubernetes API: field ownership, UIDs, quotas, owner references, the Lease. The worker
containers therefore run a few lines that only answer the kubelet's probes; engines are tested elsewhere.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pearl_api import names
from pearl_api.rollout import PearlRolloutStatus, WeightsStatus
from pearl_dev.shell import wait_until
from pearl_operator import kinds
from pearl_operator.calls import Calls
from pearl_operator.clock import SystemClock
from pearl_operator.kube import KubeClient, load_client
from pearl_operator.report import to_wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pearl_dev.handle import Cluster

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
PROBES = (
    "from http.server import BaseHTTPRequestHandler as H, ThreadingHTTPServer as S\n"
    "class A(H):\n"
    " def do_GET(self):\n"
    "  self.send_response(200); self.end_headers()\n"
    " def log_message(self, *a): pass\n"
    "S(('', 8001), A).serve_forever()\n"
)
LEASE_SECONDS = 6.0


@dataclass
class OperatorProcess:
    """`pearl-operator` as a process on this machine."""

    cluster: Cluster
    namespace: str
    identity: str
    log: Path
    port: int = field(init=False)
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def start(self) -> None:
        environment = os.environ | {
            "KUBECONFIG": str(self.cluster.kubeconfig),
            "PEARL_NAMESPACE": self.namespace,
            "PEARL_GATEWAY_IMAGE": "docker.io/pearl/absent:1",
            "PEARL_IDENTITY": self.identity,
            "PEARL_PORT": str(self.port),
            "PEARL_LEASE_SECONDS": f"{LEASE_SECONDS:g}",
            "PEARL_CALL_TIMEOUT_SECONDS": "3",
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([sys.executable, "-m", "pearl_operator.main"], env=environment, stderr=log)

    def end(self, number: signal.Signals) -> int:
        """Sends the signal; the exit status."""
        if self.process is None:
            return 0
        self.process.send_signal(number)
        status = self.process.wait(timeout=30)
        self.process = None
        return status

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def rollout(name: str, gpus: int) -> dict[str, Any]:
    """Without a namespace; `Scene.apply` gives it."""
    container = {"name": "worker", "command": ["python3", "-c", PROBES]}
    return {
        "apiVersion": names.API_VERSION,
        "kind": "PearlRollout",
        "metadata": {"name": name},
        "spec": {
            "model": {"name": "Qwen/Qwen3-8B", "uri": "/models/none"},
            "engine": {"image": "docker.io/library/python:3.11-slim"},
            "capacity": {"reserved": {"gpus": gpus}},
            "policy": {"deadlines": {"drainSeconds": 4}, "hysteresis": {"minDwellSeconds": 0}},
            "podTemplate": {"spec": {"containers": [container], "terminationGracePeriodSeconds": 1}},
        },
    }


class Scene:
    """The namespace of one test."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.folder = folder
        self.started: list[OperatorProcess] = []

    def operator(self, identity: str = "one") -> OperatorProcess:
        process = OperatorProcess(self.cluster, self.namespace, identity, self.folder / f"{identity}.log")
        self.started.append(process)
        process.start()
        return process

    def apply(self, manifest: dict[str, Any]) -> None:
        metadata = {**manifest["metadata"], "namespace": self.namespace}
        self.cluster.apply({**manifest, "metadata": metadata})

    def kubectl(self, *words: str) -> str:
        return self.cluster.kubectl(*words, "-n", self.namespace)

    def get(self, *words: str) -> Any:
        return self.cluster.get(*words, "-n", self.namespace)

    def pods(self, name: str) -> dict[str, dict[str, Any]]:
        selector = f"{names.LABEL_ROLLOUT}={name},{names.LABEL_COMPONENT}=worker"
        found = self.get("pods", "-l", selector, "--show-managed-fields")["items"]
        return {pod["metadata"]["name"]: pod for pod in found}

    def status(self, name: str) -> dict[str, Any]:
        status: dict[str, Any] = self.get("pearlrollout", name).get("status") or {}
        return status

    def condition(self, name: str, kind: str) -> tuple[str, str, str]:
        """Status, reason, message."""
        conditions = self.status(name).get("conditions", [])
        return next(((c["status"], c["reason"], c["message"]) for c in conditions if c["type"] == kind), ("", "", ""))

    def serving(self, name: str, count: int) -> bool:
        workers = self.status(name).get("workers", {})
        return workers.get("ready") == count and workers.get("total") == count == len(self.pods(name))

    def until(self, what: str, condition: Callable[[], bool], seconds: float = 60) -> None:
        wait_until(condition, what=what, timeout_seconds=seconds)


@pytest.fixture
def scene(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    for crd in ("pearlrollouts", "gpuloans"):
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds" / f"{crd}.yaml"))
    namespace = f"operator-{zlib.crc32(request.node.name.encode()):08x}"
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    found = Scene(cluster, namespace, tmp_path)
    yield found
    for process in found.started:
        process.end(signal.SIGKILL)
    cluster.kubectl("delete", "namespace", namespace, "--wait=false")


def uid(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["uid"])


def owned_by(pod: dict[str, Any], manager: str) -> set[str]:
    """Labels that a field manager owns."""
    entries = [entry for entry in pod["metadata"]["managedFields"] if entry["manager"] == manager]
    fields = [entry["fieldsV1"].get("f:metadata", {}).get("f:labels", {}) for entry in entries]
    return {label.removeprefix("f:") for found in fields for label in found if label != "."}


def test_a_flip_keeps_the_pod_and_owns_three_labels_only(scene: Scene) -> None:
    scene.operator()
    scene.apply(rollout("flip", 3))
    scene.until("three workers serve", lambda: scene.serving("flip", 3))
    before = scene.pods("flip")
    some = next(iter(before))
    scene.kubectl("label", "pod", some, "team=rl")

    manifest = rollout("flip", 3)
    manifest["spec"] |= {"mode": "Disaggregated", "ratio": {"prefill": 1, "decode": 2}}
    scene.apply(manifest)
    scene.until("roles are 1P2D", lambda: scene.status("flip").get("mode") == "Disaggregated")

    after = scene.pods("flip")
    assert {name: uid(pod) for name, pod in after.items()} == {name: uid(pod) for name, pod in before.items()}
    assert {pod["status"]["containerStatuses"][0]["restartCount"] for pod in after.values()} == {0}
    assert sorted(pod["metadata"]["labels"][names.LABEL_ROLE] for pod in after.values()) == [
        "decode",
        "decode",
        "prefill",
    ]
    assert after[some]["metadata"]["labels"]["team"] == "rl"
    flipped = [pod for pod in after.values() if owned_by(pod, names.FIELD_MANAGER_ROLE)]
    assert len(flipped) == 3
    for pod in flipped:
        assert owned_by(pod, names.FIELD_MANAGER_ROLE) == {
            names.LABEL_ROLE,
            names.LABEL_ROLE_EPOCH,
            names.LABEL_ACTIVITY,
        }


def test_grow_and_shrink_touch_one_pod(scene: Scene) -> None:
    scene.operator()
    scene.apply(rollout("size", 2))
    scene.until("two workers serve", lambda: scene.serving("size", 2))
    before = {name: uid(pod) for name, pod in scene.pods("size").items()}

    scene.apply(rollout("size", 3))
    scene.until("three workers serve", lambda: scene.serving("size", 3))
    grown = {name: uid(pod) for name, pod in scene.pods("size").items()}
    assert {name: grown[name] for name in before} == before

    scene.apply(rollout("size", 2))
    scene.until("two workers are left", lambda: scene.serving("size", 2))
    left = {name: uid(pod) for name, pod in scene.pods("size").items()}
    assert left.items() <= grown.items()

    suspended = rollout("size", 2)
    suspended["spec"]["suspend"] = True  # the target in the status had slots, and has none now
    scene.apply(suspended)
    scene.until("no worker is left", lambda: not scene.pods("size"))


def test_everything_goes_with_the_rollout_though_the_operator_is_dead(scene: Scene) -> None:
    operator = scene.operator()
    scene.apply(rollout("gone", 2))
    scene.until("two workers serve", lambda: scene.serving("gone", 2))
    owned = ("pods", "secrets", "services", "deployments", "poddisruptionbudgets")
    selector = f"{names.LABEL_ROLLOUT}=gone"
    for kind in owned:
        assert scene.get(kind, "-l", selector)["items"], kind

    operator.end(signal.SIGKILL)
    scene.kubectl("delete", "pearlrollout", "gone", "--timeout=10s")
    scene.until(
        "all of it is gone",
        lambda: not any(scene.get(kind, "-l", selector)["items"] for kind in owned),
    )


def test_a_second_operator_waits_and_takes_over_from_a_killed_one(scene: Scene) -> None:
    first = scene.operator("one")
    scene.until("the first holds the lease", first.ready)
    second = scene.operator("two")
    scene.apply(rollout("two", 2))
    scene.until("two workers serve", lambda: scene.serving("two", 2))
    before = {name: uid(pod) for name, pod in scene.pods("two").items()}
    assert not second.ready()

    first.end(signal.SIGKILL)
    killed_at = time.monotonic()
    scene.apply(rollout("two", 3))
    scene.until("the second took over", second.ready)
    assert time.monotonic() - killed_at < 2 * LEASE_SECONDS + 5
    scene.until("three workers serve", lambda: scene.serving("two", 3))
    assert before.items() <= {name: uid(pod) for name, pod in scene.pods("two").items()}.items()

    assert second.end(signal.SIGTERM) == 0
    lease = scene.get("lease", "pearl-operator")
    assert not lease["spec"].get("holderIdentity"), "a stopped operator lets its successor start at once"


def test_an_operator_that_lost_its_lease_ends(scene: Scene) -> None:
    operator = scene.operator("one")
    scene.until("it holds the lease", operator.ready)
    scene.kubectl("patch", "lease", "pearl-operator", "--type=merge", "-p", '{"spec":{"holderIdentity":"other"}}')
    assert operator.process is not None
    assert operator.process.wait(timeout=30) == 1
    operator.process = None
    assert "is held by 'other'" in operator.log.read_text()


def test_an_invalid_template_is_told_in_the_api_servers_words(scene: Scene) -> None:
    scene.operator()
    scene.apply(rollout("words", 1))
    scene.until("one worker serves", lambda: scene.serving("words", 1))
    before = {name: uid(pod) for name, pod in scene.pods("words").items()}

    manifest = rollout("words", 1)
    manifest["spec"]["podTemplate"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "-1"}}
    scene.apply(manifest)
    scene.until("it is told", lambda: scene.condition("words", "Degraded")[1] == "InvalidPodTemplate")
    assert "must be greater than or equal to 0" in scene.condition("words", "Degraded")[2]
    assert {name: uid(pod) for name, pod in scene.pods("words").items()} == before

    scene.apply(rollout("words", 1))
    scene.until("it is well again", lambda: scene.condition("words", "Degraded")[1] == "Healthy")


def test_a_quota_is_a_matter_of_capacity_and_not_of_the_template(scene: Scene) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus"}}
    scene.apply({**quota, "spec": {"hard": {"requests.nvidia.com/gpu": "1"}}})
    scene.operator()
    scene.apply(rollout("quota", 2))
    scene.until("it is told", lambda: scene.condition("quota", "CapacityAvailable")[1] == "QuotaOrAdmission")
    assert "exceeded quota: gpus" in scene.condition("quota", "CapacityAvailable")[2]
    assert scene.condition("quota", "Degraded")[1] == "Healthy"
    assert len(scene.pods("quota")) == 1

    scene.kubectl("delete", "resourcequota", "gpus")
    scene.until("two workers serve", lambda: scene.serving("quota", 2), seconds=90)


def test_an_autoscaler_of_the_gateway_is_told_and_not_fought(scene: Scene) -> None:
    """A real HorizontalPodAutoscaler and a real operator: the autoscaler raises the replicas to its minimum."""
    aim = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "hpa-gateway"}
    busy = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "busy"}}

    def replicas() -> int:
        count: int = scene.get("deployment", "hpa-gateway")["spec"]["replicas"]
        return count

    scene.operator()
    scene.apply(rollout("hpa", 1))
    scene.until("one worker serves", lambda: scene.serving("hpa", 1))
    assert replicas() == 1
    scene.apply({**busy, "spec": {"scaleTargetRef": aim, "minReplicas": 2, "maxReplicas": 3}})
    scene.until("the autoscaler scaled", lambda: replicas() == 2)
    scene.apply(rollout("hpa", 2))  # another spec makes the operator apply the Deployment at once
    scene.until("it is told", lambda: scene.condition("hpa", "Degraded")[1] == "GatewayScaled")
    assert "HorizontalPodAutoscaler busy scales Deployment hpa-gateway" in scene.condition("hpa", "Degraded")[2]
    scene.until("two workers serve", lambda: scene.serving("hpa", 2))
    assert replicas() == 2

    scene.kubectl("delete", "hpa", "busy")
    scene.apply(rollout("hpa", 1))
    scene.until("it is well again", lambda: scene.condition("hpa", "Degraded")[1] == "Healthy")
    assert replicas() == 1


def test_what_the_operator_writes_stays_its_own(scene: Scene) -> None:
    scene.operator()
    scene.apply(rollout("own", 1))
    scene.until("one worker serves", lambda: scene.serving("own", 1))
    body = scene.get("pearlrollout", "own", "--show-managed-fields")
    assert {condition["type"] for condition in body["status"]["conditions"]} == {
        "Ready",
        "MetricsAvailable",
        "CapacityAvailable",
        "PlanProgressing",
        "BorrowingActive",
        "Degraded",
        "Advisory",
    }
    assert "finalizers" not in body["metadata"]
    assert not [key for key in body["metadata"].get("annotations", {}) if "kopf" in key]
    writers = {entry["manager"]: entry.get("subresource") for entry in body["metadata"]["managedFields"]}
    assert writers[names.FIELD_MANAGER] == "status"


def test_a_part_of_the_status_may_become_unknown_again(scene: Scene) -> None:
    scene.apply(rollout("parts", 1))

    async def write(*statuses: PearlRolloutStatus) -> None:
        async with await load_client(scene.cluster.kubeconfig) as api:
            kube = KubeClient(api, Calls(SystemClock()), timeout_seconds=10)
            for status in statuses:
                meta = {"name": "parts", "namespace": scene.namespace}
                await kube.apply_status(kinds.ROLLOUT, {"metadata": meta, "status": to_wire(status)}, manager="pearl")

    known = PearlRolloutStatus(weights=WeightsStatus(wanted=3, min=2, max=3), ready="1/1")
    asyncio.run(write(known, PearlRolloutStatus(ready="1/1")))
    assert scene.status("parts").get("weights") is None
