"""Brings a whole cluster up, and takes it down without a trace.

`up` writes what it is going to make before it makes it, so `down` can undo whatever
part exists, after `kill -9` too; `up` after such a crash cleans first.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pearl_dev import addons, base_images, binaries, golden, network, packages, pki
from pearl_dev.cgroups import Cgroups
from pearl_dev.control_plane import ControlPlane
from pearl_dev.errors import ClusterError
from pearl_dev.handle import Cluster, find
from pearl_dev.host import Host
from pearl_dev.layout import MAX_NODES, SLOTS, Addresses, ClusterSpec, Paths, check_spec
from pearl_dev.node import remove_files
from pearl_dev.processes import Ledger, inside, kill
from pearl_dev.shell import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pearl_dev.binaries import Binaries
    from pearl_dev.progress import Progress
    from pearl_dev.settings import Settings

GRACE_SECONDS = 5.0
"""How long programs may take to notice that a cluster is gone, before its addresses stay blocked for them."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What `up` is asked for.

    Attributes:
        nodes: real ones; 0 = the control plane alone, without DNS and Prometheus: with kwok's nodes, for scale.
        gpus: fake GPUs per real node, as the extended resource nvidia.com/gpu.
        dra_gpus: further fake GPUs per real node, for ResourceClaims.
        images: image archives to unpack before the nodes start, which is much faster
            than loading them afterwards.
    """

    name: str = "pearl"
    nodes: int = 2
    gpus: int = 4
    kwok_nodes: int = 0
    monitoring: bool = True
    images: Sequence[Path] = ()
    dra_gpus: int = 2


def prepare(settings: Settings, progress: Progress) -> tuple[Binaries, list[Path]]:
    """Install, build and download all that needs the network: programs and base images."""
    absent = packages.missing()
    if absent:
        with progress.step(f"Install packages: {' '.join(absent)}"):
            packages.install(absent)
    built = binaries.ensure(settings, progress)
    return built, base_images.ensure(settings, built, progress)


def up(settings: Settings, wanted: Wanted, progress: Progress) -> Cluster:
    """Start a cluster.

    Raises:
        ClusterError: it runs already, something is in the way, or it does not come up;
            in the last case what was started is removed again.
    """
    check_spec(wanted.name, wanted.nodes)
    if os.geteuid() != 0:
        raise ClusterError("pearl-dev up needs root: it makes network namespaces and mounts")
    built, archives = prepare(settings, progress)
    root = golden.ensure(settings, built, [*archives, *wanted.images], progress) if wanted.nodes else None
    with _lock(settings):
        old = find(settings, wanted.name)
        if old is not None:
            if Paths(settings.clusters / wanted.name).ready.exists() and _processes(old):
                raise ClusterError(
                    f"cluster {wanted.name!r} is up already; use it, or `pearl-dev down --name {wanted.name}` first"
                )
            with progress.step("Remove what a crash left"):
                _remove(settings, old)
        spec = ClusterSpec(
            wanted.name,
            _free_slot(settings),
            wanted.nodes,
            wanted.gpus,
            wanted.kwok_nodes,
            wanted.monitoring and wanted.nodes > 0,
            dra_gpus=wanted.dra_gpus,
        )
        cluster = Cluster(spec, Paths(settings.clusters / spec.name), built, settings)
        try:
            _bring_up(cluster, root, progress)
        except BaseException:
            kept = _keep_logs(settings, cluster.paths)
            with progress.step("Take down what did not come up"):
                _remove(settings, spec)
            progress.say(f"Its logs: {kept}")
            raise
    return cluster


def _bring_up(cluster: Cluster, root: Path | None, progress: Progress) -> None:
    spec, paths, settings = cluster.spec, cluster.paths, cluster.settings
    if paths.root.exists():
        remove_files(paths)  # killed before it had a spec, so nothing was started
    paths.logs.mkdir(parents=True)
    fresh = paths.spec.with_suffix(".new")
    fresh.write_text(spec.to_json())
    fresh.replace(paths.spec)
    _host(settings).save()
    with progress.step("Network"):
        network.up(spec)
    control_plane = ControlPlane(spec, paths, cluster.binaries, Ledger(paths.ledger), settings.environment)
    with progress.step("Control plane"):
        pki.create(spec, paths)
        control_plane.start()
    if root is not None:
        _start_nodes(cluster, root, progress)
    if spec.kwok_nodes:
        with progress.step(f"{spec.kwok_nodes} kwok nodes"):
            control_plane.start_kwok(addons.kwok_stages())
            cluster.apply(addons.kwok_nodes(spec))
            total = spec.nodes + spec.kwok_nodes
            wait_until(
                lambda: _ready_nodes(cluster) >= total, what="kwok nodes Ready", timeout_seconds=120, every_seconds=0.5
            )
    paths.ready.touch()


def _start_nodes(cluster: Cluster, root: Path, progress: Progress) -> None:
    """The real nodes, and what runs on them."""
    spec, settings = cluster.spec, cluster.settings
    with progress.step(f"{spec.nodes} nodes and DNS"):
        for node in cluster.nodes:
            node.create(root)
            node.start(cluster.binaries, settings.environment)
        cluster.apply(addons.coredns(spec))
        if spec.monitoring:
            cluster.apply(addons.prometheus())
        wait_until(
            lambda: _ready_nodes(cluster) >= spec.nodes,
            what=f"{spec.nodes} nodes Ready",
            timeout_seconds=180,
        )
        cluster.kubectl("-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=180s")
    if spec.gpus:
        with progress.step(f"{spec.gpus} fake GPUs per node"):
            wait_until(
                lambda: _gpus(cluster) == spec.nodes * spec.gpus, what="nvidia.com/gpu allocatable", timeout_seconds=60
            )
    if spec.dra_gpus:
        cluster.apply(addons.device_class())
        with progress.step(f"{spec.dra_gpus} fake GPUs for ResourceClaims per node"):
            wait_until(
                lambda: _published(cluster) == spec.nodes * spec.dra_gpus, what="ResourceSlices", timeout_seconds=60
            )
    if spec.monitoring:
        with progress.step("Prometheus"):
            cluster.kubectl("-n", "monitoring", "rollout", "status", "deployment/prometheus", "--timeout=180s")


def _keep_logs(settings: Settings, paths: Paths) -> Path:
    kept = settings.state / "failed" / paths.root.name
    shutil.rmtree(kept, ignore_errors=True)
    if paths.logs.exists():
        shutil.copytree(paths.logs, kept)
    return kept


def down(settings: Settings, name: str, progress: Progress) -> bool:
    """Remove a cluster, however much of it exists; False when there is none."""
    with _lock(settings):
        spec = find(settings, name)
        if spec is not None:
            with progress.step(f"Take down cluster {name}"):
                _remove(settings, spec, guarded=True)
                users = _lasting_users(spec.addresses)
            if users:
                progress.say(
                    f"These programs still had connections to it: {', '.join(users)}. So that they cannot look for it "
                    "elsewhere, its addresses stay blocked until the next `pearl-dev down` after they have ended."
                )
                return True
        _tidy(settings)
    return spec is not None


def _lasting_users(addresses: Addresses) -> list[str]:
    """Programs that hold on to a cluster which is gone; those of an `up` that was killed end by themselves."""
    deadline = time.monotonic() + GRACE_SECONDS
    while (users := network.users(addresses)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return users


def _tidy(settings: Settings) -> None:
    """Undo what clusters that are gone left on purpose, once nobody needs it."""
    taken = _slots(settings)
    for slot in range(SLOTS):
        if slot not in taken and not network.users(Addresses(slot)):
            network.unguard(Addresses(slot))
    if not taken:
        _host(settings).restore()


def _remove(settings: Settings, spec: ClusterSpec, *, guarded: bool = False) -> None:
    paths = Paths(settings.clusters / spec.name)
    kill(_processes(spec) | {process.pid for process in Ledger(paths.ledger).processes().values() if process.alive()})
    for index in range(MAX_NODES):
        Cgroups().remove(spec.node_scope(index))
    network.down(spec)
    if paths.root.exists():
        remove_files(paths)
    if not guarded:
        network.unguard(spec.addresses)
    if not _slots(settings):
        _host(settings).restore()


def _processes(spec: ClusterSpec) -> set[int]:
    return inside(spec.all_netns)


def _host(settings: Settings) -> Host:
    return Host(settings.state / "host.json")


def _slots(settings: Settings) -> set[int]:
    return {ClusterSpec.from_json(file.read_text()).slot for file in settings.clusters.glob("*/spec.json")}


def _free_slot(settings: Settings) -> int:
    taken = _slots(settings)
    free = [slot for slot in range(SLOTS) if slot not in taken]
    if not free:
        raise ClusterError(f"{SLOTS} clusters exist already; remove one with `pearl-dev down --name NAME`")
    return free[0]


def _ready_nodes(cluster: Cluster) -> int:
    conditions = [node["status"].get("conditions", []) for node in cluster.get("nodes")["items"]]
    return sum(any(one["type"] == "Ready" and one["status"] == "True" for one in some) for some in conditions)


def _gpus(cluster: Cluster) -> int:
    nodes = cluster.get("nodes", "-l", "type!=kwok")["items"]
    return sum(int(node["status"].get("allocatable", {}).get("nvidia.com/gpu", 0)) for node in nodes)


def _published(cluster: Cluster) -> int:
    slices = cluster.get("resourceslices")["items"]
    return sum(len(each["spec"].get("devices", ())) for each in slices)


@contextmanager
def _lock(settings: Settings) -> Iterator[None]:
    """One `up` or `down` at a time: they share the host's network and settings."""
    settings.clusters.mkdir(parents=True, exist_ok=True)
    with (settings.clusters / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
