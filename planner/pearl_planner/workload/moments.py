"""Mean and variance of one quantity over faded observations, frozen and being summed."""

from __future__ import annotations

from dataclasses import dataclass

from pearl_planner.numbers import known

MAX_MEAN = 1e9


@dataclass(frozen=True, slots=True)
class Moments:
    """Faded count, mean and variance of one quantity; count 0 = nothing known."""

    count: float = 0.0
    mean: float = 0.0
    variance: float = 0.0

    def sane(self) -> Moments:
        """Itself, or nothing known where a number is impossible (a sketch read from outside may hold anything)."""
        parts = (known(self.count, high=1e12), known(self.mean, low=-MAX_MEAN, high=MAX_MEAN))
        usable = None not in parts and known(self.variance, high=MAX_MEAN**2) is not None
        return self if usable else Moments()

    def known_mean(self) -> float | None:
        """The mean, None when nothing was seen."""
        return self.mean if self.count > 0 else None

    def to_list(self) -> list[float]:
        """Count, mean and variance with six digits."""
        return [short(self.count), short(self.mean), short(self.variance)]

    @staticmethod
    def from_list(data: object) -> Moments:
        """Of `to_list`; nothing known of anything else."""
        parts = list(data) if isinstance(data, (list, tuple)) else []
        count, mean, variance = (known(part, low=-1e12, high=1e12) for part in (*parts, None, None, None)[:3])
        if count is None or count <= 0 or mean is None:
            return Moments()
        return Moments(count, mean, max(variance or 0.0, 0.0))


UNKNOWN = Moments()


class Sums:
    """Weighted sums of one quantity, around a value near its mean so that the variance keeps its digits."""

    __slots__ = ("first", "second", "shift", "weight")

    def __init__(self, moments: Moments) -> None:
        self.shift = moments.mean
        self.weight = moments.count
        self.first = 0.0
        self.second = moments.count * moments.variance

    def add(self, value: float, weight: float) -> None:
        """One observation."""
        off = value - self.shift
        self.weight += weight
        self.first += weight * off
        self.second += weight * off * off

    def frozen(self, scale: float) -> Moments:
        """Count (times `scale`), mean and variance."""
        if self.weight <= 0:
            return Moments()
        off = self.first / self.weight
        return Moments(self.weight * scale, self.shift + off, max(self.second / self.weight - off * off, 0.0))


class Pairs:
    """Sums of two quantities that are seen together, with their covariance."""

    __slots__ = ("cross", "left", "right")

    def __init__(self, left: Moments, right: Moments, covariance: float) -> None:
        self.left, self.right = Sums(left), Sums(right)
        self.cross = left.count * covariance

    def add(self, left: float, right: float, weight: float) -> None:
        """One observation of both."""
        self.cross += weight * (left - self.left.shift) * (right - self.right.shift)
        self.left.add(left, weight)
        self.right.add(right, weight)

    def covariance(self) -> float:
        """Mean product of the deviations."""
        if self.left.weight <= 0:
            return 0.0
        off = self.left.first * self.right.first / (self.left.weight * self.left.weight)
        return self.cross / self.left.weight - off


def pooled(parts: list[Moments]) -> Moments:
    """The moments of all observations of the parts together."""
    count = sum(part.count for part in parts)
    if count <= 0:
        return Moments()
    mean = sum(part.count * part.mean for part in parts) / count
    square = sum(part.count * (part.variance + (part.mean - mean) ** 2) for part in parts) / count
    return Moments(count, mean, square)


def short(value: float) -> float:
    """Six digits."""
    return float(f"{value:.6g}")
