"""Where the time of the trainer's GPUs goes: training, lent, or idle (neither)."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

TRAINING, LENT, IDLE = "training", "lent", "idle"


@dataclass(frozen=True)
class Usage:
    """Seconds since the loan was made, by what the GPUs did."""

    training_seconds: float
    lent_seconds: float
    idle_seconds: float

    @property
    def idle_fraction(self) -> float | None:
        """Share of the time in which the GPUs neither trained nor were lent; None before any time has passed."""
        total = self.training_seconds + self.lent_seconds + self.idle_seconds
        return self.idle_seconds / total if total > 0 else None


class Meter:
    """Adds up the time between marks; `clock` gives seconds that never go back. Thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._state = IDLE
        self._since = clock()
        self._seconds = dict.fromkeys((TRAINING, LENT, IDLE), 0.0)

    def mark(self, state: str, *, unless: str | None = None) -> None:
        """From now on the GPUs do `state`; ignored while they do `unless`."""
        with self._lock:
            if self._state != unless:
                self._turn(state)

    def read(self) -> Usage:
        """Up to now."""
        with self._lock:
            self._turn(self._state)
            return Usage(self._seconds[TRAINING], self._seconds[LENT], self._seconds[IDLE])

    def _turn(self, state: str) -> None:
        now = self._clock()
        self._seconds[self._state] += now - self._since
        self._state, self._since = state, now
