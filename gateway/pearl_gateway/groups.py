"""Where the prompt of a group is cached, and who computes it first."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pearl_gateway.fleet import Worker

_MOST = 4096
"""Groups that are remembered; of those that nobody ends, the oldest are forgotten."""


@dataclass(slots=True)
class Place:
    """One group's prompt."""

    home: str | None = None
    """Worker that decodes and has it."""
    prefill: str | None = None
    primed: asyncio.Event | None = None
    """Set when somebody has computed it; None before anybody began."""


class Groups:
    """All groups of the process."""

    def __init__(self) -> None:
        self._places: OrderedDict[str, Place] = OrderedDict()

    def place(self, group: str | None) -> Place:
        """What is known of a group; nothing of no group."""
        return self._places.get(group or "") or Place()

    def remember(self, group: str | None, worker: Worker, prefill: Worker | None) -> None:
        """A member of the group is served there. The first place stays: the others follow it."""
        if group is None:
            return
        place = self.obtain(group)
        if prefill is not None:
            place.prefill = place.prefill or prefill.facts.uid
        else:
            place.home = place.home or worker.facts.uid

    async def wait_or_prime(self, group: str | None, seconds: float) -> bool:
        """True for the one member that computes the prompt first; the others return when it is there.

        A primer that takes longer than `seconds` is not waited for.
        """
        if group is None:
            return False
        place = self.obtain(group)
        if place.primed is None:
            place.primed = asyncio.Event()
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await place.primed.wait()
        return False

    def primed(self, group: str | None) -> None:
        """The prompt is computed, or its primer is gone: nobody waits any more."""
        event = self.place(group).primed
        if event is not None:
            event.set()

    def forget(self, group: str) -> None:
        """The group is over; nobody will ask for its prompt again."""
        self.primed(group)
        self._places.pop(group, None)

    def obtain(self, group: str) -> Place:
        """What is known of a group, remembered from now on."""
        place = self._places.get(group)
        if place is None:
            place = self._places[group] = Place()
            if len(self._places) > _MOST:
                self.forget(next(iter(self._places)))
        return place
