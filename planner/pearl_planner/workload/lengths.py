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

from pearl_planner.workload.bins import turn_bin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pearl_planner.workload.profile import Profile

MAX_TURNS = 2048
NEGLIGIBLE = 1e-4
PRIOR_WEIGHT = 0.5
"""Trajectories' worth of its predecessor's chance to end that every turn number starts with."""
LEAST_CHANCE = 1e-12
NODES = tuple(-3.0 + 0.5 * i for i in range(13))
"""Where the common factor of a group is looked at."""

_NORMAL = NormalDist()
_TURN_BINS = tuple(turn_bin(turn) for turn in range(1, MAX_TURNS))


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
        return mean_turns(self.shares)

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


def turn_shares(profile: Profile) -> tuple[float, ...] | None:
    """`Lengths.shares`; None while no trajectory ever finished (nothing says when they end)."""
    chances = end_chances(profile)
    if chances[0] <= 0 and max(chances) <= 0:
        return None
    alive, shares = 1.0, [0.0]
    for place in _TURN_BINS:
        alive *= 1.0 - chances[place]
        if alive < NEGLIGIBLE:
            break
        shares.append(1.0 - alive)
    shares.append(1.0)
    return tuple(shares)


def mean_turns(shares: Sequence[float]) -> float:
    """E[S], of P(S ≤ s) for s = 0, 1, 2 and so on."""
    return sum([1.0 - share for share in shares])


def lengths(profile: Profile) -> Lengths | None:
    """None while no trajectory ever finished."""
    shares = turn_shares(profile)
    if shares is None:
        return None
    scores = [_NORMAL.inv_cdf(min(max(share, 1e-9), 1 - 1e-9)) for share in shares[1:-1]]
    return Lengths(shares, tuple(scores), profile.likeness)


class Factors:
    """What is known of the common factors of groups: chances of `NODES`."""

    def __init__(self, known: Lengths, profile: Profile) -> None:
        self._known = known
        self._siblings = dict(profile.siblings)
        self._mean, self._deviation = profile.log_length.mean, math.sqrt(max(profile.log_length.variance, 0.0))
        self._beyond: dict[int, list[float]] = {}

    def of(self, group: str, progress: Sequence[int]) -> tuple[float, ...]:
        """Of a group with these turns of running members.

        Prior standard normal; the mean score of n finished members is normal around √likeness·factor, a running one
        says that S is beyond its turns.
        """
        likeness = self._known.likeness
        logs = [-node * node / 2 for node in NODES]
        if likeness > 0:
            finished, total = self._siblings.get(format(zlib.crc32(group.encode()), "x"), (0.0, 0.0))
            mean = (total / finished - self._mean) / self._deviation if finished and self._deviation > 0 else 0.0
            root, spread = math.sqrt(likeness), 2.0 * (1.0 - likeness)
            logs = [
                value - finished * (mean - root * node) ** 2 / spread for value, node in zip(logs, NODES, strict=True)
            ]
            for done in progress:
                logs = [value + more for value, more in zip(logs, self._logs_beyond(done), strict=True)]
        top = max(logs)
        weights = [math.exp(value - top) for value in logs]
        whole = sum(weights)
        return tuple(weight / whole for weight in weights)

    def _logs_beyond(self, done: int) -> list[float]:
        """Logarithms of P(S > done | factor), per node."""
        found = self._beyond.get(done)
        if found is None:
            chances = [max(1.0 - self._known.chance_within(done, node), LEAST_CHANCE) for node in NODES]
            found = self._beyond[done] = [math.log(chance) for chance in chances]
        return found
