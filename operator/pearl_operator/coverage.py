"""How much of a fleet the engine series cover, how often they are scraped, and whether they fit the gateway's; pure."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_QUORUM: Final = 0.5
"""Share of the serving workers that a decision needs samples of."""
_GAPS: Final = 64
_LEAST_GAPS: Final = 3
SCRAPES: Final = 2
"""Samples may be as old as so many scrapes, whatever the spec says: one may fail."""
_MEAN_SECONDS: Final = 60.0
_SURE_SECONDS: Final = 120.0
_MOST_OFF: Final = 2.0
"""Requests."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """Of the workers that serve."""

    sampled: int = 0
    serving: int = 0

    def __str__(self) -> str:
        return f"{self.sampled} of {self.serving} serving workers"


def quorum_age(ages: Sequence[float | None]) -> float | None:
    """Age that the samples of at least half of the workers have at most; None = fewer have any.

    Args:
        ages: Of each serving worker's newest sample, in seconds.
    """
    known = sorted(age for age in ages if age is not None)
    needed = math.ceil(len(ages) * _QUORUM)
    return known[needed - 1] if 0 < needed <= len(known) else None


@dataclass(slots=True)
class ScrapeTimes:
    """Learns the scrape interval from the times of samples."""

    _last: Mapping[str, float] = field(default_factory=dict)
    _gaps: deque[float] = field(default_factory=lambda: deque(maxlen=_GAPS))

    def note(self, sampled_at: Mapping[str, float]) -> None:
        """Newest samples' times by pod, as of one read; reads may be more frequent than scrapes, or less."""
        before = self._last
        self._gaps.extend(at - before[pod] for pod, at in sampled_at.items() if pod in before and at > before[pod])
        self._last = dict(sampled_at)

    @property
    def seconds(self) -> float | None:
        """The interval; one that failed now and then does not count. None = not known yet."""
        return median(self._gaps) if len(self._gaps) >= _LEAST_GAPS else None


@dataclass(slots=True)
class Agreement:
    """Compares the requests that engines say they have with those the gateway sent there, over a minute or two."""

    _since: float | None = None
    _looked_at: float = 0.0
    _engines: float = 0.0
    _gateway: float = 0.0

    def note(self, now: float, engines: float | None, gateway: float | None) -> None:
        """Requests inside the same workers by both; None = not known now, which begins anew. `now` is monotonic."""
        if engines is None or gateway is None:
            self._since = None
            return
        if self._since is None:
            self._since, self._engines, self._gateway = now, engines, gateway
        weight = 1.0 - math.exp(-(now - self._looked_at) / _MEAN_SECONDS)
        self._engines += weight * (engines - self._engines)
        self._gateway += weight * (gateway - self._gateway)
        self._looked_at = now

    @property
    def problem(self) -> str | None:
        """What does not fit, and where to look; None while it fits or was not seen for long enough.

        A turn whose prompt is prefilled elsewhere counts twice at the gateway, and waits there: only engines that have
        half as many again as it sent, or next to none of many, are told.
        """
        if self._since is None or self._looked_at - self._since < _SURE_SECONDS:
            return None
        told = f"engines say that they have {self._engines:.1f} requests, and the gateway sent them {self._gateway:.1f}"
        if self._engines > 1.5 * self._gateway + _MOST_OFF:
            return f"{told}: somebody else asks the workers, or these are the series of other pods"
        if self._gateway > 4 * _MOST_OFF and self._engines < 0.1 * self._gateway:
            return f"{told}: these are the series of other pods, or scrapes return nothing"
        return None
