"""What the supervisor tells its processes: a small file in their directory, replaced whole."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_NAME = "status.json"


@dataclass(frozen=True, slots=True)
class Status:
    """The gateway as a whole."""

    started: float
    """On the machine's monotonic clock."""
    started_wall: float
    pids: tuple[int | None, ...]
    """By process; None while it is being started again."""
    restarts: tuple[int, ...]
    """By process: how often it was started again."""

    def write(self, folder: Path) -> None:
        """Replace the file."""
        draft = folder / f"{_NAME}.tmp"
        draft.write_text(json.dumps(asdict(self)))
        draft.replace(folder / _NAME)


def read_status(folder: Path) -> Status:
    """The newest.

    Raises:
        OSError: the supervisor has not written one.
    """
    found = json.loads((folder / _NAME).read_text())
    return Status(found["started"], found["started_wall"], tuple(found["pids"]), tuple(found["restarts"]))


def socket_of(folder: Path, process: int) -> Path:
    """Where a process listens for the others."""
    return folder / f"{process}.sock"
