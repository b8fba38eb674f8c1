"""etcd, the API server, the controller manager and the scheduler as plain processes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pearl_dev.errors import ClusterError
from pearl_dev.pki import KUBELET_CLIENT
from pearl_dev.processes import NETNS
from pearl_dev.shell import run, succeeds, wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pearl_dev.binaries import Binaries
    from pearl_dev.layout import ClusterSpec, Paths
    from pearl_dev.processes import Ledger

ETCD = "http://127.0.0.1:2379"  # the namespace's own loopback
MANY_NODES_SECONDS = 200
"""Life of kwok's node Leases where there is no real node; a quarter of it lies between two renewals."""
MANY_REQUESTS = ("--kube-api-qps=500", "--kube-api-burst=1000")


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """Starts the control plane of one cluster inside its network namespace."""

    spec: ClusterSpec
    paths: Paths
    binaries: Binaries
    ledger: Ledger
    environment: Mapping[str, str]

    def start(self) -> None:
        """Start everything and wait until the API answers."""
        self._run("etcd", self._etcd())
        self._run("kube-apiserver", self._apiserver())
        kubectl: list[str | Path] = [
            self.binaries["kubectl"],
            "--kubeconfig",
            self.paths.kubeconfig,
            "--cache-dir",
            self.paths.caches / "kubectl",
        ]
        self._wait("the API server", [*kubectl, "get", "--raw", "/readyz"], 60)
        self._run("kube-controller-manager", self._controller_manager())
        self._run("kube-scheduler", self._scheduler())
        self._wait("the default ServiceAccount", [*kubectl, "-n", "default", "get", "serviceaccount", "default"], 60)

    def start_kwok(self, stages: str) -> None:
        """Start kwok, which plays the kubelet of nodes that do not exist."""
        config = self.paths.root / "kwok.yaml"
        config.write_text(stages)
        self._run(
            "kwok",
            [f"--kubeconfig={self.paths.kubeconfig}", f"--config={config}",
             "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
             f"--cidr={self.spec.addresses.imagined}",
             f"--node-lease-duration-seconds={40 if self.spec.nodes else MANY_NODES_SECONDS}",
             "--server-address=127.0.0.1:10247"],
        )  # fmt: skip

    def _run(self, name: str, flags: list[str]) -> None:
        argv: list[str | Path] = ["nsenter", f"--net={NETNS / self.spec.netns}", self.binaries[name], *flags]
        self.ledger.start(name, argv, log=self.paths.logs / f"{name}.log", environment=self.environment)

    def _wait(self, what: str, argv: list[str | Path], timeout_seconds: float) -> None:
        def answered() -> bool:
            self._check_alive()
            return succeeds(argv)

        wait_until(answered, what=what, timeout_seconds=timeout_seconds)

    def _check_alive(self) -> None:
        for process in self.ledger.processes().values():
            if not process.alive():
                log = self.paths.logs / f"{process.name}.log"
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
                raise ClusterError(f"{process.name} stopped:\n{tail}")

    def _etcd(self) -> list[str]:
        return [
            "--name=pearl",
            f"--data-dir={self.paths.root / 'etcd'}",
            "--unsafe-no-fsync",  # nothing in it has to survive the machine
            f"--listen-client-urls={ETCD}",
            f"--advertise-client-urls={ETCD}",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--log-level=warn",
            "--auto-compaction-retention=5m",
        ]

    def _apiserver(self) -> list[str]:
        pki, addresses = self.paths.pki, self.spec.addresses
        return [
            f"--etcd-servers={ETCD}",
            f"--advertise-address={addresses.control_plane}",
            "--bind-address=0.0.0.0",
            "--secure-port=6443",
            f"--tls-cert-file={pki / 'apiserver.crt'}",
            f"--tls-private-key-file={pki / 'apiserver.key'}",
            f"--client-ca-file={pki / 'ca.crt'}",
            f"--token-auth-file={pki / 'tokens.csv'}",
            "--anonymous-auth=false",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--service-account-key-file={pki / 'sa.pub'}",
            f"--service-account-signing-key-file={pki / 'sa.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-cluster-ip-range={addresses.services}",
            # Webhooks behind Services: the API server has no kube-proxy beside it.
            "--enable-aggregator-routing=true",
            f"--kubelet-client-certificate={pki / f'{KUBELET_CLIENT}.crt'}",
            f"--kubelet-client-key={pki / f'{KUBELET_CLIENT}.key'}",
            "--kubelet-preferred-address-types=InternalIP",
            "--allow-privileged=true",
            "--profiling=false",
            f"--requestheader-client-ca-file={pki / 'ca.crt'}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={pki / 'front-proxy-client.crt'}",
            f"--proxy-client-key-file={pki / 'front-proxy-client.key'}",
        ]

    def _controller_manager(self) -> list[str]:
        pki, addresses = self.paths.pki, self.spec.addresses
        return [
            *self._as_user("system:kube-controller-manager"),
            *MANY_REQUESTS,
            f"--service-account-private-key-file={pki / 'sa.key'}",
            f"--root-ca-file={pki / 'ca.crt'}",
            "--use-service-account-credentials=true",
            f"--cluster-cidr={addresses.pods}",
            "--allocate-node-cidrs=false",
            f"--service-cluster-ip-range={addresses.services}",
            "--node-monitor-period=2s",
            # A dead node shows after 20 s, not 52; imagined ones do not die, but all of them say so to one kwok.
            f"--node-monitor-grace-period={20 if self.spec.nodes else 2 * MANY_NODES_SECONDS}s",
            f"--cluster-signing-cert-file={pki / 'ca.crt'}",
            f"--cluster-signing-key-file={pki / 'ca.key'}",
        ]

    def _scheduler(self) -> list[str]:
        return [*self._as_user("system:kube-scheduler"), *MANY_REQUESTS]

    def _as_user(self, user: str) -> list[str]:
        file = self.paths.kubeconfig_of(user)
        return [
            f"--kubeconfig={file}",
            f"--authentication-kubeconfig={file}",
            f"--authorization-kubeconfig={file}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            "--profiling=false",
        ]


def versions(binaries: Binaries) -> dict[str, str]:
    """Versions of the programs a user meets, as they say themselves."""
    client = json.loads(run([binaries["kubectl"], "version", "--client", "-o", "json"]))
    helm = run([binaries["helm"], "version", "--template", "{{.Version}}"])
    return {"kubernetes": client["clientVersion"]["gitVersion"], "helm": helm.strip()}
