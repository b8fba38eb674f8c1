"""Sample paths of the rest of a batch: what unfinished trajectories may still have to do, on no shape in particular.

docs/models.md, "Rest of the batch". A path draws, per trajectory, the turns, tokens and waits that are left (groups
share a factor). All shapes meet the same paths, so their differences are not noise. Only trajectories that can be the
last of their path are kept (those that are, for some speed of the engines), and the crowd of all paths together in
strata: the crowd says how many run at a time, the candidates say when the path ends. Deterministic: the draws come
from a fixed linear congruential generator.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from pearl_planner.prediction.draws import Draws
from pearl_planner.prediction.work import Sampler, Work
from pearl_planner.workload.lengths import NODES, Factors, lengths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pearl_planner.types import Batch
    from pearl_planner.workload.profile import Profile

SAMPLES = 2048
"""Trajectories drawn for a decision; `MAX_PATHS` bounds the paths of a small batch."""
MAX_PATHS = 128
MIN_PATHS = 2
STRATA = 28
TOP_STRATA = 4
SPEEDS = ((0.05, 0.004), (0.05, 0.012), (0.05, 0.04), (1.0, 0.012), (1.0, 0.15))
"""(seconds per turn, seconds per token) for which candidates are kept."""


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
