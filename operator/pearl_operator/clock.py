"""The machine's clock behind the `Clock` port, and times as Kubernetes writes them."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime


class SystemClock:
    """Wall clock, monotonic clock and sleep of this machine."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Lets other tasks run for this long."""
        await asyncio.sleep(seconds)


def to_rfc3339(seconds: float, *, digits: str = "milliseconds") -> str:
    """`2026-01-02T03:04:05.678Z`; `digits` as `datetime.isoformat` takes it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec=digits).replace("+00:00", "Z")


def from_rfc3339(text: str | None) -> float | None:
    """Seconds since the epoch; None where there is no (readable) time."""
    if not text:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
