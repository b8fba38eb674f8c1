"""Reads the fake device apart from all product code: who holds how much of it. Used by test, trainer and watcher.

Shares are told apart by their size, which is how large each kind of user is told to be.
"""

from __future__ import annotations

import fcntl
import json
import uuid
from pathlib import Path  # noqa: TC003 - runs on Python 3.9 too
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

GIB = 1 << 30
ENGINE_BYTES = 8 * GIB
TRAINER_BYTES = 40 * GIB
STUCK_BYTES = 6 * GIB
"""Memory that no process of ours gives back: a driver that lost track of it, a stranger."""


class Shares:
    """The shares of living processes in one directory."""

    def __init__(self, device: Path) -> None:
        self._device = device

    def sizes(self) -> list[int]:
        """Bytes of each share whose owner lives."""
        return [size for path in self._device.glob("*.use") if (size := _held(path))]

    def total(self) -> int:
        """All bytes in use."""
        return sum(self.sizes())

    def others(self) -> int:
        """Bytes that are not the trainer's."""
        return sum(size for size in self.sizes() if size != TRAINER_BYTES)

    def training(self) -> bool:
        """Whether a trainer holds the device."""
        return TRAINER_BYTES in self.sizes()


def hold(device: Path, size: int) -> Callable[[], None]:
    """Take so many bytes as a living process; call the answer to give them back."""
    hidden = device / f".{uuid.uuid4().hex}"
    file = hidden.open("w")
    # The lock is taken before the file gets its name, so that nobody sees it unlocked.
    fcntl.flock(file, fcntl.LOCK_EX)
    file.write(json.dumps({"bytes": size}))
    file.flush()
    path = hidden.rename(hidden.with_name(hidden.name[1:] + ".use"))

    def leave() -> None:
        path.unlink(missing_ok=True)
        file.close()

    return leave


def _held(path: Path) -> int:
    try:
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(json.loads(file.read())["bytes"])
    except FileNotFoundError:
        pass  # its owner just closed it
    return 0
