"""The clock of an emulated engine: the running event loop's time, perhaps faster than real.

On a loop with virtual time (looptime in tests) the same class makes the emulator a simulation: nobody really waits.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class Clock(Protocol):
    """What the engine needs of time."""

    def now(self) -> float:
        """Engine seconds since some moment."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Let `seconds` of engine time pass; 0 or less only gives way to other tasks."""
        ...


class LoopClock:
    """Time of the running event loop; engine seconds pass `speed` times as fast."""

    def __init__(self, speed: float = 1.0) -> None:
        if not speed > 0:
            raise ValueError(f"speed is {speed}: it must be above 0 (1 = real time, 10 = ten times as fast)")
        self._speed = speed

    def now(self) -> float:
        """Engine seconds since the loop's own zero."""
        return asyncio.get_running_loop().time() * self._speed

    async def sleep(self, seconds: float) -> None:
        """Let engine time pass."""
        await asyncio.sleep(max(0.0, seconds / self._speed))
