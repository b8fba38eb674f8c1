"""Certificates, keys, tokens and kubeconfigs of one cluster, made with openssl."""

from __future__ import annotations

import base64
import json
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pearl_dev.shell import run

if TYPE_CHECKING:
    from pathlib import Path

    from pearl_dev.layout import ClusterSpec, Paths

DAYS = "365"
KUBELET_CLIENT = "apiserver-kubelet-client"


@dataclass(frozen=True, slots=True)
class User:
    """Someone who may call the API server; `groups` decide what they may do."""

    name: str
    groups: str = ""


def users(spec: ClusterSpec) -> list[User]:
    """The administrator and each component."""
    return [
        User("admin", "system:masters"),
        User("system:kube-controller-manager"),
        User("system:kube-scheduler"),
        User("system:kube-proxy"),
        *(User(f"system:node:{spec.node_name(index)}", "system:nodes") for index in range(spec.nodes)),
    ]


def create(spec: ClusterSpec, paths: Paths) -> None:
    """Write all of it into the cluster's folder."""
    paths.pki.mkdir(parents=True, mode=0o700)
    paths.kubeconfig.parent.mkdir(mode=0o700)
    _authority(paths.pki)
    addresses = spec.addresses
    names = [
        "localhost",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    ]
    ips = ["127.0.0.1", addresses.control_plane, addresses.kubernetes_service]
    alternatives = ",".join([*(f"DNS:{name}" for name in names), *(f"IP:{ip}" for ip in ips)])
    _sign(paths.pki, "apiserver", "/CN=kube-apiserver", f"subjectAltName={alternatives}\nextendedKeyUsage=serverAuth\n")
    _sign(paths.pki, KUBELET_CLIENT, f"/O=system:masters/CN={KUBELET_CLIENT}", "extendedKeyUsage=clientAuth\n")
    _sign(paths.pki, "front-proxy-client", "/CN=front-proxy-client", "extendedKeyUsage=clientAuth\n")
    run(["openssl", "genrsa", "-out", paths.pki / "sa.key", "2048"])
    run(["openssl", "rsa", "-in", paths.pki / "sa.key", "-pubout", "-out", paths.pki / "sa.pub"])
    _tokens(spec, paths)


def _key(file: Path) -> None:
    run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", file])
    file.chmod(0o600)


def _authority(folder: Path) -> None:
    _key(folder / "ca.key")
    run(
        ["openssl", "req", "-x509", "-new", "-key", folder / "ca.key", "-days", DAYS, "-subj", "/CN=pearl-dev",
         "-out", folder / "ca.crt", "-addext", "basicConstraints=critical,CA:TRUE",
         "-addext", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature"],
    )  # fmt: skip


def _sign(folder: Path, name: str, subject: str, extensions: str) -> None:
    _key(folder / f"{name}.key")
    request, extra = folder / f"{name}.csr", folder / f"{name}.ext"
    extra.write_text(extensions)
    run(["openssl", "req", "-new", "-key", folder / f"{name}.key", "-subj", subject, "-out", request])
    run(
        ["openssl", "x509", "-req", "-in", request, "-CA", folder / "ca.crt", "-CAkey", folder / "ca.key",
         "-CAcreateserial", "-days", DAYS, "-extfile", extra, "-out", folder / f"{name}.crt"],
    )  # fmt: skip
    request.unlink()
    extra.unlink()


def _tokens(spec: ClusterSpec, paths: Paths) -> None:
    rows = []
    for user in users(spec):
        token = secrets.token_hex(16)
        rows.append(f"{token},{user.name},{user.name},{user.groups}")
        file = paths.kubeconfig_of(user.name)
        file.write_text(_kubeconfig(spec, paths, user.name, token))
        file.chmod(0o600)
    tokens = paths.pki / "tokens.csv"
    tokens.write_text("\n".join(rows) + "\n")
    tokens.chmod(0o600)


def _kubeconfig(spec: ClusterSpec, paths: Paths, user: str, token: str) -> str:
    authority = base64.b64encode((paths.pki / "ca.crt").read_bytes()).decode()
    name = f"pearl-dev-{spec.name}"
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": name,
            "clusters": [
                {"name": name, "cluster": {"server": spec.addresses.api_url, "certificate-authority-data": authority}}
            ],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": user}}],
        },
        indent=1,
    )
