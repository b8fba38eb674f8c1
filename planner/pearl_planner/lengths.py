"""How many turns a trajectory makes: chances from censored counts, and what members of a group have in common.

docs/models.md, "Lengths". S keeps its measured distribution; the normal scores of members of one group are correlated
(`Profile.likeness`), so that finished siblings, and how far the running ones are, inform the rest.
"""

from __future__ import annotations

import math
import zlib
from bisect import bisect_left
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

from pearl_planner.bins import turn_bin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pearl_planner.profile import Profile

MAX_TURNS = 2048
NEGLIGIBLE = 1e-4
PRIOR_WEIGHT = 0.5
"""Trajectories' worth of its predecessor's chance to end that every turn number starts with."""
NODES = tuple(-3.0 + 0.5 * i for i in range(13))
"""Where the common factor of a group is looked at."""

_NORMAL = NormalDist()


def end_chances(profile: Profile) -> list[float]:
    """Chance to end after turn number 1, 2, … per bin; one that nobody reached takes that of the turn before."""
    ended, continued = sum(profile.ended), sum(profile.continued)
    before = ended / (ended + continued) if ended > 0 else 0.0
    chances = []
    for end, go in zip(profile.ended, profile.continued, strict=True):
        before = min(1.0, (end + PRIOR_WEIGHT * before) / (end + go + PRIOR_WEIGHT))
        chances.append(before)
    return chances


@dataclass(frozen=True, slots=True)
class Lengths:
    """The distribution of S."""

    shares: tuple[float, ...]
    """P(S ≤ s) for s = 0, 1, …; the last one is 1."""
    scores: tuple[float, ...]
    """Standard normal quantiles of P(S ≤ s) for s = 1, 2, …, without the last."""
    likeness: float

    @property
    def mean(self) -> float:
        """E[S]."""
        return sum(1.0 - share for share in self.shares)

    def turns(self, score: float) -> int:
        """S that belongs to a standard normal score."""
        return bisect_left(self.scores, score) + 1

    def later(self, done: int, common: float, share: float) -> int:
        """S of a trajectory that goes beyond `done` turns: quantile `share` (0..1) given its group's factor."""
        if done <= 0:
            own = _NORMAL.inv_cdf(min(max(share, 1e-9), 1 - 1e-9))
            return self.turns(self._score(common, own))
        if done > len(self.scores):
            return done + 1
        short = self.chance_within(done, common)
        own = _NORMAL.inv_cdf(min(max(short + (1.0 - short) * share, 1e-9), 1 - 1e-9))
        return max(self.turns(self._score(common, own)), done + 1)

    def chance_within(self, done: int, common: float) -> float:
        """P(S ≤ done) given the group's factor."""
        if done <= 0:
            return 0.0
        if done > len(self.scores):
            return 1.0
        spread = math.sqrt(1.0 - self.likeness)
        return _NORMAL.cdf((self.scores[done - 1] - math.sqrt(self.likeness) * common) / spread)

    def _score(self, common: float, own: float) -> float:
        return math.sqrt(self.likeness) * common + math.sqrt(1.0 - self.likeness) * own


def lengths(profile: Profile) -> Lengths | None:
    """None while no trajectory ever finished (nothing says when they end)."""
    chances = end_chances(profile)
    if chances[0] <= 0 and max(chances) <= 0:
        return None
    alive, shares = 1.0, [0.0]
    for turn in range(1, MAX_TURNS):
        alive *= 1.0 - chances[turn_bin(turn)]
        if alive < NEGLIGIBLE:
            break
        shares.append(1.0 - alive)
    shares.append(1.0)
    scores = [_NORMAL.inv_cdf(min(max(share, 1e-9), 1 - 1e-9)) for share in shares[1:-1]]
    return Lengths(tuple(shares), tuple(scores), profile.likeness)


def common_factor(known: Lengths, profile: Profile, group: str, progress: Sequence[int]) -> tuple[float, ...]:
    """Chances of `NODES` for the common factor of a group, given finished siblings and the turns of running ones.

    Prior standard normal; a finished member's score is normal around √likeness·factor, a running one says that S is
    beyond its turns.
    """
    logs = [-node * node / 2 for node in NODES]
    spread = 1.0 - known.likeness
    if known.likeness > 0:
        finished, total = dict(profile.siblings).get(format(zlib.crc32(group.encode()), "x"), (0.0, 0.0))
        deviation = math.sqrt(profile.log_length.variance)
        mean = (total / finished - profile.log_length.mean) / deviation if finished and deviation > 0 else 0.0
        for i, node in enumerate(NODES):
            off = mean - math.sqrt(known.likeness) * node
            logs[i] -= finished * off * off / (2 * spread)
            beyond = [math.log(max(1.0 - known.chance_within(done, node), 1e-12)) for done in progress if done > 0]
            logs[i] += sum(beyond)
    top = max(logs)
    weights = [math.exp(value - top) for value in logs]
    total_weight = sum(weights)
    return tuple(weight / total_weight for weight in weights)
