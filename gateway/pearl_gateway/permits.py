"""Admission of whole groups before their environments are reset: the in-flight window and the staleness bound.

Oldest request first. Only new groups ever wait; a trajectory that runs is never held back by a permit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pearl_api.wire.gateway import PermitAnswer, PermitRequest
from pearl_gateway.errors import try_later

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST_WAITING = 4096
_LOOK_SECONDS = 0.25
"""Longest time until a change that nobody announced (a consumed trajectory, a new version) is seen."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What holds new groups back now."""

    window: int | None
    max_staleness: int
    weight_version: int
    oldest_version: int | None
    """First weight version of the oldest trajectory that was not consumed; None = there is none."""


@dataclass(slots=True)
class _Group:
    size: int
    admitted_at: float
    ended: int = 0
    names: set[str] = field(default_factory=set)


class Permits:
    """Admitted groups and the queue of those that wait.

    `bounds` gives the limits in force.
    """

    def __init__(self, bounds: Callable[[], Bounds]) -> None:
        self._bounds = bounds
        self._groups: dict[str, _Group] = {}
        self._queue: deque[list[object]] = deque()
        self._closing = False
        self._changed = asyncio.Event()

    def is_admitted(self, group: str) -> bool:
        """Whether the group has a permit."""
        return group in self._groups

    def admitted(self) -> frozenset[str]:
        """Groups that have a permit."""
        return frozenset(self._groups)

    def in_flight(self) -> int:
        """Trajectories of admitted groups that have not ended."""
        return sum(group.size - group.ended for group in self._groups.values())

    async def ask(self, request: PermitRequest) -> PermitAnswer:
        """Wait for admission of one group, at most `wait_seconds`."""
        if request.group in self._groups:
            return self._answer(granted=True, reason="Granted")
        if len(self._queue) >= _MOST_WAITING:
            raise try_later("TooManyPermits", f"{_MOST_WAITING} groups wait for a permit already", 5.0)
        ticket = [request.group, request.size]
        self._queue.append(ticket)
        deadline = asyncio.get_running_loop().time() + request.wait_seconds
        try:
            while True:
                if self._closing:
                    raise try_later("ShuttingDown", "the gateway restarts; ask again", 2.0)
                reason = "OlderFirst" if self._queue[0] is not ticket else self._why_not(request.size)
                if request.group in self._groups:  # asked for twice, and the other one has it
                    return self._answer(granted=True, reason="Granted")
                if reason is None:
                    self._groups[request.group] = _Group(request.size, asyncio.get_running_loop().time())
                    return self._answer(granted=True, reason="Granted")
                left = deadline - asyncio.get_running_loop().time()
                if left <= 0:
                    return self._answer(granted=False, reason=reason)
                await self._wait(min(left, _LOOK_SECONDS))
        finally:
            self._queue = deque(one for one in self._queue if one is not ticket)
            self._wake()

    def close(self) -> None:
        """Send everybody away who waits: the process ends."""
        self._closing = True
        self._wake()

    def ended(self, trajectory: str, name: str | None) -> str | None:
        """A trajectory of group `name` is over; the name if that was its last one."""
        group = self._groups.get(name or "")
        if group is None or trajectory in group.names:
            return None
        group.names.add(trajectory)
        group.ended += 1
        self._wake()
        if group.ended < group.size:
            return None
        del self._groups[name or ""]
        return name

    def expire(self, seconds: float, live_groups: set[str]) -> list[str]:
        """Give back permits that are older than `seconds` and of which no trajectory lives; their groups."""
        now = asyncio.get_running_loop().time()
        old = [
            name
            for name, group in self._groups.items()
            if name not in live_groups and now - group.admitted_at > seconds
        ]
        for name in old:
            del self._groups[name]
        if old:
            self._wake()
        return old

    def _why_not(self, size: int) -> str | None:
        bounds = self._bounds()
        in_flight = self.in_flight()
        # A group larger than the window is let in alone: it could never start otherwise.
        if bounds.window is not None and in_flight and in_flight + size > bounds.window:
            return "WindowFull"
        oldest = bounds.oldest_version
        if oldest is not None and bounds.weight_version - oldest > bounds.max_staleness:
            return "WaitForOldest"
        return None

    def _answer(self, *, granted: bool, reason: str) -> PermitAnswer:
        bounds = self._bounds()
        return PermitAnswer(
            granted=granted,
            reason=reason,
            in_flight=self.in_flight(),
            window=bounds.window,
            weight_version=bounds.weight_version,
        )

    def _wake(self) -> None:
        event, self._changed = self._changed, asyncio.Event()
        event.set()

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return
