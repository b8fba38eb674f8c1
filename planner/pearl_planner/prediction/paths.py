"""Sample paths of the rest of a batch: what unfinished trajectories may still have to do, on no shape in particular.

docs/models.md, "Rest of the batch". A path draws, per trajectory, the turns, tokens and waits that are left (groups
share a factor). All shapes meet the same paths, so their differences are not noise. Only trajectories that can be the
last of their path are kept (those that are, for some speed of the engines), and the crowd of all paths together in
strata: the crowd says how many run at a time, the candidates say when the path ends. Deterministic: the draws come
from a fixed linear congruential generator.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

from pearl_planner.workload.bins import stage, wait_at
from pearl_planner.workload.lengths import NODES, Factors, lengths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pearl_planner.types import Batch
    from pearl_planner.workload.lengths import Lengths
    from pearl_planner.workload.profile import Profile

SAMPLES = 2048
"""Trajectories drawn for a decision; `MAX_PATHS` bounds the paths of a small batch."""
MAX_PATHS = 128
MIN_PATHS = 2
STRATA = 28
TOP_STRATA = 4
SPEEDS = ((0.05, 0.004), (0.05, 0.012), (0.05, 0.04), (1.0, 0.012), (1.0, 0.15))
"""(seconds per turn, seconds per token) for which candidates are kept."""
DIRECT_WAITS = 3
"""So many waits or fewer are drawn one by one, more as one sum."""

RARE_SHARE = 0.15
RARE_WEIGHT = 0.25
"""At most this share of the waits, with at least this share of the time, are drawn one by one."""
MAX_SKEW = 4.0
NO_SKEW = 0.05
NO_CHANCE = 1e-6
QUANTILES = 256
EXACT_PLACE = 250
"""Quantiles of the waits are looked up in a table, but for the highest."""
MIN_LINE = 8.0
"""Trajectories below which no line of tokens over turns is drawn."""
LINE_PRIOR = 4.0
"""Trajectories' worth of tokens in proportion to turns that the line starts with."""
NO_SPREAD = 0.02
LIMITED = 0.5
"""Where more turns bring less than this share of their tokens, contexts are limited: no long tail of tokens."""

_TABLE = tuple(NormalDist().inv_cdf((i + 0.5) / 4096) for i in range(4096))
_MASK = (1 << 64) - 1


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


@dataclass(frozen=True, slots=True)
class Remainder:
    """The rest of a batch. Equal crowds come from equal paths, so only they are compared."""

    crowd: tuple[tuple[float, Work], ...] = field(hash=False)
    """(how many, what each has left)."""
    paths: tuple[tuple[tuple[Work, ...], ...], ...] = field(hash=False, compare=False)
    """Path → group → trajectories that may be its last."""
    need: int
    """Groups that are still waited for; all of them are one group in `paths`."""
    alive: int
    """Trajectories left."""
    turns: float
    """Expected turns still to come."""
    generated_tokens: float = 1.0
    """Of the mean turn when the paths were drawn; a workload with another mean scales them."""
    environment_seconds: float = 0.0
    """Likewise."""


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
    chance, found = math.pow(1.0 - share, count), list[float]()
    while sum(found) < 1.0 - NO_CHANCE and len(found) < count:
        found.append(chance)
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


class Start(NamedTuple):
    """A trajectory of the batch as it stands."""

    done: int
    idle: float | None
    begun: bool


def starts(batch: Batch) -> dict[str, list[Start]]:
    """Unfinished trajectories of every incomplete group, with those that are not begun."""
    groups: dict[str, list[Start]] = {}
    for one in batch.unfinished:
        idle = one.idle_seconds if one.turns_done > 0 else None
        groups.setdefault(one.group, []).append(Start(max(one.turns_done, 0), idle, begun=True))
    missing = max(batch.groups * batch.group_size - batch.started, 0)
    incomplete = max(batch.groups - batch.complete_groups, 1)
    while missing > 0 and len(groups) < incomplete:
        size = min(batch.group_size, missing)
        groups[f"\0{len(groups)}"] = [Start(0, None, begun=False)] * size
        missing -= size
    if missing > 0 and groups:  # members of begun groups that were not sent yet; which ones is not known
        next(iter(groups.values())).extend([Start(0, None, begun=False)] * missing)
    return groups


def remainder(profile: Profile, batch: Batch, *, paths: int | None = None, seed: int = 1) -> Remainder | None:
    """The rest of `batch`; None while no trajectory ever finished (nothing says when they end)."""
    known = lengths(profile)
    if known is None:
        return None
    groups = starts(batch)
    alive = sum(len(members) for members in groups.values())
    need = max(min(batch.need_groups - batch.complete_groups, len(groups)), 0)
    merged = need == len(groups)
    if alive == 0 or need == 0:
        return Remainder((), (), 0, alive, 0.0)
    count = paths or min(max(SAMPLES // alive, MIN_PATHS), MAX_PATHS)
    sampler, draws = Sampler(profile, known, Draws(seed)), Draws(seed + 7)
    chances = Factors(known, profile)
    factors = [list(accumulate(chances.of(name, [one.done for one in members]))) for name, members in groups.items()]
    drawn: list[Work] = []
    kept = []
    for _ in range(count):
        path = []
        for members, below in zip(groups.values(), factors, strict=True):
            common = _common(below, draws)
            path.append([sampler.work(one.done, common, one.idle, begun=one.begun) for one in members])
        drawn += [work for group in path for work in group]
        whole = [[work for group in path for work in group]] if merged else path
        kept.append(tuple(candidates(group) for group in whole))
    turns = sum(work.turns for work in drawn) / count
    return Remainder(
        crowd=strata(drawn, alive / len(drawn)),
        paths=tuple(kept),
        need=1 if merged else need,
        alive=alive,
        turns=turns,
        generated_tokens=max(profile.generated.mean, 1.0),
        environment_seconds=profile.environment.known_mean() or 0.0,
    )


def _common(below: Sequence[float], draws: Draws) -> float:
    """The group's factor: one of the nodes by its chance, spread evenly over the node's width."""
    node = min(bisect_left(below, draws.share()), len(NODES) - 1)
    return NODES[node] + (draws.share() - 0.5) * (NODES[1] - NODES[0])


def candidates(works: Sequence[Work]) -> tuple[Work, ...]:
    """Those that end last for one of `SPEEDS`."""
    last = {max(works, key=lambda w, t=t, k=k: w[0] + w[1] * t + w[2] * k) for t, k in SPEEDS}  # type: ignore[misc]
    return tuple(sorted(last))


def strata(works: Sequence[Work], weight: float) -> tuple[tuple[float, Work], ...]:
    """Means of strata by how much is left; the longest trajectories in finer ones."""
    ordered = sorted(works, key=lambda w: w[0] + 0.2 * w[1] + 0.015 * w[2])
    size = len(ordered)
    cuts = [size * i // STRATA for i in range(STRATA)]
    cuts += [cuts[-1] + (size - cuts[-1]) * i // TOP_STRATA for i in range(1, TOP_STRATA + 1)]
    found = []
    for low, high in pairwise(cuts):
        part = ordered[low:high]
        if part:
            means = [sum(values) / len(part) for values in zip(*part, strict=True)]
            found.append((len(part) * weight, Work(*means)))
    return tuple(found)
