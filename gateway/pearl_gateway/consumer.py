"""How long the trainer takes and waits, from what it fetches and what it publishes; pure bookkeeping.

A step is consumed with the last trajectories fetched for it, and is over when a newer weight version is wanted.
"""

from __future__ import annotations

from dataclasses import dataclass

from pearl_api.wire.gateway import ConsumerView

_WEIGHT = 0.3
"""Of the newest update in the decaying average."""


@dataclass(slots=True)
class Consumer:
    """What is known of the trainer; instants are on the gateway's monotonic clock."""

    version: int | None = None
    update_seconds: float | None = None
    fetched_at: float | None = None
    """Last fetch since the last published version; None = it waits for trajectories."""
    published_at: float | None = None

    def fetched(self, now: float) -> None:
        """Finished trajectories were handed out."""
        self.fetched_at = now

    def wants(self, version: int | None, now: float) -> None:
        """The newest weight version that agents were told to load."""
        if version is None or (self.version is not None and version <= self.version):
            return
        if self.version is not None and self.fetched_at is not None:
            lasted, old = now - self.fetched_at, self.update_seconds
            self.update_seconds = lasted if old is None else old + _WEIGHT * (lasted - old)
        self.version, self.fetched_at, self.published_at = version, None, now

    def view(self, ready: int, now: float) -> ConsumerView:
        """As the statistics tell it; `ready` = finished trajectories not handed out."""
        waiting = None
        if self.fetched_at is not None:
            waiting = 0.0
        elif self.published_at is not None:
            waiting = now - self.published_at
        return ConsumerView(update_seconds=self.update_seconds, waiting_seconds=waiting, ready_trajectories=ready)
