"""Names, addresses and files of one cluster, all derived from its name and slot.

Clusters on one machine must not share addresses, so each takes a *slot* (0 to 7),
which has its part of the ranges below. Nothing in them is ever routed off the machine.

| range, slots 0-3 | slots 4-7    | per slot | what                                       |
|------------------|--------------|----------|--------------------------------------------|
| 10.88.0.0/16     | 10.90.0.0/16 | /18      | pods, one /24 per node                     |
| 10.89.0.0/16     | the same     | /24      | nodes and, at .1, the control plane        |
| 10.89.255.0/24   | the same     | /30      | the cable between the host and the cluster |
| 10.96.0.0/16     | 10.97.0.0/16 | /18      | Services; DNS is the range's .10           |
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from pearl_dev.errors import ClusterError

if TYPE_CHECKING:
    from pathlib import Path

SLOTS = 8
QUARTERS = 4
MAX_NODES = 8
NAME = re.compile(r"[a-z]([a-z0-9-]{0,18}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Addresses:
    """Addresses of the cluster in one slot."""

    slot: int

    def _pods(self, third: int) -> str:
        half, quarter = divmod(self.slot, QUARTERS)
        return f"10.{88 + 2 * half}.{64 * quarter + third}"

    def _services(self) -> str:
        half, quarter = divmod(self.slot, QUARTERS)
        return f"10.{96 + half}.{64 * quarter}"

    @property
    def pods(self) -> str:
        """Range of all pods."""
        return f"{self._pods(0)}.0/18"

    @property
    def nodes(self) -> str:
        """Range of the nodes and the control plane."""
        return f"10.89.{self.slot}.0/24"

    @property
    def services(self) -> str:
        """Range of Service IPs."""
        return f"{self._services()}.0/18"

    @property
    def ranges(self) -> tuple[str, str, str]:
        """All that lies behind the cable."""
        return (self.pods, self.nodes, self.services)

    @property
    def host(self) -> str:
        """The host's end of the cable."""
        return f"10.89.255.{4 * self.slot + 1}"

    @property
    def gateway(self) -> str:
        """The cluster's end of the cable."""
        return f"10.89.255.{4 * self.slot + 2}"

    @property
    def cable(self) -> str:
        """Range of the cable."""
        return f"10.89.255.{4 * self.slot}/30"

    @property
    def control_plane(self) -> str:
        """Where the API server listens, port 6443; also the nodes' router."""
        return f"10.89.{self.slot}.1"

    @property
    def api_url(self) -> str:
        """The API server, as seen from the host, from nodes and from pods."""
        return f"https://{self.control_plane}:6443"

    @property
    def kubernetes_service(self) -> str:
        """The `kubernetes` Service."""
        return f"{self._services()}.1"

    @property
    def dns(self) -> str:
        """The DNS Service."""
        return f"{self._services()}.10"

    @property
    def imagined(self) -> str:
        """Range of kwok's pods; nothing answers there, and no packet to it gets out."""
        return f"{self._pods(32)}.0/19"

    def imagined_node(self, index: int) -> str:
        """Address that a kwok node claims to have."""
        return f"{self._pods(16 + index // 250 % 16)}.{index % 250 + 1}"

    def node(self, index: int) -> str:
        """Address of a node."""
        return f"10.89.{self.slot}.{10 + index}"

    def node_pods(self, index: int) -> str:
        """Range of a node's pods."""
        return f"{self._pods(index)}.0/24"


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """What a cluster was asked to be; kept in its folder as `spec.json`."""

    name: str
    slot: int
    nodes: int = 2
    gpus: int = 4
    kwok_nodes: int = 0
    monitoring: bool = True
    kind: bool = False
    dra_gpus: int = 0

    @property
    def addresses(self) -> Addresses:
        """Addresses of this cluster."""
        return Addresses(self.slot)

    def node_name(self, index: int) -> str:
        """Kubernetes' name of a node."""
        if self.kind:
            return f"{self.name}-worker{index + 1 if index else ''}"
        return f"{self.name}-{index}"

    @property
    def netns(self) -> str:
        """Network namespace of the control plane and of `pearl-dev exec`."""
        return f"pearl-dev-{self.name}"

    def node_scope(self, index: int) -> str:
        """Name of a node's network namespace and cgroups."""
        return f"{self.netns}.{index}"

    @property
    def all_netns(self) -> list[str]:
        """Every namespace the cluster may have, whether it was made or not."""
        return [self.netns, *(self.node_scope(index) for index in range(MAX_NODES))]

    @property
    def cable(self) -> str:
        """The host's end of the one network interface that leads to the cluster."""
        return f"pearl-s{self.slot}"

    def to_json(self) -> str:
        """As text for `spec.json`."""
        return json.dumps(asdict(self), indent=1)

    @staticmethod
    def from_json(text: str) -> ClusterSpec:
        """Read back what `to_json` wrote."""
        return ClusterSpec(**json.loads(text))


@dataclass(frozen=True, slots=True)
class Paths:
    """Files of one cluster."""

    root: Path

    @property
    def spec(self) -> Path:
        """What the cluster was asked to be."""
        return self.root / "spec.json"

    @property
    def ready(self) -> Path:
        """Exists once the cluster was up; without it, `up` did not get to its end."""
        return self.root / "ready"

    @property
    def ledger(self) -> Path:
        """The processes that were started."""
        return self.root / "processes.json"

    @property
    def pki(self) -> Path:
        """Certificates, keys and tokens."""
        return self.root / "pki"

    @property
    def logs(self) -> Path:
        """One file per component."""
        return self.root / "log"

    @property
    def caches(self) -> Path:
        """What kubectl and helm remember."""
        return self.root / "cache"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.kubeconfig_of("admin")

    def kubeconfig_of(self, user: str) -> Path:
        """A component's kubeconfig."""
        return self.root / "kubeconfig" / f"{user.removeprefix('system:').replace(':', '-')}.yaml"

    def node(self, index: int) -> Path:
        """A node's files."""
        return self.root / "nodes" / str(index)

    def dead_gpus(self, index: int) -> Path:
        """File that names a node's dead GPUs, by index or name."""
        return self.node(index) / "dead-gpus"


def check_spec(name: str, nodes: int) -> None:
    """Refuse what cannot be built.

    Raises:
        ClusterError: names the option and what it may be.
    """
    if not NAME.fullmatch(name):
        raise ClusterError(f"--name {name!r}: use up to 20 small letters, digits and '-', starting with a letter")
    if not 0 <= nodes <= MAX_NODES:
        raise ClusterError(f"--nodes {nodes}: use 1 to {MAX_NODES}, or 0 for the control plane alone")
