"""The virtual clock: a heap of (time, order, call, argument). Equal times run in the order of planning."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_EVENTS_AT_ONCE = 1_000_000
"""Events without time passing after which the simulation is stuck."""


class SimulationError(Exception):
    """An invariant of the simulated cluster broke: a bug of the simulator, or a scenario that cannot be run."""


class Clock:
    """Virtual time in seconds since the start of the run."""

    __slots__ = ("_events", "_order", "now", "processed", "stopped")

    def __init__(self) -> None:
        self.now = 0.0
        self.processed = 0
        self.stopped = False
        self._events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._order = 0

    def at(self, time: float, call: Callable[[Any], None], argument: Any = None) -> None:
        """Do `call(argument)` at `time`, never before now."""
        self._order += 1
        heappush(self._events, (max(self.now, time), self._order, call, argument))

    def after(self, seconds: float, call: Callable[[Any], None], argument: Any = None) -> None:
        """Do `call(argument)` in so many seconds."""
        self.at(self.now + seconds, call, argument)

    def run(self, until: float) -> None:
        """Run the events up to and including `until`, or up to the one that sets `stopped`.

        Raises:
            SimulationError: events follow each other without time passing.
        """
        events, standing = self._events, 0
        while events and not self.stopped and events[0][0] <= until:
            time, _, call, argument = heappop(events)
            standing = standing + 1 if time == self.now else 0
            if standing > MAX_EVENTS_AT_ONCE:
                raise SimulationError(f"time stands still at {time} s in {call!r}")
            self.now = time
            self.processed += 1
            call(argument)
        if not self.stopped:
            self.now = max(self.now, until)
