"""Guards against the numbers of the world: NaN, infinities, negatives, missing values.

Facts come from the network, so a wrong one must read as "unknown" and never raise or look like a small value.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def known(value: object, *, low: float = 0.0, high: float = 1e15) -> float | None:
    """The number if it is finite and within [low, high]; otherwise None, which means unknown."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) and low <= value <= high else None


def known_count(value: object, *, high: int = 10**9) -> int | None:
    """Like `known`, for counts; fractions are cut off."""
    number = known(value, high=high)
    return None if number is None else int(number)


def clamp(value: float, low: float, high: float) -> float:
    """The nearest value within [low, high]; NaN becomes `low`."""
    return min(max(value, low), high) if value == value else low  # noqa: PLR0124 - NaN is not itself


def median(values: Iterable[float]) -> float | None:
    """The middle value (mean of the two middle ones), None of nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def log_sum_exp(terms: list[float]) -> float:
    """Log Σ exp(t) without overflow; −inf of nothing."""
    top = max(terms, default=-math.inf)
    if not math.isfinite(top):
        return top
    return top + math.log(sum([math.exp(term - top) for term in terms]))
