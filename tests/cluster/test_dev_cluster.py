"""The local cluster itself: what the other cluster tests and the demo rely on."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pearl_dev import network
from pearl_dev.cgroups import ROOT
from pearl_dev.errors import CommandError
from pearl_dev.handle import find
from pearl_dev.layout import MAX_NODES, Addresses, Paths
from pearl_dev.processes import NETNS, Ledger, inside, start_ticks
from pearl_dev.settings import from_environment
from pearl_dev.shell import run, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pearl_dev.handle import Cluster

pytestmark = pytest.mark.cluster

NAMESPACE = "dev-cluster-test"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
PYTHON = "docker.io/library/python:3.11-slim"
ELSEWHERE = "198.51.100.1"  # an address of nobody: RFC 5737


def pod(name: str, node: str, command: list[str], **more: Any) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": PYTHON,
        "command": command,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        **more.pop("container", {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": name, **more.pop("labels", {})}},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 0,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
            **more,
        },
    }


def run_pod(cluster: Cluster, manifest: dict[str, Any]) -> None:
    cluster.apply(manifest)
    name = manifest["metadata"]["name"]
    cluster.kubectl("-n", NAMESPACE, "wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s")


def execute(cluster: Cluster, name: str, script: str) -> str:
    return cluster.kubectl("-n", NAMESPACE, "exec", name, "--", "python3", "-c", script)


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> Iterator[None]:
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": RESTRICTED}})
    # Pods are refused until the namespace has its ServiceAccount.
    cluster.kubectl("-n", NAMESPACE, "wait", "--for=create", "serviceaccount/default", "--timeout=30s")
    yield
    cluster.kubectl("delete", "namespace", NAMESPACE, "--timeout=60s")


WEB = ["python3", "-c", "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=8000)"]


@pytest.mark.usefixtures("namespace")
def test_a_pod_reaches_a_service_on_another_node_by_name_and_so_does_the_host(cluster: Cluster) -> None:
    run_pod(cluster, pod("web", cluster.spec.node_name(0), WEB))
    run_pod(cluster, pod("client", cluster.spec.node_name(1), ["sleep", "600"]))
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "namespace": NAMESPACE},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8000}]},
    }
    cluster.apply(service)
    ask = f"import urllib.request as u; print(u.urlopen('http://web.{NAMESPACE}', timeout=2).status)"

    def answers() -> bool:
        try:
            return execute(cluster, "client", ask).strip() == "200"
        except CommandError:
            return False  # kube-proxy and DNS are a moment behind the Service

    wait_until(answers, what="the Service answers a pod on the other node", timeout_seconds=20)
    address = cluster.get("service", "web", "-n", NAMESPACE)["spec"]["clusterIP"]
    with urllib.request.urlopen(f"http://{address}", timeout=5) as response:
        assert response.status == 200
    inside_cluster = cluster.inside(["curl", "-sf", f"http://web.{NAMESPACE}.svc.cluster.local"])
    assert "Directory listing" in run(inside_cluster, environment=cluster.environment)


@pytest.mark.usefixtures("namespace")
def test_gpus_are_handed_out_by_unique_names_and_a_dead_one_is_not(cluster: Cluster) -> None:
    seen = []
    for index in range(2):
        limits = {"resources": {"limits": {"nvidia.com/gpu": 3}}}
        run_pod(cluster, pod(f"gpus-{index}", cluster.spec.node_name(index), ["sleep", "600"], container=limits))
        names = execute(cluster, f"gpus-{index}", "import os; print(os.environ['NVIDIA_VISIBLE_DEVICES'])")
        seen += names.strip().split(",")
    assert len(set(seen)) == 6
    assert all(name.startswith("GPU-") for name in seen)

    def allocatable() -> str:
        return str(cluster.get("node", cluster.spec.node_name(1))["status"]["allocatable"]["nvidia.com/gpu"])

    assert allocatable() == "4"
    cluster.kill_gpus(1, [2])
    try:
        wait_until(lambda: allocatable() == "3", what="a dead GPU is no longer offered", timeout_seconds=20)
    finally:
        cluster.kill_gpus(1, [])
    wait_until(lambda: allocatable() == "4", what="a healed GPU is offered again", timeout_seconds=20)


@pytest.mark.usefixtures("namespace")
def test_nothing_in_the_cluster_can_reach_outside(cluster: Cluster) -> None:
    for netns in (cluster.spec.netns, *(node.scope for node in cluster.nodes)):
        assert network.default_routes(netns) == []
    run_pod(cluster, pod("prisoner", cluster.spec.node_name(1), ["sleep", "600"]))
    attempt = f"""
