"""What runs inside every cluster: DNS, Prometheus, and kwok's nodes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pearl_dev.settings import SOURCE

if TYPE_CHECKING:
    from pearl_dev.layout import ClusterSpec

MANIFESTS = SOURCE / "manifests"
KWOK_RESOURCES = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8", "ephemeral-storage": "1Ti"}


def coredns(spec: ClusterSpec) -> str:
    """Manifest of the cluster's DNS, on two nodes when there are two."""
    text = (MANIFESTS / "coredns.yaml").read_text()
    return text.replace("DNS_IP", spec.addresses.dns).replace("REPLICAS", str(min(2, spec.nodes)))


def prometheus() -> str:
    """Manifest of Prometheus, reached as `prometheus.monitoring:9090`."""
    return (MANIFESTS / "prometheus.yaml").read_text()


def fake_gpus(spec: ClusterSpec) -> str:
    """Manifest of the fake GPU plugin as a DaemonSet, for nodes that are not ours."""
    return (MANIFESTS / "fakegpu.yaml").read_text().replace("GPUS", str(spec.gpus))


def device_class() -> str:
    """Manifest of the DeviceClass of the DRA driver's fake GPUs."""
    return (MANIFESTS / "dra.yaml").read_text()


def kwok_stages() -> str:
    """What kwok does to its nodes and pods."""
    return (MANIFESTS / "kwok-stages.yaml").read_text()


def kwok_nodes(spec: ClusterSpec) -> str:
    """Manifest of nodes that do not exist; pods need a toleration to be put there."""
    items = [_kwok_node(f"kwok-{index:04d}", spec.addresses.imagined_node(index)) for index in range(spec.kwok_nodes)]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def _kwok_node(name: str, address: str) -> dict[str, Any]:
    labels = {
        "type": "kwok",
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": {"kwok.x-k8s.io/node": "fake"}},
        "spec": {"taints": [{"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}]},
        "status": {
            "allocatable": KWOK_RESOURCES,
            "capacity": KWOK_RESOURCES,
            "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
        },
    }
