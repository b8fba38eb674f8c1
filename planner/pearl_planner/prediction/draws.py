"""Deterministic draws: even and normal numbers, and quantities with a mean, a variance and a skewness."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

MAX_SKEW = 4.0
NO_SKEW = 0.05
NO_SPREAD = 0.02
_TABLE = tuple(NormalDist().inv_cdf((i + 0.5) / 4096) for i in range(4096))
_MASK = (1 << 64) - 1


class Draws:
    """Numbers that look random and are the same every time."""

    __slots__ = ("_state",)

    def __init__(self, seed: int = 1) -> None:
        self._state = (seed * 0x9E3779B97F4A7C15 + 0x2545F4914F6CDD1D) & _MASK

    def normal(self) -> float:
        """Standard normal, one of 4,096 values."""
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) & _MASK
        return _TABLE[self._state >> 52]

    def share(self) -> float:
        """Uniform in (0, 1)."""
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) & _MASK
        return ((self._state >> 12) + 0.5) / (1 << 52)


class Spread(NamedTuple):
    """A quantity ≥ 0 of known mean, deviation and skewness: a shifted gamma variable in Wilson-Hilferty form."""

    mean: float
    deviation: float
    skewness: float

    def at(self, z: float) -> float:
        """The value of a standard normal score."""
        mean, deviation, skew = self
        if -NO_SKEW < skew < NO_SKEW:
            return max(mean + deviation * z, 0.0)
        root = max(1.0 + skew * z / 6.0 - skew * skew / 36.0, 0.0)
        return max(mean + deviation * (2.0 / skew) * (root * root * root - 1.0), 0.0)


def spread(mean: float, variance: float, skewness: float | None = None) -> Spread:
    """Of this mean and variance; with unknown skewness that of a log-normal variable."""
    if mean <= 0 or variance <= 0:
        return Spread(max(mean, 0.0), 0.0, 0.0)
    variation = math.sqrt(variance) / mean
    skew = variation * (3.0 + variation * variation) if skewness is None else skewness
    return Spread(mean, math.sqrt(variance), min(skew, MAX_SKEW))
