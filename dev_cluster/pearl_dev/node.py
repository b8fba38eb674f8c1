"""One real node: containerd, kubelet, kube-proxy, and two kinds of fake GPUs: a device plugin's and a DRA driver's.

They run in their own mount, process, host-name, IPC and network namespaces.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pearl_dev.cgroups import Cgroups
from pearl_dev.errors import ClusterError
from pearl_dev.golden import clone
from pearl_dev.packages import cni_folder
from pearl_dev.processes import NETNS, inside, kill

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pearl_dev.binaries import Binaries
    from pearl_dev.layout import ClusterSpec, Paths
    from pearl_dev.processes import Ledger

INIT = Path(__file__).with_name("node-init.sh")
PAUSE_IMAGE = "docker.io/pearl/pause:1"
FOLDERS = ("kubelet", "containerd", "log-pods", "log-containers", "cni-conf", "cni-lib", "cdi", "etc")


@dataclass(frozen=True, slots=True)
class Node:
    """Starts, stops and enters one node of a cluster."""

    spec: ClusterSpec
    paths: Paths
    index: int
    ledger: Ledger

    @property
    def name(self) -> str:
        """Kubernetes' name of the node."""
        return self.spec.node_name(self.index)

    @property
    def scope(self) -> str:
        """Name of its network namespace, cgroups and process."""
        return self.spec.node_scope(self.index)

    @property
    def folder(self) -> Path:
        """Its files."""
        return self.paths.node(self.index)

    def create(self, golden: Path) -> None:
        """Lay out the node's files; images come from the unpacked root `golden`."""
        for name in FOLDERS:
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        clone(golden, self.folder / "containerd")
        etc = self.folder / "etc"
        (self.folder / "cni-conf" / "10-pearl.conflist").write_text(json.dumps(self._cni()))
        (etc / "containerd.toml").write_text(_containerd(self.folder / "cdi"))
        (etc / "resolv.conf").write_text(f"nameserver {self.spec.addresses.dns}\n")  # never the host's
        (etc / "kubelet.yaml").write_text(json.dumps(self._kubelet(), indent=1))
        (etc / "kube-proxy.yaml").write_text(json.dumps(self._kube_proxy(), indent=1))
        self.paths.dead_gpus(self.index).touch()

    def start(self, binaries: Binaries, environment: Mapping[str, str]) -> None:
        """Start it; it registers itself with the API server."""
        Cgroups().create(self.scope)
        argv = [
            "nsenter", f"--net={NETNS / self.scope}",
            "unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--mount-proc", "--kill-child=KILL",
            "bash", str(INIT),
        ]  # fmt: skip
        variables = {
            "NODE": self.name,
            "NODE_IP": self.spec.addresses.node(self.index),
            "FOLDER": str(self.folder),
            "LOGS": str(self.paths.logs),
            "KUBECONFIG_FILE": str(self.paths.kubeconfig_of(f"system:node:{self.name}")),
            "GPUS": str(self.spec.gpus),
            "DRA_GPUS": str(self.spec.dra_gpus),
            "CONTAINERD": str(binaries.or_hosts("containerd")),
            "PATH": f"{binaries.path}:{environment.get('PATH', '')}:/usr/sbin:/usr/bin:/sbin:/bin",
        }
        self.ledger.start(self.scope, argv, log=self.paths.logs / f"{self.name}.log", environment=variables)

    def stop(self) -> None:
        """Kill the node as if its power were cut; its files stay."""
        self.ledger.stop([self.scope])
        kill(inside([self.scope]))
        Cgroups().remove(self.scope)

    def enter(self, argv: Sequence[str]) -> list[str]:
        """The command that runs `argv` inside the node's namespaces.

        Raises:
            ClusterError: the node does not run.
        """
        process = self.ledger.processes().get(self.scope)
        pid = process.child() if process is not None and process.alive() else None
        if pid is None:
            raise ClusterError(f"node {self.name} does not run; see `pearl-dev status`")
        return ["nsenter", f"--target={pid}", "--mount", "--uts", "--ipc", "--net", "--pid", *argv]

    def _cni(self) -> dict[str, Any]:
        return {
            "cniVersion": "0.4.0",
            "name": "pearl",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "cni0",
                    "isGateway": True,
                    "ipMasq": False,
                    "hairpinMode": True,
                    "ipam": {
                        "type": "host-local",
                        "ranges": [[{"subnet": self.spec.addresses.node_pods(self.index)}]],
                        # As on any cluster; it ends at the node, which knows no way out.
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                },
                {"type": "portmap", "capabilities": {"portMappings": True}},
            ],
        }

    def _kubelet(self) -> dict[str, Any]:
        addresses = self.spec.addresses
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": addresses.node(self.index),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.paths.pki / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.scope}",
            "clusterDNS": [addresses.dns],
            "clusterDomain": "cluster.local",
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "failSwapOn": False,
            "failCgroupV1": False,
            "nodeStatusUpdateFrequency": "4s",
            "nodeLeaseDurationSeconds": 10,
            "resolvConf": str(self.folder / "etc" / "resolv.conf"),
            # The nodes share one disk and one memory: only real shortage counts.
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "0%",
                "nodefs.inodesFree": "0%",
                "imagefs.available": "0%",
            },
            "imageGCHighThresholdPercent": 100,
            "volumePluginDir": "/var/lib/kubelet/volume-plugins",  # the default would be made on the host
        }

    def _kube_proxy(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "hostnameOverride": self.name,
            "clusterCIDR": self.spec.addresses.pods,
            "clientConnection": {"kubeconfig": str(self.paths.kubeconfig_of("system:kube-proxy"))},
            # These are the host's, and stay as they are.
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        }


def _containerd(devices: Path) -> str:
    disabled = [f"io.containerd.snapshotter.v1.{name}" for name in ("aufs", "btrfs", "devmapper", "zfs")]
    return f"""version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = {json.dumps([*disabled, "io.containerd.internal.v1.opt"])}
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  enable_cdi = true
  cdi_spec_dirs = ["{devices}"]
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni_folder()}"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"""


def remove_files(paths: Paths) -> None:
    """Remove the cluster's folder with all its nodes."""
    shutil.rmtree(paths.root, ignore_errors=False)
