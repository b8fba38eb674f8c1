"""A trainer pod, an operator process and real worker agents on the real local cluster, for the tests of loans.

Borrower pods run the real agent from this checkout; their engine is a few lines that answer like one and hold memory of
a fake device, so that a test takes seconds.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
from ports import free_port

from pearl_api import names
from pearl_dev.shell import wait_until
from pearl_trainer import PearlClient
from pearl_trainer.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pearl_dev.handle import Cluster

ROOT = Path(__file__).resolve().parents[2]
ENGINE = """
import json, os, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from pearl_engine_plugins.fake_device import DeviceUse

HELD = 1 << 30
device = os.environ.get("PEARL_FAKE_DEVICE_DIR")
use = DeviceUse(Path(device), HELD) if device else None
ANSWER = json.dumps({
    "open": True, "in_flight": 0, "pinned_seconds": 0.0, "success": True, "aborted": 0,
    "choices": [{
        "token_ids": [1] * 4, "logprobs": {"content": [{"logprob": -1.0}] * 4}, "weight_versions": [{"version": "0"}],
    }],
}).encode()

class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        if use and self.path.startswith(("/sleep", "/wake_up")):
            use.set(0 if self.path.startswith("/sleep") else HELD)
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(ANSWER)))
        self.end_headers()
        self.wfile.write(ANSWER)
    do_GET = do_POST
    def log_message(self, *_): pass

