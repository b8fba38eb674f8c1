"""The same cluster on Docker and kind, for machines that have them.

Nodes, DNS and Service addresses are kind's own; Prometheus, the fake GPUs, images and
the command line are the same.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pearl_dev import addons, base_images, binaries
from pearl_dev.errors import ClusterError
from pearl_dev.handle import Cluster, find
from pearl_dev.layout import ClusterSpec, Paths, check_spec
from pearl_dev.node import remove_files
from pearl_dev.packages import find as find_program
from pearl_dev.shell import run

if TYPE_CHECKING:
    from pearl_dev.cluster import Wanted
    from pearl_dev.progress import Progress
    from pearl_dev.settings import Settings

NO_SLOT = -1
DEAD = "/etc/pearl-dead-gpus"
GRACE = "kind: ClusterConfiguration\ncontrollerManager:\n  extraArgs:\n    node-monitor-grace-period: 20s\n"


def configuration(cluster: Cluster) -> str:
    """Configuration of kind itself: one control plane and the workers.

    Workers see our cache and state under the host's paths, so that volumes made from
    folders in there work; and each sees the file that names its dead GPUs.
    """
    same = [
        {"hostPath": str(path), "containerPath": str(path)} for path in (cluster.settings.cache, cluster.settings.state)
    ]
    workers = [
        {"role": "worker", "extraMounts": [*same, {"hostPath": str(cluster.paths.node(index)), "containerPath": DEAD}]}
        for index in range(cluster.spec.nodes)
    ]
    return json.dumps(
        {
            "kind": "Cluster",
            "apiVersion": "kind.x-k8s.io/v1alpha4",
            "nodes": [{"role": "control-plane"}, *workers],
            "kubeadmConfigPatches": [GRACE],
        }
    )


def up(settings: Settings, wanted: Wanted, progress: Progress) -> Cluster:
    """Create a kind cluster and put our parts into it.

    Raises:
        ClusterError: Docker or kind is missing, or a cluster of that name exists.
    """
    check_spec(wanted.name, wanted.nodes)
    for program in ("docker", "kind"):
        if find_program(program) is None:
            raise ClusterError(f"--kind needs {program} on PATH; without it use `pearl-dev up`")
    if wanted.kwok_nodes:
        raise ClusterError("--kwok-nodes: not with --kind; use `pearl-dev up --kwok-nodes`")
    if find(settings, wanted.name) is not None:
        raise ClusterError(f"cluster {wanted.name!r} exists; `pearl-dev down --name {wanted.name}` first")
    built = binaries.ensure(settings, progress)
    spec = ClusterSpec(wanted.name, NO_SLOT, wanted.nodes, wanted.gpus, 0, wanted.monitoring, kind=True)
    cluster = Cluster(spec, Paths(settings.clusters / spec.name), built, settings)
    cluster.kubeconfig.parent.mkdir(parents=True)
    for index in range(spec.nodes):
        cluster.paths.node(index).mkdir(parents=True)
        cluster.paths.dead_gpus(index).touch()
    cluster.paths.spec.write_text(spec.to_json())
    with progress.step(f"kind cluster with {spec.nodes} workers"):
        create = ["kind", "create", "cluster", "--name", spec.name, "--wait", "180s"]
        run([*create, "--kubeconfig", cluster.kubeconfig, "--config", "-"], stdin=configuration(cluster))
    with progress.step("Prometheus and fake GPUs"):
        archives = [
            archive
            for archive in base_images.static(settings, built)
            if archive.name.startswith(("prometheus", "fakegpu"))
        ]
        cluster.load_image(*archives, *wanted.images)
        if spec.gpus:
            cluster.apply(addons.fake_gpus(spec))
        if spec.monitoring:
            cluster.apply(addons.prometheus())
            cluster.kubectl("-n", "monitoring", "rollout", "status", "deployment/prometheus", "--timeout=120s")
    cluster.paths.ready.touch()
    return cluster


def down(settings: Settings, name: str, progress: Progress) -> bool:
    """Delete a kind cluster; False when there is none."""
    if find(settings, name) is None:
        return False
    with progress.step(f"Take down kind cluster {name}"):
        run(["kind", "delete", "cluster", "--name", name])
        remove_files(Paths(settings.clusters / name))
    return True
