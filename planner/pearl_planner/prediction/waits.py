"""Times in the environment, drawn from the measured histogram with its heavy tail.

docs/models.md, "Rest of the batch".
"""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING

from pearl_planner.prediction.draws import NO_SPREAD
from pearl_planner.workload.bins import wait_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pearl_planner.workload.profile import Profile

RARE_SHARE = 0.15
RARE_WEIGHT = 0.25
"""At most this share of the waits, with at least this share of the time, are drawn one by one."""
QUANTILES = 256
EXACT_PLACE = 250
"""Quantiles of the waits are looked up in a table, but for the highest."""


class Waits:
    """The environment time as measured, rare long waits told apart; bins are scaled to the exact mean."""

    def __init__(self, profile: Profile) -> None:
        bins = profile.environment_bins
        total = sum(bins)
        self.mean = profile.environment.mean if profile.environment.count > 0 else 0.0
        self._below = list(accumulate(bins)) if total > 0 else []
        rough = sum(v * _bin_mean(k) for k, v in enumerate(bins))
        self._scale = self.mean * total / rough if rough > 0 else 0.0
        self.rare_share, cut = self._rare(bins, total)
        weight = max(sum(bins[:cut]), 1e-300)
        values = [(v / weight, self._scale * _bin_mean(k)) for k, v in enumerate(bins[:cut])]
        self.usual_mean = sum(v * x for v, x in values) if total > 0 else self.mean
        self.usual_variance = sum(v * (x - self.usual_mean) ** 2 for v, x in values)
        if self.rare_share <= 0:
            self.usual_variance = profile.environment.variance
        third = sum(v * (x - self.usual_mean) ** 3 for v, x in values)
        deviation = math.sqrt(max(self.usual_variance, 0.0))
        self.usual_skewness = third / deviation**3 if deviation > NO_SPREAD * self.usual_mean else 0.0
        shares = [(i + 0.5) / QUANTILES for i in range(QUANTILES)]
        self._table = [self.at(share) for share in shares]
        self._rare_table = [self.at(1.0 - self.rare_share * (1.0 - share)) for share in shares]
        self._gone: dict[float, float] = {}

    def _rare(self, bins: Sequence[float], total: float) -> tuple[float, int]:
        """Share of the long waits, and their first bin: the most bins that hold no more than `RARE_SHARE`."""
        cut, held = len(bins), 0.0
        while cut > 0 and total > 0 and held + bins[cut - 1] <= RARE_SHARE * total:
            cut -= 1
            held += bins[cut]
        long = self._scale * sum(v * _bin_mean(k) for k, v in enumerate(bins) if k >= cut)
        if held <= 0 or long < RARE_WEIGHT * self.mean * total:
            return 0.0, len(bins)
        return held / total, cut

    def draw(self, share: float) -> float:
        """The wait below which about this share of them lies."""
        place = int(share * QUANTILES)
        return self._table[place] if place < EXACT_PLACE else self.at(share)

    def draw_rare(self, share: float) -> float:
        """Likewise, of the rare long ones."""
        place = int(share * QUANTILES)
        return self._rare_table[place] if place < EXACT_PLACE else self.at(1.0 - self.rare_share * (1.0 - share))

    def at(self, share: float) -> float:
        """The wait below which exactly this share of them lies."""
        if not self._below:
            return self.mean
        wanted = share * self._below[-1]
        k = min(bisect_left(self._below, wanted), len(self._below) - 1)
        low = self._below[k - 1] if k else 0.0
        inside = (wanted - low) / max(self._below[k] - low, 1e-300)
        return self._scale * wait_at(k + min(max(inside, 0.0), 1.0))

    def below(self, seconds: float) -> float:
        """Share of the waits that are shorter."""
        return bisect_left(self._table, seconds) / QUANTILES

    def rest(self, idle: float, draw: float) -> float:
        """What is left of a wait that lasted `idle` seconds so far."""
        gone = self._gone.get(idle)
        if gone is None:
            gone = self._gone[idle] = self.below(idle)
        return max(self.at(gone + (1.0 - gone) * draw) - idle, 0.0)


def _bin_mean(k: int) -> float:
    """Of a quantity whose logarithm is even within the bin."""
    low, high = wait_at(k), wait_at(k + 1)
    return (high - low) / math.log(high / low)
