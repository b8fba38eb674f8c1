"""A control group per node, on cgroup v1 (one tree per controller) and v2 (one tree)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pearl_dev.errors import ClusterError
from pearl_dev.shell import wait_until

ROOT = Path("/sys/fs/cgroup")
V1_CONTROLLERS = (
    "cpu",
    "cpuacct",
    "cpuset",
    "memory",
    "pids",
    "devices",
    "blkio",
    "freezer",
    "hugetlb",
    "systemd",
    "unified",
)
V2_CONTROLLERS = ("cpuset", "cpu", "io", "memory", "hugetlb", "pids")


@dataclass(frozen=True, slots=True)
class Cgroups:
    """The control groups below one mount point."""

    root: Path = ROOT

    @property
    def unified(self) -> bool:
        """Whether this machine uses cgroup v2 only."""
        return (self.root / "cgroup.controllers").exists()

    def create(self, name: str) -> None:
        """Make a node's group in every tree a kubelet uses."""
        if self.unified:
            self._delegate()
        for tree in self._trees():
            (tree / name).mkdir(exist_ok=True)

    def remove(self, name: str) -> None:
        """Remove a node's groups with all below; their processes must be gone."""
        wait_until(lambda: not self._left(name), what=f"control groups {name} empty", timeout_seconds=10)

    def _trees(self) -> list[Path]:
        if self.unified:
            return [self.root]
        return [self.root / name for name in V1_CONTROLLERS if (self.root / name).is_dir()]

    def _left(self, name: str) -> list[Path]:
        groups = [tree / name for tree in self._trees() if (tree / name).exists()]
        for group in groups:
            below = [path for path in group.rglob("*") if path.is_dir()]
            for folder in (*sorted(below, key=lambda path: -len(path.parts)), group):
                try:
                    folder.rmdir()
                except OSError:
                    break  # a process is still on its way out: ask again
        return [group for group in groups if group.exists()]

    def _delegate(self) -> None:
        offered = (self.root / "cgroup.controllers").read_text().split()
        switch = self.root / "cgroup.subtree_control"
        active = switch.read_text().split()
        for controller in V2_CONTROLLERS:
            if controller in offered and controller not in active:
                try:
                    switch.write_text(f"+{controller}")
                except OSError as error:
                    raise ClusterError(
                        f"cannot enable the cgroup controller {controller!r} in {switch}: {error}. "
                        "Inside a container, move its processes out of the root cgroup first."
                    ) from error
