"""When a process that died is started again, and when it is given up; pure."""

from __future__ import annotations

from dataclasses import dataclass

_FIRST_SECONDS = 0.1
_LONGEST_SECONDS = 5.0
STABLE_SECONDS = 30.0
"""Who lived for so long did not fail to start."""
MOST_FAILURES = 8
"""Starts in a row that failed; the supervisor ends after that, for whoever runs it to see."""


@dataclass(slots=True)
class Backoff:
    """The starts of one process."""

    failures: int = 0

    def died(self, lived_seconds: float) -> float | None:
        """Seconds until it is started again; None = it is given up."""
        self.failures = 1 if lived_seconds >= STABLE_SECONDS else self.failures + 1
        if self.failures > MOST_FAILURES:
            return None
        return float(min(_FIRST_SECONDS * 2 ** (self.failures - 1), _LONGEST_SECONDS))
