"""A running cluster in the hands of a test, the demo or the command line."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pearl_dev import network
from pearl_dev.errors import ClusterError, CommandError
from pearl_dev.layout import ClusterSpec, Paths
from pearl_dev.node import Node
from pearl_dev.processes import NETNS, Ledger
from pearl_dev.shell import run
from pearl_dev.volumes import local_volume

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from pearl_dev.binaries import Binaries
    from pearl_dev.settings import Settings

SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
WITH_CLUSTER_DNS = 'mount --bind "$1" /etc/resolv.conf && shift && exec "$@"'


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that is up. From the host its API server, pods and Services are reachable."""

    spec: ClusterSpec
    paths: Paths
    binaries: Binaries
    settings: Settings

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig; good on the host and inside the cluster."""
        return self.paths.kubeconfig

    @property
    def nodes(self) -> list[Node]:
        """Its real nodes."""
        ledger = Ledger(self.paths.ledger)
        return [Node(self.spec, self.paths, index, ledger) for index in range(self.spec.nodes)]

    @property
    def environment(self) -> dict[str, str]:
        """Environment with KUBECONFIG, and kubectl and helm first on PATH.

        Their caches are the cluster's own: another cluster at the same address is another one.
        """
        own = {
            "KUBECONFIG": self.kubeconfig,
            "KUBECACHEDIR": self.paths.caches / "kubectl",
            "HELM_CACHE_HOME": self.paths.caches / "helm",
            "HELM_CONFIG_HOME": self.paths.caches / "helm-config",
            "HELM_DATA_HOME": self.paths.caches / "helm-data",
            "PATH": f"{self.binaries.path}:{self.settings.environment.get('PATH', '')}:{SYSTEM_PATH}",
        }
        return {**self.settings.environment, **{name: str(value) for name, value in own.items()}}

    def kubectl(self, *words: str, stdin: str | None = None, timeout_seconds: float | None = 300) -> str:
        """Run kubectl and return what it prints.

        Raises:
            CommandError: it failed; `output` holds what it said.
        """
        argv: list[str | Path] = [self.binaries["kubectl"], *words]
        return run(argv, stdin=stdin, environment=self.environment, timeout_seconds=timeout_seconds)

    def get(self, *words: str) -> Any:
        """An object or a list from `kubectl get`, as JSON."""
        return json.loads(self.kubectl("get", *words, "-o", "json"))

    def apply(self, *objects: dict[str, Any] | str) -> None:
        """Apply manifests, given as objects or as YAML text."""
        for item in objects:
            self.kubectl("apply", "--server-side", "-f", "-", stdin=item if isinstance(item, str) else json.dumps(item))

    def helm(self, *words: str, timeout_seconds: float | None = 600) -> str:
        """Run helm and return what it prints."""
        return run([self.binaries["helm"], *words], environment=self.environment, timeout_seconds=timeout_seconds)

    def load_image(self, *archives: Path) -> None:
        """Make images from archives known to every running node."""
        if self.spec.kind:
            for archive in archives:
                run(["kind", "load", "image-archive", archive, "--name", self.spec.name])
            return
        for node in self.nodes:
            for archive in archives:
                argv = node.enter([str(self.binaries.or_hosts("ctr")), "-n", "k8s.io", "images", "import", "-"])
                with archive.open("rb") as data:
                    done = subprocess.run(argv, stdin=data, capture_output=True, check=False)
                if done.returncode != 0:
                    raise CommandError(argv, done.returncode, (done.stdout + done.stderr).decode())

    def volume(self, name: str, path: Path, namespace: str, *, read_only: bool = False) -> None:
        """Create a volume and its claim from a folder of this machine."""
        self.apply(*local_volume(name, path, namespace, read_only=read_only))

    def kill_gpus(self, index: int, gpus: Iterable[int]) -> None:
        """Declare exactly these GPUs of a node dead; an empty list heals all."""
        self.paths.dead_gpus(index).write_text(" ".join(str(gpu) for gpu in gpus))

    def stop_node(self, index: int) -> None:
        """Cut a node's power. The host reaches Services through another one."""
        running = [node.index for node in self.nodes if node.index != index and _runs(node)]
        self.nodes[index].stop()
        if running:
            network.route_services(self.spec, running[0])

    def start_node(self, index: int) -> None:
        """Start a node that was stopped; its files are as they were."""
        self.nodes[index].start(self.binaries, self.settings.environment)
        network.route_services(self.spec, index)

    def inside(self, argv: Sequence[str]) -> list[str]:
        """The command that runs `argv` in the cluster's network, with its DNS.

        `environment` belongs to it. There is no way out of that network.
        """
        program = shutil.which(argv[0], path=self.environment["PATH"])
        if program is None:
            raise ClusterError(f"{argv[0]}: no such program; name one that is on PATH")
        resolv = self.paths.node(0) / "etc" / "resolv.conf"
        return ["nsenter", f"--net={NETNS / self.spec.netns}", "unshare", "--mount",
                "sh", "-c", WITH_CLUSTER_DNS, "sh", str(resolv), program, *argv[1:]]  # fmt: skip


def _runs(node: Node) -> bool:
    process = node.ledger.processes().get(node.scope)
    return process is not None and process.alive()


def find(settings: Settings, name: str) -> ClusterSpec | None:
    """What a cluster of that name was asked to be, None when there is none."""
    try:
        return ClusterSpec.from_json(Paths(settings.clusters / name).spec.read_text())
    except FileNotFoundError:
        return None


def attach(settings: Settings, name: str, binaries: Binaries) -> Cluster:
    """The running cluster of that name.

    Raises:
        ClusterError: there is none, or it did not come up.
    """
    spec, paths = find(settings, name), Paths(settings.clusters / name)
    if spec is None or not paths.ready.exists():
        raise ClusterError(f"no cluster {name!r} is up: start it with `pearl-dev up --name {name}`")
    return Cluster(spec, paths, binaries, settings)
