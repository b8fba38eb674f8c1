"""Statistics over seeds: paired ratios, means and regrets with their intervals.

Rules of one cell meet the same seeds, so they are compared in pairs: the interval is that of the mean difference of
logarithms (docs/simulator-cli.md, "Intervals"). Nothing here needs more than the standard library.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

COVERAGE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its 95 % interval; the bounds are None where one seed gives none."""

    value: float
    low: float | None
    high: float | None
    n: int

    @property
    def above_one(self) -> bool:
        """Significantly more than 1."""
        return self.low is not None and self.low > 1.0

    @property
    def below_one(self) -> bool:
        """Significantly less than 1."""
        return self.high is not None and self.high < 1.0


def within(t: float, freedom: int) -> float:
    """P(|T| ≤ t) of Student's t with `freedom` ≥ 1 degrees (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    return 2.0 / math.pi * (angle + sine * total) if odd else sine * total


def t_quantile(chance: float, freedom: int) -> float:
    """The t with P(T ≤ t) = `chance` (0.5 … 1) for `freedom` ≥ 1 degrees, by bisection."""
    low, high = 0.0, 1e4
    for _ in range(80):
        middle = (low + high) / 2
        if 0.5 + within(middle, freedom) / 2 < chance:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def mean_interval(values: Sequence[float]) -> Interval:
    """Mean with its two-sided Student interval.

    Raises:
        ValueError: there is no value.
    """
    if not values:
        raise ValueError("no values to average")
    mean = fmean(values)
    half = _half_width(values, 0.5 + COVERAGE / 2)
    return Interval(mean, None, None, 1) if half is None else Interval(mean, mean - half, mean + half, len(values))


def ratio_interval(mine: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Geometric mean of mine/theirs, pair by pair, with its interval; pairs with a 0 cannot be compared.

    Raises:
        ValueError: the lengths differ or no pair can be compared.
    """
    logs = [math.log(a / b) for a, b in zip(mine, theirs, strict=True) if a > 0 and b > 0]
    if not logs:
        raise ValueError("no pair of positive values to compare")
    inner = mean_interval(logs)
    low = None if inner.low is None else math.exp(inner.low)
    high = None if inner.high is None else math.exp(inner.high)
    return Interval(math.exp(inner.value), low, high, inner.n)


def mean_upper(values: Sequence[float]) -> float | None:
    """One-sided 95 % upper bound of the mean; None with fewer than two values."""
    half = _half_width(values, COVERAGE)
    return None if half is None else fmean(values) + half


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of them lie, linear between neighbours.

    Raises:
        ValueError: there is no value.
    """
    if not values:
        raise ValueError("no values to take a quantile of")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _half_width(values: Sequence[float], chance: float) -> float | None:
    n = len(values)
    return None if n < 2 else t_quantile(chance, n - 1) * stdev(values) / math.sqrt(n)  # noqa: PLR2004
