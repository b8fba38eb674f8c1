"""What breaks under a fleet, on the real local cluster with emulated engines behind the real agents.

While it is broken turns are answered, and afterwards the shape is the wanted one, by the same pods unless they died,
with nothing left over and no turn lost.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fleet_chaos import liar
from fleet_chaos.scene import EDGE, LONG_SECONDS, ROLES, Scene
from loans_chaos import processes
from loans_chaos.stage import cluster, rollout

from pearl_dev.fleet import wait_for
from pearl_dev.processes import Ledger
from pearl_dev.product import NAMESPACE
from pearl_dev.progress import Progress
from pearl_dev.shell import run

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

POST = """
import sys, urllib.request
answer = urllib.request.urlopen("http://127.0.0.1:2379/v3" + sys.argv[1], sys.argv[2].encode(), timeout=10)
print(answer.read().decode())
"""
"""A call of etcd, to be made in the network of the control plane."""


@pytest.fixture(scope="module")
def placed() -> Iterator[Scene]:
    with (
        cluster("fleet-chaos", Progress(), monitoring=True) as running,
        rollout(running, real=False, gpus=3) as (installation, fleet),
    ):
        scene = Scene(installation, fleet)
        scene.spread()
        yield scene


@pytest.fixture
def scene(placed: Scene) -> Iterator[Scene]:
    placed.at_rest()
    yield placed
    placed.at_rest()


def test_a_kubelet_that_stands_still_costs_no_pod(scene: Scene) -> None:
    uids, node = scene.fleet.uids(), scene.installation.cluster.nodes[EDGE]
    with scene.load() as load:
        run(node.enter(["pkill", "-STOP", "-x", "kubelet"]))
        try:
            scene.node_is("Unknown")
            scene.holds_for(20, load, uids)
        finally:
            run(node.enter(["pkill", "-CONT", "-x", "kubelet"]))
        scene.node_is("True")
        scene.goes_on(load)
    assert scene.at_rest() == uids


def test_a_node_without_power_takes_its_workers_along_and_nothing_else(scene: Scene) -> None:
    before, name = scene.fleet.uids(), scene.installation.cluster.nodes[EDGE].name
    stay = {p["metadata"]["name"] for p in scene.fleet.workers() if p["spec"]["nodeName"] != name}
    with scene.load() as load:
        scene.installation.cluster.stop_node(EDGE)
        try:
            scene.goes_on(load)
            scene.node_is("Unknown")
            wait_for(
                lambda: scene.fleet.status()["workers"]["ready"] == len(stay), seconds=60, what="the status is honest"
            )
            scene.goes_on(load)
        finally:
            scene.installation.cluster.start_node(EDGE)
        scene.node_is("True")
        after = scene.at_rest()
    assert {name: after[name] for name in stay} == {name: before[name] for name in stay}


def test_without_an_api_server_turns_go_on(scene: Scene) -> None:
    uids = scene.fleet.uids()
    server = Ledger(scene.installation.cluster.paths.ledger).processes()["kube-apiserver"]
    with scene.load() as load:
        processes.send([server.pid], signal.SIGSTOP)
        try:
            until = time.monotonic() + 60
            while time.monotonic() < until:
                scene.goes_on(load, turns=1)
        finally:
            processes.send([server.pid], signal.SIGCONT)
        wait_for(lambda: scene.fleet.uids() == uids, seconds=60, what="the pods are those from before")
    assert scene.at_rest() == uids


def test_a_full_disk_of_etcd_stops_changes_and_nothing_else(scene: Scene) -> None:
    uids, target = scene.fleet.uids(), scene.fleet.status()["target"]["id"]

    def etcd(path: str, **body: object) -> dict[str, object]:
        network = f"--net=/run/netns/{scene.installation.cluster.spec.netns}"
        said: dict[str, object] = json.loads(
            run(["nsenter", network, sys.executable, "-c", POST, path, json.dumps(body)])
        )
        return said

    members = etcd("/cluster/member/list")["members"]
    assert isinstance(members, list)
    alarm = {"memberID": members[0]["ID"], "alarm": "NOSPACE"}
    with scene.load() as load:
        etcd("/maintenance/alarm", action="ACTIVATE", **alarm)
        try:
            with pytest.raises(RuntimeError, match="database space exceeded"):
                scene.fleet.patch({"ratio": {"prefill": 2, "decode": 1}})
            scene.holds_for(45, load, uids)
        finally:
            etcd("/maintenance/alarm", action="DEACTIVATE", **alarm)
        scene.fleet.patch({"ratio": {"prefill": 2, "decode": 1}})
        scene.fleet.wait_roles({"prefill": 2, "decode": 1}, seconds=LONG_SECONDS)
    assert scene.fleet.uids() == uids
    assert scene.fleet.status()["target"]["id"] == target + 1


def test_an_operator_that_is_killed_between_any_two_steps_is_followed_by_one_that_goes_on(scene: Scene) -> None:
    draw = random.Random(7)
    uids = scene.fleet.uids()
    with scene.load() as load:
        for prefill, decode in ((2, 1), (1, 2), (2, 2), (1, 2), (2, 2), (1, 2)):
            scene.fleet.patch(
                {"ratio": {"prefill": prefill, "decode": decode}, "capacity": {"reserved": {"gpus": prefill + decode}}}
            )
            time.sleep(draw.uniform(0.0, 2.5))
            scene.kill_operator()
            scene.fleet.wait_roles({"prefill": prefill, "decode": decode}, seconds=LONG_SECONDS)
            scene.goes_on(load, turns=1)
    assert len(scene.at_rest().items() & uids.items()) >= len(uids) - 1, "a shrink takes one that it may choose"


def test_agents_out_of_the_operators_reach_change_roles_all_the_same(scene: Scene) -> None:
    uids = scene.fleet.uids()
    with scene.load() as load:
        with scene.cut([scene.component("operator")], scene.fleet.workers()):
            scene.fleet.patch({"ratio": {"prefill": 2, "decode": 1}})
            scene.fleet.wait_roles({"prefill": 2, "decode": 1}, seconds=120)
            scene.fleet.patch({"ratio": ROLES})
            scene.fleet.wait_roles(ROLES, seconds=120)
            scene.fleet.patch({"ratio": {"prefill": 1, "decode": 1}, "capacity": {"reserved": {"gpus": 2}}})
            scene.goes_on(load)
        wait_for(lambda: len(scene.pods()) == 2, seconds=LONG_SECONDS, what="one worker is drained and gone")
        assert scene.fleet.uids().items() <= uids.items()


def test_workers_that_do_not_reach_each_other_recompute(scene: Scene) -> None:
    uids = scene.fleet.uids()
    with scene.load() as load:
        with scene.cut(scene.of_role("decode"), scene.of_role("prefill")):
            failed, _ = scene.transfers()
            wait_for(lambda: scene.transfers()[0] > failed + 3, seconds=120, what="KV cannot be fetched")
            scene.goes_on(load)
        _, fetched = scene.transfers()
        wait_for(lambda: scene.transfers()[1] > fetched + 3, seconds=120, what="KV is fetched again")
    assert scene.at_rest() == uids


def test_an_image_that_never_starts_takes_one_worker_at_most_and_says_so(scene: Scene) -> None:
    image = scene.fleet.resource()["spec"]["engine"]["image"]
    uids = scene.fleet.uids()
    with scene.load() as load:
        scene.fleet.patch({"engine": {"image": "docker.io/pearl/is-not-there:1"}})
        try:
            wait_for(
                lambda: any("Image" in str(scene.fleet.condition(kind)) for kind in ("CapacityAvailable", "Degraded")),
                seconds=180,
                what="a condition names the image",
                last=lambda: scene.fleet.status()["conditions"],
            )
            scene.goes_on(load)
            kept = scene.fleet.uids().items() & uids.items()
            assert len(kept) >= 2
        finally:
            scene.fleet.patch({"engine": {"image": image}})
        assert kept <= scene.at_rest().items()


@pytest.mark.parametrize("lie", liar.LIES)
def test_a_prometheus_that_lies_is_not_believed(scene: Scene, lie: str) -> None:
    uids, cluster_, fleet = scene.fleet.uids(), scene.installation.cluster, scene.fleet
    honest = fleet.resource()["spec"]["metrics"]["prometheus"]["url"]
    fleet.patch(
        {"ratio": None, "policy": {"hysteresis": {"minDwellSeconds": 1}, "coalesceSeconds": 1}}
    )  # it may decide, and could be misled
    cluster_.apply(_liar(lie, scene.installation.artifacts.worker_image))
    cluster_.kubectl("-n", NAMESPACE, "wait", "--for=condition=Ready", f"pod/liar-{lie}", "--timeout=120s")
    address = cluster_.get("-n", NAMESPACE, "pod", f"liar-{lie}")["status"]["podIP"]
    try:
        with scene.load() as load:
            fleet.patch({"metrics": {"prometheus": {"url": f"http://{address}:{liar.PORT}"}}})
            scene.says("MetricsAvailable", "Prometheus")
            scene.holds_for(30, load, uids)
    finally:
        fleet.patch({"metrics": {"prometheus": {"url": honest}}})
        fleet.patch({"policy": {"hysteresis": {"minDwellSeconds": 30}, "coalesceSeconds": 15}})
        cluster_.kubectl("-n", NAMESPACE, "delete", "pod", f"liar-{lie}", "--grace-period=1")
    wait_for(lambda: fleet.condition("MetricsAvailable").get("status") == "True", seconds=120, what="it is believed")


def _liar(lie: str, image: str) -> dict[str, object]:
    program = Path(liar.__file__).read_text()
    container = {
        "name": "liar",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-c", program, lie],
        "readinessProbe": {"tcpSocket": {"port": liar.PORT}, "periodSeconds": 1},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    security = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"liar-{lie}", "namespace": NAMESPACE},
        "spec": {"containers": [container], "securityContext": security, "restartPolicy": "Never"},
    }
