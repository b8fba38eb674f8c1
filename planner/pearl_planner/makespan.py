"""How the rest of a batch thins out: turns that are still to come, conditioned on the progress so far.

docs/models.md, "Rest of the batch". From the chances to end after each turn number (`Profile.ended / continued`,
which treats unfinished trajectories as censored) follows, per unfinished trajectory, the chance that it still runs
after s more turns. Summed this is n(s), the expected number alive; multiplied per group and counted, u(s), the chance
that the batch is not complete. The makespan of a shape is then Σ u(s) · cycle(n(s)): both are the same for every
shape, so they are computed once.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pearl_planner.profile import turn_bin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pearl_planner.profile import Profile
    from pearl_planner.queueing import Solution
    from pearl_planner.types import Batch

MAX_ROUNDS = 512
NEGLIGIBLE = 1e-3
PRIOR_WEIGHT = 0.5
"""Trajectories' worth of its predecessor's chance to end that every turn number starts with."""
EXACT_GROUPS = 64


@dataclass(frozen=True, slots=True)
class Remainder:
    """The rest of a batch, round by round (a round = one more turn of everybody alive)."""

    alive: tuple[float, ...]
    """n(s): expected trajectories that make round s."""
    unfinished: tuple[float, ...]
    """u(s): chance that the batch still waits in round s."""
    turns: float
    """Expected turns still to come."""


def end_chances(profile: Profile) -> list[float]:
    """Chance to end after turn number 1, 2, … per bin; one that nobody reached takes that of the turn before."""
    ended, continued = sum(profile.ended), sum(profile.continued)
    before = ended / (ended + continued) if ended > 0 else 0.0
    chances = []
    for end, go in zip(profile.ended, profile.continued, strict=True):
        before = min(1.0, (end + PRIOR_WEIGHT * before) / (end + go + PRIOR_WEIGHT))
        chances.append(before)
    return chances


def remainder(profile: Profile, batch: Batch) -> Remainder | None:
    """The rest of `batch`; None while no trajectory ever finished (nothing says when they end)."""
    chances = end_chances(profile)
    if max(chances) <= 0:
        return None
    groups = _groups(batch)
    if not groups:
        return Remainder((), (), 0.0)
    need = min(max(batch.need_groups - batch.complete_groups, 0), len(groups))
    survivals = {start: _survival(chances, *start) for start in {start for group in groups for start in group}}
    alive, unfinished = [], []
    for round_ in range(MAX_ROUNDS):
        waiting = _incomplete_chance(groups, survivals, round_, need)
        if waiting < NEGLIGIBLE:
            break
        unfinished.append(waiting)
        alive.append(sum(count * _at(survivals[start], round_) for group in groups for start, count in group.items()))
    return Remainder(tuple(alive), tuple(unfinished), sum(alive))


def makespan_seconds(rest: Remainder, solution: Solution, in_flight: float) -> float:
    """Expected time until the batch is complete when at most `in_flight` trajectories run at once."""
    total = 0.0
    for alive, waiting in zip(rest.alive, rest.unfinished, strict=True):
        running = max(1.0, min(alive, in_flight))
        # More alive than run at once: a round of all takes alive/running passes.
        total += waiting * solution.cycle_seconds(running) * max(1.0, alive / running)
    return total


Start = tuple[int, bool]
"""Turns done, and whether one more turn is certain because it is in the engine now (or not begun)."""


def _groups(batch: Batch) -> list[Counter[Start]]:
    """Starts of the unfinished trajectories of every incomplete group, with those not begun yet."""
    begun: dict[str, Counter[Start]] = {}
    for one in batch.unfinished:
        begun.setdefault(one.group, Counter())[max(one.turns_done, 0), one.idle_seconds is None] += 1
    missing = max(batch.groups * batch.group_size - batch.started, 0)
    groups = list(begun.values())
    while missing > 0 and len(groups) < batch.groups:
        size = min(batch.group_size, missing)
        groups.append(Counter({(0, True): size}))
        missing -= size
    if missing > 0 and groups:  # members of begun groups that were not sent yet; which ones is not known
        groups[0][0, True] += missing
    return groups


def _survival(chances: Sequence[float], done: int, certain: bool) -> list[float]:
    """P(makes round s | `done` turns made), s = 0, 1, …, until negligible."""
    alive = 1.0 if certain or done == 0 else 1.0 - chances[turn_bin(done)]
    result = [alive]
    for turn in range(done + 1, done + MAX_ROUNDS):
        alive *= 1.0 - chances[turn_bin(turn)]
        if alive < NEGLIGIBLE / 100:
            break
        result.append(alive)
    return result


def _at(survival: Sequence[float], round_: int) -> float:
    return survival[round_] if round_ < len(survival) else 0.0


def _incomplete_chance(
    groups: Sequence[Counter[Start]], survivals: dict[Start, list[float]], round_: int, need: int
) -> float:
    """Chance that fewer than `need` groups are complete before this round."""
    complete = [
        math.prod((1.0 - _at(survivals[start], round_)) ** count for start, count in group.items()) for group in groups
    ]
    if need <= 0:
        return 0.0
    if need == len(groups):
        return 1.0 - math.prod(complete)
    if len(groups) > EXACT_GROUPS:
        return _normal_below(complete, need)
    counts = [1.0] + [0.0] * need
    for chance in complete:  # distribution of the number of complete groups, capped at `need`
        counts = [
            (counts[k] * (1.0 - chance if k < need else 1.0)) + (counts[k - 1] * chance if k else 0.0)
            for k in range(need + 1)
        ]
    return 1.0 - counts[need]


def _normal_below(chances: Sequence[float], need: int) -> float:
    """P(sum of independent 0/1 < need) by the normal approximation."""
    mean = sum(chances)
    deviation = math.sqrt(max(sum(p * (1 - p) for p in chances), 1e-12))
    return 0.5 * (1.0 + math.erf((need - 0.5 - mean) / (deviation * math.sqrt(2.0))))
