"""Virtual time: an event loop that jumps to what happens next, at most at a given pace, and the clock that it makes."""

from __future__ import annotations

import asyncio
import selectors
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

EPOCH = 1_800_000_000.0
"""Wall-clock time at virtual time 0."""


class VirtualClock:
    """The event loop's own time, which its loop may fast-forward."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return EPOCH + asyncio.get_running_loop().time()

    def monotonic(self) -> float:
        """Seconds since the loop began."""
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        await asyncio.sleep(seconds)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop without I/O whose time passes only while nothing is to be done.

    It is then at the next timer at once, or, with a `speed`, not before `speed` times the time that really passed. What
    callbacks compute costs no virtual time: on a slow machine a run takes longer and ends the same.
    """

    def __init__(self, speed: float = 0.0, sleep: Callable[[float], None] = time.sleep) -> None:
        """`speed`: virtual seconds per real one, 0 = as fast as possible."""
        self._virtual = 0.0
        self._speed = speed
        self._sleep = sleep
        self._began = time.monotonic()
        super().__init__(_Selector(self._pass))

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._virtual

    def _pass(self, seconds: float) -> None:
        self._virtual += seconds
        if self._speed > 0.0:
            ahead = self._virtual / self._speed - (time.monotonic() - self._began)
            if ahead > 0.0:
                self._sleep(ahead)


class _Selector(selectors.SelectSelector):
    """Nothing comes from outside: to wait is to let virtual time pass."""

    def __init__(self, let_pass: Callable[[float], None]) -> None:
        super().__init__()
        self._let_pass = let_pass

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("nothing will ever happen on this event loop: it waits for something outside")
        if timeout > 0.0:
            self._let_pass(timeout)
        return super().select(0)
