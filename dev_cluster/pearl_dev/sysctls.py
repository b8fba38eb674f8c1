"""Saves the host's kernel settings that a kubelet changes, and puts them back.

They are written down before the first cluster starts and restored when the last one
is gone; after a crash the next `up` or `down` still finds them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from pearl_dev.processes import boot_id

CHANGED_BY_KUBELET = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)


@dataclass(frozen=True, slots=True)
class Sysctls:
    """The saved settings."""

    saved: Path
    proc: Path = Path("/proc/sys")

    def save(self) -> None:
        """Write the present values down, unless an earlier cluster of this boot did."""
        if self._load() is not None:
            return
        values = {name: (self.proc / name).read_text().strip() for name in CHANGED_BY_KUBELET if (self.proc / name).exists()}
        self.saved.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.saved.with_suffix(".new")
        fresh.write_text(json.dumps({"boot": boot_id(), "values": values}, indent=1))
        fresh.replace(self.saved)

    def restore(self) -> None:
        """Put back what differs, and forget."""
        for name, value in (self._load() or {}).items():
            setting = self.proc / name
            if setting.read_text().strip() != value:
                setting.write_text(value)
        self.saved.unlink(missing_ok=True)

    def _load(self) -> dict[str, str] | None:
        try:
            saved = json.loads(self.saved.read_text())
        except FileNotFoundError:
            return None
        values: dict[str, str] = saved["values"]
        return values if saved["boot"] == boot_id() else None  # a restart has reset them
