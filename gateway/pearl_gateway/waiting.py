"""Turns that wait for room on a worker, and whose turn it is: fair between groups, stragglers first within one.

A group with thousands of waiting turns gets no more of what becomes free than a group with one.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from pearl_gateway.errors import GatewayError

if TYPE_CHECKING:
    from collections.abc import Callable

P = TypeVar("P")

_MOST_TRIES = 16
"""Groups that are offered what became free before it is left to the next look."""


def _future() -> asyncio.Future[P]:
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True, eq=False)
class Waiter(Generic[P]):
    """One turn that waits."""

    group: str
    since: float
    """When its trajectory began."""
    take: Callable[[], P | None]
    """A place, reserved for it, if it can have one now. GatewayError: it never will."""
    place: asyncio.Future[P] = field(default_factory=_future)


class Waiting(Generic[P]):
    """All turns that wait, by group; and how many of each group run."""

    def __init__(self) -> None:
        self._queues: dict[str, list[tuple[float, int, Waiter[P]]]] = {}
        self._running: Counter[str] = Counter()
        self._numbers = 0

    def began(self, group: str) -> None:
        """A turn of the group runs; its end is told by `ended`."""
        self._running[group] += 1

    def ended(self, group: str) -> None:
        """A turn of the group has left its place."""
        self._running[group] -= 1
        if not self._running[group]:
            del self._running[group]
        self.dispatch()

    def add(self, waiter: Waiter[P]) -> None:
        """It waits until it has its place, or is removed."""
        self._numbers += 1
        heapq.heappush(self._queues.setdefault(waiter.group, []), (waiter.since, self._numbers, waiter))

    def remove(self, waiter: Waiter[P]) -> None:
        """It does not wait any more."""
        queue = [entry for entry in self._queues.get(waiter.group, ()) if entry[2] is not waiter]
        heapq.heapify(queue)
        self._keep(waiter.group, queue)

    def dispatch(self, most_tries: int | None = _MOST_TRIES) -> None:
        """Give what is free to those whose turn it is; they count as running from now on.

        Args:
            most_tries: Groups that may have no use for it before the rest is not asked; None = everybody is asked.
        """
        refused: set[str] = set()
        while most_tries is None or len(refused) < most_tries:
            left = [group for group in self._queues if group not in refused]
            if not left:
                return
            group = min(left, key=lambda one: (self._running[one], self._queues[one][0][:2]))
            if not self._offer(group):
                refused.add(group)

    def _offer(self, group: str) -> bool:
        queue = self._queues[group]
        waiter = queue[0][2]
        try:
            place = waiter.take()
        except GatewayError as error:
            waiter.place.set_exception(error)
        else:
            if place is None:
                return False
            self.began(group)
            waiter.place.set_result(place)
        heapq.heappop(queue)
        self._keep(group, queue)
        return True

    def _keep(self, group: str, queue: list[tuple[float, int, Waiter[P]]]) -> None:
        if queue:
            self._queues[group] = queue
        else:
            self._queues.pop(group, None)
