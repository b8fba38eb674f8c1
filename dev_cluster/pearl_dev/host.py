"""What the cluster changes on the host outside its namespaces, and how it is put back.

Two things: kernel settings that every kubelet changes, and empty folders that a node's
private mounts need as mount points. Both are written down before the first cluster
starts and undone when the last one is gone; after a crash the next `up` or `down`
still finds the record.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pearl_dev.processes import NETNS, boot_id
from pearl_dev.shell import run

CHANGED_BY_KUBELET = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
MOUNT_POINTS = (
    "/var/lib/kubelet",
    "/var/lib/containerd",
    "/run/containerd",
    "/var/log/pods",
    "/var/log/containers",
    "/etc/cni/net.d",
    "/var/lib/cni",
    "/run/netns",
)


@dataclass(frozen=True, slots=True)
class Host:
    """The host's settings and folders, as they were before the first cluster."""

    record: Path
    root: Path = Path("/")

    def save(self) -> None:
        """Write down how things are, unless an earlier cluster did, and make the mount points."""
        if not self.record.exists() or self._load()["boot"] != boot_id():
            self._write()
        for point in MOUNT_POINTS:
            self._path(point).mkdir(parents=True, exist_ok=True)

    def restore(self) -> None:
        """Put back what differs, remove the folders that are empty, and forget."""
        if not self.record.exists():
            return
        saved = self._load()
        if saved["boot"] == boot_id():  # a restart has reset all but the folders
            for name, value in saved["sysctls"].items():
                setting = self._path(f"/proc/sys/{name}")
                if setting.read_text().strip() != value:
                    setting.write_text(value)
            if not saved["netns_mounted"] and _is_mount(NETNS) and not any(NETNS.iterdir()):
                run(["umount", str(NETNS)])
        for folder in reversed(saved["made"]):
            with suppress(OSError):  # somebody uses it by now
                self._path(folder).rmdir()
        self.record.unlink()

    def _path(self, absolute: str) -> Path:
        return self.root / absolute.lstrip("/")

    def _load(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.record.read_text())
        return loaded

    def _write(self) -> None:
        made = self._load()["made"] if self.record.exists() else []
        settings = {name: self._path(f"/proc/sys/{name}") for name in CHANGED_BY_KUBELET}
        record = {
            "boot": boot_id(),
            "sysctls": {name: file.read_text().strip() for name, file in settings.items() if file.exists()},
            "made": [*made, *self._absent()],
            "netns_mounted": _is_mount(NETNS),
        }
        self.record.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.record.with_suffix(".new")
        fresh.write_text(json.dumps(record, indent=1))
        fresh.replace(self.record)

    def _absent(self) -> list[str]:
        wanted = [folder for point in MOUNT_POINTS for folder in (*reversed(Path(point).parents), Path(point))]
        return [str(folder) for folder in dict.fromkeys(wanted) if not self._path(str(folder)).exists()]


def _is_mount(path: Path) -> bool:
    return any(line.split()[4] == str(path) for line in Path("/proc/self/mountinfo").read_text().splitlines())