import socket
try:
    socket.create_connection(('{ELSEWHERE}', 80), 5)
except OSError as error:
    print(error.strerror)
"""
    assert execute(cluster, "prisoner", attempt).strip() == "Network is unreachable"


def test_a_packet_of_the_host_for_the_cluster_takes_the_cable_or_nothing(cluster: Cluster) -> None:
    for wanted in cluster.spec.addresses.ranges:
        routes = json.loads(run(["ip", "-j", "route", "show", wanted]))
        devices = {(route.get("type"), route.get("dev")) for route in routes}
        assert devices == {(None, cluster.spec.cable), ("blackhole", None)}


@pytest.mark.usefixtures("namespace")
def test_a_folder_is_shared_by_pods_on_both_nodes_through_a_claim(cluster: Cluster, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    cluster.volume("shared", tmp_path, NAMESPACE)
    claim = [{"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}]
    mounts = {"volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}
    for index in range(2):
        node = cluster.spec.node_name(index)
        run_pod(cluster, pod(f"user-{index}", node, ["sleep", "600"], container=mounts, volumes=claim))
    execute(cluster, "user-0", "open('/shared/note', 'w').write('from node 0')")
    assert execute(cluster, "user-1", "print(open('/shared/note').read())").strip() == "from node 0"
    assert (tmp_path / "note").read_text() == "from node 0"
    cluster.kubectl("delete", "persistentvolume", f"{NAMESPACE}-shared", "--wait=false")


SERIES = """
import http.server
class Metrics(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header('Content-Type', 'text/plain; version=0.0.4')
        self.end_headers()
        self.wfile.write(b'dev_cluster_test_value 42\\n')
http.server.HTTPServer(('', 8000), Metrics).serve_forever()
"""


@pytest.mark.usefixtures("namespace")
def test_prometheus_scrapes_the_pods_of_a_rollout_and_names_their_role(cluster: Cluster) -> None:
    labels = {"pearl.dev/rollout": "r1", "pearl.dev/role": "prefill"}
    ports = {"ports": [{"name": "engine", "containerPort": 8000}]}
    run_pod(
        cluster, pod("worker", cluster.spec.node_name(1), ["python3", "-c", SERIES], container=ports, labels=labels)
    )
    uid = cluster.get("pod", "worker", "-n", NAMESPACE)["metadata"]["uid"]
    address = cluster.get("service", "prometheus", "-n", "monitoring")["spec"]["clusterIP"]
    found: list[dict[str, Any]] = []

    def scraped() -> bool:
        with urllib.request.urlopen(f"http://{address}:9090/api/v1/query?query=dev_cluster_test_value", timeout=5) as r:
            found[:] = json.load(r)["data"]["result"]
        return bool(found)

    wait_until(scraped, what="Prometheus has the series", timeout_seconds=30)
    metric = found[0]["metric"]
    wanted = {
        "namespace": NAMESPACE,
        "pod": "worker",
        "pod_uid": uid,
        "role": "prefill",
        "rollout": "r1",
        "port": "engine",
    }
    assert wanted.items() <= metric.items()
    assert metric["node"] == cluster.spec.node_name(1)
    assert found[0]["value"][1] == "42"


PEARL_DEV = (sys.executable, "-m", "pearl_dev.cli")
NODE = "the first node"


@pytest.fixture
def crash(cluster: Cluster) -> Iterator[str]:
    """Name for a second cluster that is going to be killed."""
    name = f"{cluster.spec.name}-crash"
    run([*PEARL_DEV, "down", "--name", name])
    yield name
    run([*PEARL_DEV, "down", "--name", name])


def left_behind(name: str, slot: int) -> list[str]:
    """Everything of a cluster that can still be found on this machine."""
    scopes = [f"pearl-dev-{name}", *(f"pearl-dev-{name}.{index}" for index in range(MAX_NODES))]
    settings = from_environment()
    mounts = Path("/proc/self/mountinfo").read_text()
    return [
        *(scope for scope in scopes if (NETNS / scope).exists()),
        *(str(path) for scope in scopes for path in ROOT.glob(f"**/{scope}")),
        *run(["ip", "route", "show", "root", Addresses(slot).pods]).splitlines(),
        *run(["ip", "route", "show", "root", Addresses(slot).cable]).splitlines(),
        *(line for line in run(["ip", "-o", "address"]).splitlines() if f" {Addresses(slot).host}/" in line),
        *(line for line in run(["ip", "-o", "link"]).splitlines() if f"pearl-s{slot}" in line),
        *(line for line in mounts.splitlines() if f"/{name}/" in line),
        *(str(path) for path in settings.clusters.glob(name)),
    ]


def start_and_kill(name: str, stage: str) -> tuple[int, set[int]]:
    """Kill `pearl-dev up` when it has started the process `stage`; returns slot and what still runs."""
    settings = from_environment()
    ledger = Ledger(Paths(settings.clusters / name).ledger)
    process = f"pearl-dev-{name}.0" if stage == NODE else stage
    command = [*PEARL_DEV, "up", "--name", name, "--nodes", "1", "--no-monitoring"]
    with subprocess.Popen(command, start_new_session=True) as started:

        def reached() -> bool:
            assert started.poll() is None, "pearl-dev up ended before it could be killed"
            return process in ledger.processes()

        wait_until(reached, what=f"{stage} starts", timeout_seconds=120, every_seconds=0.01)
        os.kill(started.pid, signal.SIGKILL)
    spec = find(settings, name)
    assert spec is not None
    return spec.slot, inside(spec.all_netns)


@pytest.mark.parametrize("stage", ["etcd", "kube-scheduler", NODE])
def test_down_leaves_nothing_behind_after_up_was_killed(crash: str, stage: str) -> None:
    slot, orphans = start_and_kill(crash, stage)
    assert orphans
    run([*PEARL_DEV, "down", "--name", crash])
    assert left_behind(crash, slot) == []
    assert not [pid for pid in orphans if start_ticks(pid) is not None]


def test_up_works_after_up_was_killed_and_down_blocks_the_addresses_while_a_program_uses_them(crash: str) -> None:
    slot, _ = start_and_kill(crash, NODE)
    again = [*PEARL_DEV, "up", "--name", crash, "--nodes", "1", "--no-monitoring"]
    down = [*PEARL_DEV, "down", "--name", crash]
    run(again)
    try:
        spec = find(from_environment(), crash)
        assert spec is not None
        with pytest.raises(CommandError, match="is up already"):
            run(again)
        with socket.create_connection((spec.addresses.control_plane, 6443), timeout=5):
            run(down)
            with pytest.raises(OSError, match=r"Invalid argument|unreachable"):
                socket.create_connection((spec.addresses.control_plane, 6443), timeout=5)
    finally:
        run(down)
    assert left_behind(crash, slot) == []


@pytest.mark.slow
def test_a_node_without_power_is_noticed_and_comes_back(cluster: Cluster) -> None:
    name = cluster.spec.node_name(1)
    cluster.stop_node(1)
    try:
        cluster.kubectl("wait", "--for=condition=Ready=Unknown", f"node/{name}", "--timeout=40s")
    finally:
        cluster.start_node(1)
    cluster.kubectl("wait", "--for=condition=Ready=True", f"node/{name}", "--timeout=60s")
