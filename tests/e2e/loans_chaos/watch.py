"""Looks at the device all the time: no engine holds it while the trainer trains."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loans_chaos.chaos_device import ENGINE_BYTES, Shares

if TYPE_CHECKING:
    from pathlib import Path

LOOK_SECONDS = 0.01


@dataclass(slots=True)
class Watch:
    """A thread that samples."""

    device: Path
    looks: int = 0
    engine_looks: int = 0
    training_looks: int = 0
    overlaps: list[float] = field(default_factory=list)
    """When two holders were seen, on the monotonic clock."""
    longest_pause: float = 0.0
    """Between two looks, in seconds: a shorter overlap may have been missed."""
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> Watch:
        """Begin."""
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """End."""
        self._over.set()
        if self._thread:
            self._thread.join()

    def _run(self) -> None:
        shares, last = Shares(self.device), time.monotonic()
        while not self._over.wait(LOOK_SECONDS):
            # Files are read one after the other, so the trainer's is read before and after the engine's: it trained
            # in between, when the engine was seen.
            before, sizes, after = shares.training(), shares.sizes(), shares.training()
            now = time.monotonic()
            self.longest_pause, last = max(self.longest_pause, now - last), now
            self.looks += 1
            self.training_looks += before
            self.engine_looks += ENGINE_BYTES in sizes
            if before and after and ENGINE_BYTES in sizes:
                self.overlaps.append(now)
