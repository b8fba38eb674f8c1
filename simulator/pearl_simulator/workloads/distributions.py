"""Distributions that workloads draw from, as functions of standard normal draws.

Working on normals makes a draw independent of the parameters: two workloads that differ in one median meet the same
luck, and a group's luck and a member's own can be mixed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class LogNormal:
    """`median · exp(σ·z)`, at most `cap`. σ = 0: always the median."""

    median: float
    sigma: float = 0.0
    cap: float = math.inf

    def of(self, normal: Floats) -> Floats:
        """The values that belong to these standard normal draws."""
        if self.sigma == 0.0:
            return np.full(normal.shape, min(self.median, self.cap))
        return np.minimum(self.median * np.exp(self.sigma * normal), self.cap)

    @property
    def mean(self) -> float:
        """`median · exp(σ²/2)`; the cap is left out."""
        return self.median * math.exp(self.sigma * self.sigma / 2)


@dataclass(frozen=True, slots=True)
class Mixture:
    """`usual`, but with chance `rare_share` `rare`: a tool that is quick but for some calls."""

    usual: LogNormal
    rare: LogNormal
    rare_share: float
    """0..1."""

    def of(self, normal: Floats, choice: Floats) -> Floats:
        """The values that belong to these standard normal draws; `choice` says which of the two."""
        if self.rare_share <= 0.0:
            return self.usual.of(normal)
        if self.rare_share >= 1.0:
            return self.rare.of(normal)
        is_rare = choice > _NORMAL.inv_cdf(1.0 - self.rare_share)
        return np.where(is_rare, self.rare.of(normal), self.usual.of(normal))

    @property
    def mean(self) -> float:
        """Of both; caps are left out."""
        return (1.0 - self.rare_share) * self.usual.mean + self.rare_share * self.rare.mean


def always(value: float) -> LogNormal:
    """A constant."""
    return LogNormal(value)


def simple(distribution: LogNormal) -> Mixture:
    """A mixture of one."""
    return Mixture(distribution, distribution, 0.0)


class TurnCount(Protocol):
    """Turns of a trajectory; members of one group have `group` in common."""

    def count(self, group: float, member: float) -> int:
        """At least 1, from two standard normal draws."""
        ...


@dataclass(frozen=True, slots=True)
class LogNormalTurns:
    """`round(median · exp(σ_group·z_group + σ_member·z_member))`, within 1..cap."""

    median: float
    group_sigma: float
    member_sigma: float
    cap: int

    def count(self, group: float, member: float) -> int:
        """At least 1, from two standard normal draws."""
        exponent = min(self.group_sigma * group + self.member_sigma * member, 50.0)
        return max(1, min(self.cap, round(self.median * math.exp(exponent))))


@dataclass(frozen=True, slots=True)
class GeometricTurns:
    """1 + a geometric number, `mean` in all, at most `cap`; the luck of group and member weigh the same."""

    mean: float
    cap: int

    def count(self, group: float, member: float) -> int:
        """At least 1, from two standard normal draws."""
        if self.mean <= 1.0:
            return 1
        survival = 1.0 - _NORMAL.cdf((group + member) / math.sqrt(2.0))
        more = 1.0 - 1.0 / self.mean  # chance that another turn follows
        return max(1, min(self.cap, 1 + int(math.log(max(survival, 1e-300)) / math.log(more))))


@dataclass(frozen=True, slots=True)
class UniformTurns:
    """Any number of low..high with the same chance; the luck of group and member weigh the same."""

    low: int
    high: int

    def count(self, group: float, member: float) -> int:
        """At least 1, from two standard normal draws."""
        share = _NORMAL.cdf((group + member) / math.sqrt(2.0))
        return min(self.high, self.low + int(share * (self.high - self.low + 1)))
