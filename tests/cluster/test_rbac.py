"""What ServiceAccounts may do and what pods may be, asked of a real API server; no pod of the chart has to run."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from absent_engine import restricted_namespace, rollout_of_absent_engine

from pearl_api import names
from pearl_dev import binaries, chart
from pearl_dev.errors import CommandError
from pearl_dev.progress import Progress
from pearl_dev.rbac.matrix import Right, Where
from pearl_dev.rbac.needs import CRDS, NEEDS, NEVER
from pearl_dev.shell import wait_until
from pearl_operator.facts import LoanFact, loan_fact, rollout_fact
from pearl_operator.loans.borrowers import borrower_pod
from pearl_operator.resources.gateway import gateway_deployment
from pearl_operator.resources.merge import merge
from pearl_operator.resources.worker import worker_pod
from pearl_operator.settings import Settings
from pearl_planner.types import Role, Slot, Zone

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pearl_dev.handle import Cluster

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE, TRAINERS = "rbac-test", "rbac-trainers"
VALUES = {"trainerNamespaces": [TRAINERS], "image": {"repository": "docker.io/pearl/absent"}}
WITHOUT_HOOK = VALUES | {"crds": {"upgrade": False}}
"""A hook with an image that does not exist would be waited for."""


def rollout() -> dict[str, Any]:
    """Every volume that a worker may have is one of its pods'."""
    model, weights = {"name": "none", "uri": "pvc://models/none"}, {"source": "pvc://weights/run"}
    return rollout_of_absent_engine(NAMESPACE, model=model, weights=weights)


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Iterator[Cluster]:
    """The chart, with an image that does not exist."""
    for crd in ("pearlrollouts", "gpuloans"):
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / f"crds/{crd}.yaml"))
    cluster.apply(restricted_namespace(NAMESPACE), restricted_namespace(TRAINERS))
    values = cluster.paths.root / "rbac-values.json"
    values.write_text(json.dumps(WITHOUT_HOOK))
    release = ("pearl", "--namespace", NAMESPACE)
    cluster.helm("install", *release[:1], str(chart.CHART), *release[1:], "--values", str(values), "--skip-crds")
    yield cluster
    cluster.helm("uninstall", *release, "--no-hooks")
    cluster.kubectl("delete", "pearlrollouts", "--all", "-n", NAMESPACE)
    cluster.kubectl("delete", "namespace", NAMESPACE, TRAINERS, "--wait=false")


OF_RELEASE = {Where.RELEASE: (NAMESPACE,), Where.TRAINERS: (TRAINERS,), Where.CLUSTER: ("",)}
DENIED_IN = OF_RELEASE | {Where.CLUSTER: ("", "kube-system", "default")}


@dataclass(frozen=True)
class Deed:
    """One right, tried in one namespace; "" = in all."""

    right: Right
    namespace: str


def review(deed: Deed) -> dict[str, Any]:
    resource, _, subresource = deed.right.resource.partition("/")
    plural, _, group = resource.partition(".")
    wish = {
        "namespace": deed.namespace,
        "group": group,
        "resource": plural,
        "subresource": subresource,
        "verb": deed.right.verb,
        "name": "".join(deed.right.names),
    }
    user = f"system:serviceaccount:{NAMESPACE}:{deed.right.account}"
    spec = {"user": user, "groups": ["system:serviceaccounts", "system:authenticated"], "resourceAttributes": wish}
    return {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}


def allowed(cluster: Cluster, deeds: list[Deed]) -> dict[Deed, bool]:
    reviews = {"apiVersion": "v1", "kind": "List", "items": [review(deed) for deed in deeds]}
    words = ["create", "-o", 'jsonpath={.status.allowed}{"\\n"}', "-f", "-"]
    answers = cluster.kubectl(*words, stdin=json.dumps(reviews)).split()
    return {deed: answer == "true" for deed, answer in zip(deeds, answers, strict=True)}


def deeds(rights: Iterable[Right], where: dict[Where, tuple[str, ...]]) -> list[Deed]:
    return [Deed(right, namespace) for right in rights for namespace in where[right.where]]


def test_operator_and_gateway_may_do_what_they_do_and_no_more(installed: Cluster) -> None:
    """Every row of docs/reference/rbac.md, and every row of its list of what is denied."""
    lasting = [need for need in NEEDS if need.account != CRDS]
    needed = deeds({right for need in lasting for right in need.rights()}, OF_RELEASE)
    assert [deed for deed, allows in allowed(installed, needed).items() if not allows] == []
    denied = deeds(NEVER, DENIED_IN)
    by_name = [replace(right, names=("quickstart-pearl-client",)) for right in NEVER if right.resource == "secrets"]
    denied += deeds([right for right in by_name if right.verb != "create"], DENIED_IN)
    others = [replace(right, account=account) for right in NEVER for account in ("default", "pearl-worker")]
    denied += deeds(others, DENIED_IN)
    assert [deed for deed, allows in allowed(installed, denied).items() if allows] == []


