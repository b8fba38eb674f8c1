"""SGLang requests that are under way: aborted one by one or all together, held back while generation is paused.

An abort ends only the waiting of its client: the turn's tokens stay in the log, and a later request whose prompt
builds on them continues the trajectory.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

LONGEST_PAUSE_SECONDS = 600.0
"""A trainer that died between pause and continue must not hold the rollout for good."""


class Running:
    """The requests by their `rid`, and whether new ones may start; `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._stops: dict[str, set[asyncio.Event]] = {}
        self._open = asyncio.Event()
        self._open.set()
        self._paused_until = 0.0

    @property
    def count(self) -> int:
        """Requests under way, those that wait for the end of a pause included."""
        return sum(map(len, self._stops.values()))

    @property
    def paused(self) -> bool:
        """New requests wait."""
        return not self._open.is_set() and self._clock() < self._paused_until

    def pause(self, *, abort: bool, seconds: float | None = None) -> None:
        """Hold new requests back until `go_on`; `abort` also ends those under way with what they have."""
        self._open.clear()
        self._paused_until = self._clock() + (LONGEST_PAUSE_SECONDS if seconds is None else seconds)
        if abort:
            self.abort(None)

    def go_on(self) -> None:
        """Let requests start again."""
        self._open.set()

    def abort(self, rid: str | None) -> int:
        """End requests whose id begins with `rid` (None = all) with what they have; returns how many."""
        found = [stop for name, stops in self._stops.items() if rid is None or name.startswith(rid) for stop in stops]
        for stop in found:
            stop.set()
        return len(found)

    @contextmanager
    def under(self, rid: str) -> Iterator[asyncio.Event]:
        """Count a request while the block runs; the event is set when it is aborted."""
        stop = asyncio.Event()
        self._stops.setdefault(rid, set()).add(stop)
        try:
            yield stop
        finally:
            self._stops[rid].discard(stop)
            if not self._stops[rid]:
                del self._stops[rid]

    async def admitted(self, stop: asyncio.Event) -> bool:
        """Wait for the end of a pause; False where the request was aborted meanwhile."""
        if self.paused:
            await first_of(self._wait_open(), stop)
        return not stop.is_set()

    async def _wait_open(self) -> None:
        try:
            async with asyncio.timeout(max(self._paused_until - self._clock(), 0.0)):
                await self._open.wait()
        except TimeoutError:
            self._open.set()


class Everywhere(Protocol):
    """The requests under way in all processes of a gateway."""

    here: Running
    """Those of this process."""

    async def pause(self, *, abort: bool) -> None:
        """See `Running.pause`."""

    async def go_on(self) -> None:
        """See `Running.go_on`."""

    async def abort(self, rid: str | None) -> int:
        """See `Running.abort`."""

    async def count(self) -> int:
        """See `Running.count`."""


class Here:
    """See `Everywhere`: there is one process."""

    def __init__(self, running: Running) -> None:
        self.here = running

    async def pause(self, *, abort: bool) -> None:
        """See `Running.pause`."""
        self.here.pause(abort=abort)

    async def go_on(self) -> None:
        """See `Running.go_on`."""
        self.here.go_on()

    async def abort(self, rid: str | None) -> int:
        """See `Running.abort`."""
        return self.here.abort(rid)

    async def count(self) -> int:
        """See `Running.count`."""
        return self.here.count


async def first_of(work: Coroutine[Any, Any, Any], stop: asyncio.Event) -> bool:
    """Run `work` until it ends (True; raises what it raises) or `stop` is set (False; `work` is cancelled)."""
    task, stopped = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        return task.done()
    finally:
        task.cancel()
        stopped.cancel()
        await asyncio.gather(task, stopped, return_exceptions=True)
