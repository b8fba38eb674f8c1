"""What became of the tries of one turn: when to try again, where not, and when to give it back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl_api.wire.gateway import SegmentReason
from pearl_gateway.errors import try_later

if TYPE_CHECKING:
    from pearl_gateway.router import Route

_RETRY_SECONDS = (0.0, 0.05, 0.2, 0.5, 1.0)
"""Pauses before the next try while tries bring no token; the last one repeats."""
_MOST_LOST = 6
"""Workers that may fail on one turn, one after the other and without a token, before it is given back."""
_MOST_FAULTS = 3
"""The same of engines that are there and answer with a fault."""


class Tries:
    """The tries of one turn so far."""

    def __init__(self, now: float) -> None:
        self.excluded: frozenset[str] = frozenset()
        self._fruitless = 0
        self._lost = 0
        self._faults: list[str] = []
        self._progress_at = now

    def pause(self) -> float:
        """Seconds before the next try."""
        return _RETRY_SECONDS[min(self._fruitless, len(_RETRY_SECONDS) - 1)]

    def note(
        self, route: Route, reason: SegmentReason, now: float, *, progress: bool, fault: str | None = None
    ) -> None:
        """A try ended without the whole answer. `fault`: what the engine said, if it answered with one."""
        self.excluded = frozenset({route.worker} | ({route.prefill} if route.prefill else set()))
        if progress:
            self._fruitless, self._lost, self._progress_at = 0, 0, now
            self._faults.clear()
        else:
            self._fruitless += 1
            self._lost += reason is SegmentReason.WORKER_LOST
            if fault is not None:
                self._faults.append(fault)

    def check(self, now: float, longest_seconds: float) -> None:
        """Raise GatewayError (retryable) when it makes no sense to go on."""
        if len(self._faults) >= _MOST_FAULTS:
            message = f"{len(self._faults)} engines in a row failed on this request: {self._faults[-1]}"
            raise try_later("EngineFault", message, 5.0)
        if self._lost >= _MOST_LOST:
            # It may be the request itself that kills engines: it must not go round the whole fleet.
            raise try_later("WorkerLost", f"{self._lost} workers in a row failed on this turn", 5.0)
        if now - self._progress_at > longest_seconds:
            raise try_later("NoProgress", f"no worker answered within {longest_seconds:.0f} s", 5.0)