ThreadingHTTPServer(("", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


def rollout(name: str, *, access: str = "Auto", parallel: int = 1) -> dict[str, Any]:
    mounts = {"site": "/site", "crds": "/src/crds", "worker": "/src/worker", "fake": "/src/fake"}
    container = {
        "name": "worker",
        "command": ["python3", "-m", "pearl_worker.main"],
        "env": [
            {"name": "PYTHONPATH", "value": "/src/fake:/src/crds:/src/worker:/src/worker/engine_plugins:/site"},
            {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"},
            {"name": "PEARL_ENGINE_DEVICE", "value": "cpu"},
            {"name": "PEARL_FAKE_DEVICE_DIR", "value": "/device"},
        ],
        "volumeMounts": [
            {"name": "device", "mountPath": "/device"},
            *({"name": name, "mountPath": path, "readOnly": True} for name, path in mounts.items()),
        ],
    }
    volumes = [
        {"name": "device", "emptyDir": {}},
        *({"name": name, "persistentVolumeClaim": {"claimName": name, "readOnly": True}} for name in mounts),
    ]
    pod = {"spec": {"containers": [container], "volumes": volumes, "terminationGracePeriodSeconds": 1}}
    return {
        "apiVersion": names.API_VERSION,
        "kind": "PearlRollout",
        "metadata": {"name": name},
        "spec": {
            "model": {"name": "Qwen/Qwen3-8B", "uri": "/models/none"},
            "engine": {"image": "docker.io/library/python:3.11-slim", "tensorParallel": parallel},
            "capacity": {
                "reserved": {"gpus": parallel},
                "borrowed": {"maxGpus": 2, "trainerSelector": {"app": "trainer"}, "access": access},
            },
            "policy": {"deadlines": {"drainSeconds": 4, "reclaimSeconds": 5}, "hysteresis": {"minDwellSeconds": 0}},
            "podTemplate": pod,
        },
    }


def trainer(labels: dict[str, str], *, name: str = "trainer-0", claim: dict[str, str] | None = None) -> dict[str, Any]:
    """A pod with one GPU: of the device plugin, or by the claim that `claim` names as `spec.resourceClaims` does."""
    held = {"claims": [{"name": "gpus"}]} if claim else {"limits": {"nvidia.com/gpu": "1"}}
    container = {
        "name": "trainer",
        "image": "docker.io/library/python:3.11-slim",
        "command": ["sleep", "infinity"],
        "resources": held,
    }
    spec: dict[str, Any] = {"containers": [container], "terminationGracePeriodSeconds": 0}
    if claim:
        spec["resourceClaims"] = [{"name": "gpus", **claim}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


class Scene:
    """The namespace of one test, one operator process, and a trainer pod whose token this machine borrows."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.folder = folder
        self.operator: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def start_operator(self, **environment: str) -> None:
        settings = {
            "KUBECONFIG": str(self.cluster.kubeconfig),
            "PEARL_NAMESPACE": self.namespace,
            "PEARL_GATEWAY_IMAGE": "docker.io/pearl/absent:1",
            "PEARL_PORT": str(self.port),
            "PEARL_LEASE_SECONDS": "6",
            "PEARL_CALL_TIMEOUT_SECONDS": "3",
        }
        with (self.folder / "operator.log").open("ab") as log:
            command = [sys.executable, "-m", "pearl_operator.main"]
            self.operator = subprocess.Popen(command, env=os.environ | settings | environment, stderr=log)
        self.until("the operator is ready", self._ready)

    def _ready(self) -> bool:
        try:
            return httpx2.get(f"{self.url}/readyz", timeout=2).status_code == 200
        except httpx2.HTTPError:
            return False

    def kill_operator(self) -> None:
        if self.operator is not None:
            self.operator.send_signal(signal.SIGKILL)
            self.operator.wait(timeout=30)
            self.operator = None

    def apply(self, manifest: dict[str, Any]) -> None:
        self.cluster.apply({**manifest, "metadata": {**manifest["metadata"], "namespace": self.namespace}})

    def get(self, *words: str) -> Any:
        return self.cluster.get(*words, "-n", self.namespace)

    def kubectl(self, *words: str) -> str:
        return self.cluster.kubectl("-n", self.namespace, *words)

    def loan(self) -> dict[str, Any]:
        found = self.get("gpuloans")["items"]
        status: dict[str, Any] = found[0].get("status", {}) if found else {}
        return status

    def ready(self, pod: str) -> bool:
        found = [item for item in self.get("pods")["items"] if item["metadata"]["name"] == pod]
        conditions = found[0].get("status", {}).get("conditions", []) if found else []
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def until(self, what: str, condition: Callable[[], bool], seconds: float = 120) -> None:
        wait_until(condition, what=what, timeout_seconds=seconds, every_seconds=0.5)

    def client(self, gpus: str = "GPU-lent") -> PearlClient:
        """The SDK on this machine with the trainer pod's own identity, and UUIDs of GPUs, separated by commas."""
        pod = self.get("pod", "trainer-0")["metadata"]
        bound = ("--bound-object-kind=Pod", "--bound-object-name=trainer-0", f"--bound-object-uid={pod['uid']}")
        token = self.folder / "token"
        token.write_text(self.kubectl("create", "token", "default", "--audience=pearl", *bound))
        return PearlClient(Settings(self.url, str(token), visible_devices=gpus))


@contextmanager
def opened(cluster: Cluster, test: str, folder: Path) -> Iterator[Scene]:
    """The scene of the test of this name; its namespace and volumes go when it ends."""
    for crd in ("pearlrollouts", "gpuloans"):
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds" / f"{crd}.yaml"))
    namespace = f"loans-{zlib.crc32(test.encode()):08x}"
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    fake = folder / "fake" / "vllm" / "entrypoints" / "cli"
    fake.mkdir(parents=True)
    fake.joinpath("main.py").write_text(ENGINE)
    for each in folder.rglob("*"):
        each.chmod(0o755)
    folder.chmod(0o755)
    site = Path(httpx2.__file__).parents[1]
    sources = {"crds": ROOT / "crds", "worker": ROOT / "worker_image", "fake": folder / "fake", "site": site}
    for name, path in sources.items():
        cluster.volume(name, path, namespace, read_only=True)
    made = Scene(cluster, namespace, folder)
    try:
        yield made
    finally:
        made.kill_operator()
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")
        cluster.kubectl("delete", "pv", *(f"{namespace}-{name}" for name in sources), "--wait=false")
