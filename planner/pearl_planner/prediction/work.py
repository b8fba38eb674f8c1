"""What one trajectory still has to do, drawn from the profile (docs/models.md, "Rest of the batch")."""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from pearl_planner.prediction.draws import NO_SPREAD, Draws, Spread, spread
from pearl_planner.prediction.waits import Waits
from pearl_planner.workload.bins import stage

if TYPE_CHECKING:
    from pearl_planner.workload.lengths import Lengths
    from pearl_planner.workload.profile import Profile

DIRECT_WAITS = 3
"""So many waits or fewer are drawn one by one, more as one sum."""
NO_CHANCE = 1e-6
MIN_LINE = 8.0
"""Trajectories below which no line of tokens over turns is drawn."""
LINE_PRIOR = 4.0
"""Trajectories' worth of tokens in proportion to turns that the line starts with."""
LIMITED = 0.5
"""Where more turns bring less than this share of their tokens, contexts are limited: no long tail of tokens."""


class Work(NamedTuple):
    """What a trajectory has left."""

    waits: float
    """Seconds outside of the engines: environment, reset, reward."""
    turns: float
    tokens: float
    """To generate."""
    done: float
    """Turns made."""
    first: float
    """1 when its first prompt is still to come."""


class Sampler:
    """Draws what is left of one trajectory."""

    def __init__(self, profile: Profile, known: Lengths, draws: Draws) -> None:
        self._profile, self._known, self._draws = profile, known, draws
        self._waits = Waits(profile)
        self._reset = spread(profile.reset.mean, profile.reset.variance)
        self._reward = spread(profile.reward.mean, profile.reward.variance)
        self._most = profile.most_generated or math.inf
        self._tokens: dict[tuple[int, int], Spread] = {}
        self._sums: dict[int, tuple[Spread, list[float]]] = {}

    def work(self, done: int, common: float, idle: float | None, *, begun: bool) -> Work:
        """Of a trajectory that made `done` turns; `idle`: seconds in its environment so far, None = in the engine."""
        draws = self._draws
        if done > 0:
            total = self._known.later(done, common, draws.share())
        else:
            likeness = self._known.likeness
            score = math.sqrt(likeness) * common + math.sqrt(1.0 - likeness) * draws.normal()
            total = self._known.turns(score)
        turns = total - done
        waits = self._reward.at(draws.normal()) + self.sum_of_waits(turns - 1)
        if not begun:
            waits += self._reset.at(draws.normal())
        elif idle is not None:
            waits += self._waits.rest(idle, draws.share())
        most = self._most * (turns / total)
        tokens = min(self.tokens(done, total).at(draws.normal()), most)
        return Work(waits, turns, max(tokens, 1.0), done, 0.0 if done else 1.0)

    def sum_of_waits(self, count: int) -> float:
        """Of this many waits."""
        if count <= 0:
            return 0.0
        if count <= DIRECT_WAITS:
            return sum([self._waits.draw(self._draws.share()) for _ in range(count)])
        waits = self._waits
        found = self._sums.get(count)
        if found is None:
            expected = count * waits.rare_share
            chances = list(accumulate(_binomial(count, waits.rare_share)))
            usual = count - expected
            found = self._sums[count] = (
                spread(
                    usual * waits.usual_mean,
                    usual * waits.usual_variance,
                    waits.usual_skewness / math.sqrt(max(usual, 1.0)),
                ),
                chances,
            )
        total = found[0].at(self._draws.normal())
        if waits.rare_share > 0:
            rare = bisect_left(found[1], self._draws.share())
            total += (count * waits.rare_share - rare) * waits.usual_mean  # they take the place of usual ones
            for _ in range(rare):
                total += waits.draw_rare(self._draws.share())
        return max(total, 0.0)

    def tokens(self, done: int, total: int) -> Spread:
        """Generated in turns `done` + 1 … `total` of a trajectory of that length."""
        found = self._tokens.get((done, total))
        if found is None:
            found = self._tokens[done, total] = tokens_left(self._profile, done, total)
        return found


def _binomial(count: int, share: float) -> list[float]:
    """Chances of 0, 1, 2, … of `count`, without a tail that cannot be drawn."""
    chance, total, found = math.pow(1.0 - share, count), 0.0, list[float]()
    while total < 1.0 - NO_CHANCE and len(found) < count:
        found.append(chance)
        total += chance
        made = len(found)
        chance *= (count - made + 1) / made * share / (1.0 - share)
    return found


def tokens_left(profile: Profile, done: int, total: int) -> Spread:
    """From the line of tokens over turns of trajectories about that long, shifted by what later stages have more."""
    turns = total - done
    whole, later = _stage_mean(profile, 0, total), _stage_mean(profile, done, total)
    variation = math.sqrt(max(profile.generated.variance, 0.0)) / max(profile.generated.mean, 1.0)
    skewness = variation * (3.0 + variation * variation) / math.sqrt(turns)
    own = profile.lengths[stage(total)]
    if own.generated.count < MIN_LINE:
        return spread(turns * later, turns * (variation * later) ** 2, skewness)
    per_turn = own.generated.mean / max(own.turns.mean, 1.0)
    trust = own.turns.variance * (1.0 + LINE_PRIOR / own.turns.count) + NO_SPREAD
    slope = (own.covariance + (trust - own.turns.variance) * per_turn) / trust
    mean = max(own.generated.mean + slope * (total - own.turns.mean), 0.0) * turns / total
    mean *= later / whole if whole > 0 else 1.0
    around = own.generated.variance - 2.0 * slope * own.covariance + slope * slope * own.turns.variance
    limited = slope < LIMITED * per_turn
    return spread(mean, max(around, 0.0) * turns / max(own.turns.mean, 1.0), 0.0 if limited else skewness)


def _stage_mean(profile: Profile, done: int, total: int) -> float:
    """Mean of r over turns `done` + 1 … `total`."""
    amount = 0.0
    turn = done + 1
    while turn <= total:
        number = stage(turn)
        last = min(total, 1 << number) if number < len(profile.stages) - 1 else total
        part = profile.stages[number].generated
        amount += (last - turn + 1) * (part.mean if part.count > 0 else profile.generated.mean)
        turn = last + 1
    return amount / max(total - done, 1)
