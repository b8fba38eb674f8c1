"""The whole product on a real cluster: chart, operator, gateway, and real vLLM in real pods.

The tests of this folder share one installation and, where they can, one PearlRollout; each sets the shape it needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pearl_dev.fleet import Api, Fleet
from pearl_dev.product import NAMESPACE, Installation, install, prepare
from pearl_dev.progress import Progress
from pearl_dev.settings import from_environment
from pearl_dev.testing import cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pearl_dev.handle import Cluster

__all__ = ["cluster"]

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / "examples/quickstart.yaml"
SPREAD = {
    "maxSkew": 1,
    "topologyKey": "kubernetes.io/hostname",
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchLabels": {"pearl.dev/component": "worker", "pearl.dev/rollout": "quickstart"}},
}
"""Workers on both nodes, so that hand-offs can be seen to cross them."""


@pytest.fixture(scope="session")
def installation(cluster: Cluster) -> Installation:
    """PEARL installed by its chart, with images and engine of this checkout."""
    progress = Progress()
    return install(cluster, prepare(from_environment(), progress), progress)


@pytest.fixture(scope="session")
def api(cluster: Cluster) -> Iterator[Api]:
    """The API server."""
    opened = Api(cluster.kubeconfig)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def quickstart(installation: Installation, api: Api) -> Iterator[Fleet]:
    """The quickstart example: three workers with the tiny model, ready."""
    manifest = installation.manifest(QUICKSTART.read_text())
    manifest["spec"]["podTemplate"]["spec"]["topologySpreadConstraints"] = [SPREAD]
    installation.cluster.kubectl("-n", NAMESPACE, "apply", "-f", "-", stdin=_yaml(manifest))
    fleet = Fleet(api, NAMESPACE, manifest["metadata"]["name"])
    fleet.wait_ready(3, seconds=400)
    yield fleet
    fleet.close()


@pytest.fixture
def colocated(quickstart: Fleet) -> Fleet:
    """The quickstart fleet with three colocated workers."""
    quickstart.patch({"mode": "Colocated", "ratio": None, "capacity": {"reserved": {"gpus": 3}}})
    quickstart.wait_ready(3)
    quickstart.wait_roles({"colocated": 3})
    return quickstart


@pytest.fixture
def disaggregated(quickstart: Fleet) -> Fleet:
    """The quickstart fleet with one prefill and two decode workers."""
    quickstart.patch({"mode": "Disaggregated", "ratio": {"prefill": 1, "decode": 2}})
    quickstart.wait_ready(3)
    quickstart.wait_roles({"prefill": 1, "decode": 2})
    return quickstart


def _yaml(manifest: object) -> str:
    import yaml

    return yaml.safe_dump(manifest)
