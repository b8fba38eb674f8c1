"""The chart on a real API server: what runs, what it may do, what stays when it goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from absent_engine import restricted_namespace, rollout_of_absent_engine

from pearl_api import names
from pearl_dev.errors import CommandError
from pearl_dev.images import build
from pearl_dev.product import operator_recipe
from pearl_dev.progress import Progress
from pearl_dev.shell import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pearl_dev.handle import Cluster

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
CHART = str(ROOT / "charts/pearl")
NAMESPACE, TRAINERS = "api-chart-test", "api-chart-trainers"


class Release:
    """The chart, installed or not."""

    def __init__(self, cluster: Cluster, image: str) -> None:
        self.cluster = cluster
        repository, _, tag = image.rpartition(":")
        self.values = {"image": {"repository": repository, "tag": tag}, "trainerNamespaces": [TRAINERS]}

    def install(self, command: str = "install") -> str:
        values = self.cluster.paths.root / "api-chart-values.json"
        values.write_text(json.dumps(self.values))
        return self.cluster.helm(
            *(command, "pearl", CHART, "--namespace", NAMESPACE, "--values", str(values)),
            *("--wait", "--timeout", "90s"),
        )

    def uninstall(self) -> None:
        self.cluster.helm("uninstall", "pearl", "--namespace", NAMESPACE, "--wait", "--timeout", "150s")

    def names(self, kind: str, selector: str = "") -> set[str]:
        words = [kind, "-n", NAMESPACE, *(["-l", selector] if selector else [])]
        return {item["metadata"]["name"] for item in self.cluster.get(*words)["items"]}

    def wait_for_fleet(self) -> None:
        """Until the operator made worker and gateway."""
        wait_until(
            lambda: (
                any(name.startswith("quickstart-w0-") for name in self.names("pods", names.LABEL_ROLLOUT))
                and "quickstart-gateway" in self.names("deployments")
            ),
            what="worker pod and gateway of the PearlRollout",
            timeout_seconds=60,
        )


@pytest.fixture(scope="module")
def release(cluster: Cluster) -> Iterator[Release]:
    recipe = operator_recipe()
    cluster.load_image(build(cluster.settings, recipe, Progress()))
    cluster.apply(restricted_namespace(NAMESPACE), restricted_namespace(TRAINERS))
    release = Release(cluster, recipe.tag)
    notes = release.install()
    assert f"kubectl -n {NAMESPACE} apply -f examples/quickstart.yaml" in notes
    assert f"Trainers in {TRAINERS} may lend GPUs" in notes
    yield release
    if "pearl-operator" in release.names("deployments"):
        release.uninstall()
    cluster.kubectl("delete", "pearlrollouts", "--all", "-n", NAMESPACE)
    cluster.kubectl("delete", "namespace", NAMESPACE, TRAINERS, "--timeout=90s")


def test_uninstalling_leaves_the_rollouts_alone_and_reinstalling_picks_them_up(release: Release) -> None:
    cluster = release.cluster
    cluster.apply(rollout_of_absent_engine(NAMESPACE))
    release.wait_for_fleet()
    uid = cluster.get("pr", "quickstart", "-n", NAMESPACE)["metadata"]["uid"]
    release.uninstall()
    for kind in ("pods", "deployments", "services", "secrets", "poddisruptionbudgets", "leases", "roles", "jobs"):
        assert release.names(kind) == set(), kind
    assert not [name for name in release.names("serviceaccounts") if name != "default"]
    for kind in ("clusterroles", "clusterrolebindings"):
        left = cluster.kubectl("get", kind, "-o", "name")
        assert f"pearl-operator-{NAMESPACE}" not in left
        assert f"pearl-crds-{NAMESPACE}" not in left, "the hook's rights go with it"
    assert cluster.get("pr", "quickstart", "-n", NAMESPACE)["metadata"]["uid"] == uid
    release.install()
    release.wait_for_fleet()
    assert cluster.get("pr", "quickstart", "-n", NAMESPACE)["metadata"]["uid"] == uid


def test_an_operator_says_that_the_crds_are_of_another_version(release: Release) -> None:
    cluster = release.cluster
    path = "/spec/versions/0/schema/openAPIV3Schema/description"
    patch = [{"op": "replace", "path": path, "value": "A fleet. Schema revision 000000000000."}]
    cluster.kubectl("patch", "crd", "gpuloans.pearl.dev", "--type=json", "-p", json.dumps(patch))
    try:
        pod = f"deployment/pearl-operator -n {NAMESPACE} -c operator --".split()
        script = "import asyncio, pearl_operator.check_crds as c; print(c.problems(asyncio.run(c.read_document())))"

        def complains() -> bool:
            said = cluster.kubectl("exec", *pod, "python", "-c", script)
            return "gpuloans.pearl.dev has schema revision 000000000000" in said and "kubectl apply" in said

        wait_until(complains, what="the operator's complaint about the CRD", timeout_seconds=30, every_seconds=1)
    finally:
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds/gpuloans.yaml"))


def test_an_upgrade_of_the_release_upgrades_the_crds_and_takes_nothing_from_newer_ones(release: Release) -> None:
    cluster = release.cluster
    schema = "/spec/versions/0/schema/openAPIV3Schema"

    def change(*patch: dict[str, Any]) -> None:
        cluster.kubectl("patch", "crd", "gpuloans.pearl.dev", "--type=json", "-p", json.dumps(patch))

    def description() -> str:
        version = cluster.get("crd", "gpuloans.pearl.dev")["spec"]["versions"][0]
        return str(version["schema"]["openAPIV3Schema"]["description"])

    of_this_version = description()
    older = {"op": "replace", "path": f"{schema}/description", "value": "A loan. Schema revision 000000000000."}
    try:
        change(older, {"op": "remove", "path": f"{schema}/properties/spec/properties/group"})
        release.install("upgrade")
        assert description() == of_this_version
        change(
            older, {"op": "add", "path": f"{schema}/properties/spec/properties/tomorrow", "value": {"type": "string"}}
        )
        with pytest.raises(CommandError):
            release.install("upgrade")
        said = cluster.kubectl("-n", NAMESPACE, "logs", "job/pearl-crds")
        assert "gpuloans.pearl.dev in the cluster is of a newer release: it has spec.tomorrow" in said
    finally:
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds/gpuloans.yaml"))
        release.install("upgrade")
