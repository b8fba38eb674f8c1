"""Is this process still doing its job? By the age of its watches and of its loops, never by "it answers"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pearl_operator.index import Index
    from pearl_operator.lease import Lease
    from pearl_operator.ports import Clock
    from pearl_operator.resync import Resync
    from pearl_operator.supervisor import Supervisor

WATCH_LIMIT_SECONDS: Final = 120.0
LOOP_LIMIT_SECONDS: Final = 180.0
REPAIR_LIMIT: Final = 3
"""Resyncs in a row that had to repair the same kind: its watch is dead."""


@dataclass(frozen=True, slots=True)
class Health:
    """Judges one process."""

    clock: Clock
    index: Index
    supervisor: Supervisor
    lease: Lease
    resync: Resync

    def problems(self) -> list[str]:
        """Why the process should be restarted; empty when it is healthy."""
        found = []
        age = self.watch_age()
        if age is not None and age > WATCH_LIMIT_SECONDS:
            found.append(f"no watch event for {age:.0f} s")
        found += [
            f"the watch of {plural} missed changes in {rounds} resyncs in a row"
            for plural, rounds in sorted(self.resync.repairs.items())
            if rounds >= REPAIR_LIMIT
        ]
        now = self.clock.monotonic()
        found += [
            f"the loop of {key} hangs for {now - loop.turned_at:.0f} s"
            for key, loop in sorted(self.supervisor.loops.items())
            if now - loop.turned_at > LOOP_LIMIT_SECONDS
        ]
        return found

    def watch_age(self) -> float | None:
        """Seconds since the last event; None before the first."""
        last = self.index.last_event_at
        return None if last is None else self.clock.monotonic() - last

    def ready(self) -> bool:
        """Holds the Lease and has seen the cluster."""
        return self.lease.remaining_seconds() > 0 and self.resync.rounds > 0
