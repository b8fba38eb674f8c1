"""The programs the cluster takes from the distribution, installed when missing."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from pearl_dev.errors import ClusterError
from pearl_dev.shell import run

PACKAGE_OF = {
    "runc": "runc",
    "iptables": "iptables",
    "nft": "nftables",
    "conntrack": "conntrack",
    "mmdebstrap": "mmdebstrap",
    "buildah": "buildah",
    "ip": "iproute2",
    "ss": "iproute2",
    "openssl": "openssl",
    "nsenter": "util-linux",
    "mount": "mount",
    "ps": "procps",
}
CDI_SINCE = (1, 7, 2)
"""The containerd that first passed on the devices of ResourceClaims, by the Container Device Interface."""
CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
DEBIAN_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
CNI_PLUGINS = ("bridge", "host-local", "loopback", "portmap")
SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


def find(program: str) -> str | None:
    """Full path of a program, also where a user's PATH lacks the system folders."""
    return shutil.which(program) or shutil.which(program, path=SYSTEM_PATH)


def knows_cdi() -> bool:
    """Whether this machine has a containerd that gives containers the devices of ResourceClaims."""
    containerd = find("containerd")
    if containerd is None or find("ctr") is None:
        return False
    return version_knows_cdi(run([containerd, "--version"]))


def version_knows_cdi(said: str) -> bool:
    """Whether the containerd that prints this for `--version` does."""
    version = re.search(r"\sv?(\d+)\.(\d+)\.(\d+)", said)
    return version is not None and tuple(int(part) for part in version.groups()) >= CDI_SINCE


def cni_folder() -> Path | None:
    """Where the CNI plugins are, None when they are not installed."""
    for folder in CNI_FOLDERS:
        if all((folder / plugin).exists() for plugin in CNI_PLUGINS):
            return folder
    return None


def missing() -> list[str]:
    """Debian packages that have to be installed."""
    wanted = {package for program, package in PACKAGE_OF.items() if find(program) is None}
    if cni_folder() is None:
        wanted.add("containernetworking-plugins")
    if not DEBIAN_KEYS.exists():
        wanted.add("debian-archive-keyring")
    return sorted(wanted)


def install(packages: list[str]) -> None:
    """Install Debian packages.

    Raises:
        ClusterError: this is not a Debian, or we are not root.
    """
    if find("apt-get") is None or os.geteuid() != 0:
        raise ClusterError(f"install these programs' packages first (names as in Debian): {' '.join(packages)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update", "-q"], environment=environment)
    run(["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages], environment=environment)