def templates(cluster: Cluster, values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Pod templates of the chart."""
    objects = chart.render(binaries.ensure(cluster.settings, Progress(quiet=True))["helm"], values)
    return {
        item["metadata"]["name"]: item["spec"]["template"] for item in objects if item["kind"] in {"Deployment", "Job"}
    }


def made_by_the_operator() -> dict[str, dict[str, Any]]:
    """A pod or pod template of every kind that it makes, with every volume that it may have."""
    manifest = rollout()
    manifest["spec"]["capacity"] |= {"elastic": {"maxGpus": 1}, "borrowed": {"maxGpus": 1}}
    meta = {"namespace": NAMESPACE, "name": "quickstart", "uid": "u", "resourceVersion": "1", "generation": 1}
    fact = rollout_fact({**manifest, "metadata": meta})
    assert fact.spec is not None, fact.problem
    made = {
        zone.value: worker_pod(fact, fact.spec, Slot(0, zone, Role.COLOCATED, 0), role_epoch=1)
        for zone in (Zone.RESERVED, Zone.ELASTIC)
    }
    for access in ("VisibleDevices", "SharedClaim"):
        made[access] = borrower_pod(loan(access), fact, index=0, slot=1000, hostname="n")
    settings = Settings(namespace=NAMESPACE, gateway_image="docker.io/pearl/operator:1")
    return made | {"gateway": gateway_deployment(fact, fact.spec, settings)["spec"]["template"]}


def loan(access: str) -> LoanFact:
    body = {
        "metadata": {"namespace": TRAINERS, "name": "t", "uid": "u"},
        "spec": {
            "access": access,
            "claims": [{"name": "gpus", "gpus": ["GPU-1"]}],
            "trainer": {"name": "t", "uid": "u"},
            "node": "n",
            "gpus": ["GPU-1"],
            "rolloutRef": {"name": "quickstart", "namespace": NAMESPACE},
        },
    }
    fact = loan_fact(body)
    assert fact is not None
    return fact


def tried(cluster: Cluster, pod: dict[str, Any], name: str) -> str | None:
    """The API server's refusal of a pod in a namespace that enforces `restricted`; nothing is made."""
    where = TRAINERS if name in {"VisibleDevices", "SharedClaim"} else NAMESPACE
    meta = {"name": f"trial-{name.lower()}", "namespace": where, "labels": pod["metadata"].get("labels", {})}
    spec = dict(pod["spec"])
    if name == "pearl-crds":
        del spec["serviceAccountName"]  # it lives as long as the hook
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
    try:
        cluster.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(body))
    except CommandError as refused:
        return refused.output
    return None


def test_every_pod_of_chart_and_operator_passes_pod_security_restricted(installed: Cluster) -> None:
    pods = {**templates(installed, VALUES), **made_by_the_operator()}
    assert set(pods) == {
        *("pearl-operator", "pearl-uninstall", "pearl-crds", "gateway"),
        *("reserved", "elastic", "VisibleDevices", "SharedClaim"),
    }
    refusals = {name: tried(installed, pod, name) for name, pod in pods.items()}
    assert {name: told for name, told in refusals.items() if told is not None} == {}
    for name, pod in pods.items():
        disk = merge(pod, {"spec": {"volumes": [{"name": "disk", "hostPath": {"path": "/scratch"}}]}})
        assert 'violates PodSecurity "restricted' in str(tried(installed, disk, name)), "the namespace enforces it"


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def environment(cluster: Cluster, folder: Path) -> dict[str, str]:
    """Of a process that has the token of the operator's ServiceAccount and nothing else."""
    token = cluster.kubectl("create", "token", "pearl-operator", "-n", NAMESPACE, "--duration=1h").strip()
    config: dict[str, Any] = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config))
    return os.environ | {
        "KUBECONFIG": str(kubeconfig),
        "PEARL_NAMESPACE": NAMESPACE,
        "PEARL_TRAINER_NAMESPACES": TRAINERS,
        "PEARL_GATEWAY_IMAGE": "docker.io/pearl/absent:1",
        "PEARL_IDENTITY": "on-this-machine",
        "PEARL_PORT": str(free_port()),
    }


@contextmanager
def operator(variables: dict[str, str], log: Path) -> Iterator[None]:
    """`pearl-operator` as a process on this machine."""
    with log.open("wb") as stream:
        process = subprocess.Popen([sys.executable, "-m", "pearl_operator.main"], env=variables, stderr=stream)
        try:
            yield
        finally:
            process.kill()
            process.wait()


def test_operator_and_uninstall_under_their_own_account_are_refused_nothing(installed: Cluster, tmp_path: Path) -> None:
    log, variables = tmp_path / "operator.log", environment(installed, tmp_path)
    installed.apply(rollout())

    def there(kind: str) -> set[str]:
        selector = f"{names.LABEL_ROLLOUT}=quickstart"
        return {item["metadata"]["name"] for item in installed.get(kind, "-n", NAMESPACE, "-l", selector)["items"]}

    def told() -> bool:
        status = installed.get("pearlrollout", "quickstart", "-n", NAMESPACE).get("status") or {}
        return bool(there("pods") and "quickstart-gateway" in there("deployments") and status.get("conditions"))

    with operator(variables, log):
        wait_until(told, what="worker, gateway and status of the PearlRollout", timeout_seconds=60)
        installed.kubectl("delete", "pod", *there("pods"), "-n", NAMESPACE, "--grace-period=0", "--force")
        wait_until(lambda: bool(there("pods")), what="another worker", timeout_seconds=60)
        installed.kubectl("get", "secret", names.RELEASE_SECRET, "-n", NAMESPACE)
        assert there("secrets") == {f"quickstart-pearl-{holder}" for holder in ("worker", "gateway", "client")}
    assert "forbidden" not in log.read_text().lower()

    done = subprocess.run(
        [sys.executable, "-m", "pearl_operator.uninstall"],
        env=variables,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    kinds = ("pods", "deployments", "services", "poddisruptionbudgets", "secrets")
    assert {kind: left for kind in kinds if (left := there(kind))} == {}
