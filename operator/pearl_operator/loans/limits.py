"""How often a trainer may call: one bucket of calls per trainer and kind, which fills again with time."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

_FORGET_ABOVE: Final = 4096
"""Buckets are looked through for full ones beyond this many."""


@dataclass(frozen=True, slots=True)
class Rate:
    """`per_second` calls in the long run, `burst` at once."""

    per_second: float
    burst: float


class Calls(Enum):
    """Kinds of calls; each is far above what the SDK does at its busiest."""

    REGISTER = Rate(1.0, 10.0)
    """By token; the SDK tries every 2 s."""
    REVIEW = Rate(50.0, 200.0)
    """Of all callers together: each is a call to the API server."""
    CHANGE = Rate(5.0, 25.0)
    """Lend, notices and leave; the SDK offers every 2 s."""
    VIEW = Rate(40.0, 200.0)
    """A reclaim asks for pods that are gone: some five times in its first seconds, older SDKs ten times a second."""


@dataclass(slots=True)
class _Bucket:
    left: float
    at: float


@dataclass(slots=True)
class Limits:
    """The buckets of one process; `now` is a monotonic clock's."""

    _buckets: dict[tuple[Calls, str], _Bucket] = field(default_factory=dict)

    def wait_seconds(self, calls: Calls, caller: str, now: float) -> float:
        """Counts a call; 0 = it may go on, else how long the caller has to wait before it tries again."""
        rate = calls.value
        bucket = self._buckets.get((calls, caller))
        if bucket is None:
            self._forget(now)
            bucket = self._buckets[calls, caller] = _Bucket(rate.burst, now)
        bucket.left = min(bucket.left + (now - bucket.at) * rate.per_second, rate.burst)
        bucket.at = now
        if bucket.left < 1:
            return (1 - bucket.left) / rate.per_second
        bucket.left -= 1
        return 0.0

    def _forget(self, now: float) -> None:
        if len(self._buckets) < _FORGET_ABOVE:
            return
        full = [
            key
            for key, bucket in self._buckets.items()
            if bucket.left + (now - bucket.at) * key[0].value.per_second >= key[0].value.burst
        ]
        for key in full:
            del self._buckets[key]
