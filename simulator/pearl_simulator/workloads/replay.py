"""Workloads from recorded data: trajectories as they were, or the statistics that a gateway keeps."""

from __future__ import annotations

import bisect
import json
import math
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from pearl_planner.workload.profile import Moments, Profile, turn_bin
from pearl_simulator.errors import InputError
from pearl_simulator.types import Script, Turn
from pearl_simulator.workloads.distributions import LogNormal, always, simple
from pearl_simulator.workloads.drawn import CONTEXT_TOKENS, DrawnWorkload
from pearl_simulator.workloads.recordings import read_recordings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pearl_simulator.workloads.recordings import Recording

_NORMAL = NormalDist()
_MOST_TURNS = 1024
_FEWEST_TURNS_SEEN = 12


@dataclass(frozen=True, slots=True)
class ReplayedWorkload:
    """Recorded trajectories, drawn with replacement: whole groups first, then members of them."""

    name: str
    recorded: tuple[tuple[Recording, ...], ...]
    """By group."""
    groups: int = 4
    group_size: int = 16
    context_tokens: int = CONTEXT_TOKENS
    """Where a longer trajectory is cut."""

    def batch(self, step: int, seed: int) -> Sequence[Script]:
        """The trajectories of one training step, groups in a row."""
        scripts: list[Script] = []
        for group in range(self.groups):
            draw = np.random.default_rng((seed, step, group, 0))
            samples = self.recorded[int(draw.integers(len(self.recorded)))]
            # Each sample once before any of them twice.
            rounds = -(-self.group_size // len(samples))
            order = np.concatenate([draw.permutation(len(samples)) for _ in range(rounds)])[: self.group_size]
            for member, at in enumerate(order.tolist()):
                sample = samples[at]
                scripts.append(Script(group, member, sample.reset_seconds, _cut(sample.turns, self.context_tokens)))
        return scripts


def _cut(turns: tuple[Turn, ...], context_tokens: int) -> tuple[Turn, ...]:
    """The turns that fit, the last of them perhaps shortened."""
    kept: list[Turn] = []
    history = 0
    for turn in turns:
        room = context_tokens - history - turn.appended_tokens
        if room <= 0:
            break
        made = min(turn.generated_tokens, room)
        retained = min(turn.retained_tokens, made)
        kept.append(Turn(turn.appended_tokens, made, retained, turn.missed_share, turn.environment_seconds))
        if made < turn.generated_tokens:
            break
        history += turn.appended_tokens + retained
    return tuple(kept)


def replayed(
    source: str | Path,
    *,
    groups: int = 4,
    group_size: int = 16,
    context_tokens: int = CONTEXT_TOKENS,
    environment_seconds: float | None = None,
) -> ReplayedWorkload:
    """A workload of the trajectories in a file, or in a recording that ships.

    Raises:
        InputError: the file cannot be used, or the first prompt of a trajectory does not fit the context.
    """
    found = read_recordings(source, environment_seconds=environment_seconds)
    for at, recording in enumerate(found, 1):
        first = recording.turns[0].appended_tokens
        if first >= context_tokens:
            raise InputError(
                f"recording {source}: trajectory {at} starts with {first} tokens, the context has {context_tokens}; "
                "raise workload.contextTokens or leave it out"
            )
    by_group: dict[str, list[Recording]] = {}
    for at, recording in enumerate(found):
        by_group.setdefault(recording.group if recording.group is not None else f"#{at}", []).append(recording)
    if all(len(samples) == 1 for samples in by_group.values()):
        by_group = {"all": list(found)}  # no samples of one prompt were recorded: members are any of them
    grouped = tuple(tuple(samples) for samples in by_group.values())
    return ReplayedWorkload(Path(source).stem, grouped, groups, group_size, context_tokens)


@dataclass(frozen=True, slots=True)
class HazardTurns:
    """Turns of which the chance to end after each is known; group and member weigh the same."""

    survival: tuple[float, ...]
    """P(more than k turns) for k = 1, 2, …; falling, the last is 0."""

    def count(self, group: float, member: float) -> int:
        """At least 1, from two standard normal draws."""
        luck = 1.0 - _NORMAL.cdf((group + member) / math.sqrt(2.0))
        # The first k with P(more than k) ≤ luck; `survival` falls, so its negative rises.
        return 1 + bisect.bisect_left(self.survival, -luck, key=lambda value: -value)


def from_statistics(
    source: str | Path, *, groups: int = 4, group_size: int = 16, context_tokens: int = CONTEXT_TOKENS
) -> DrawnWorkload:
    """A workload with the means and spreads that a gateway's statistics (`GET /v1/stats`) hold.

    Raises:
        InputError: the file cannot be read, or holds too few turns to know the workload.
    """
    try:
        data = json.loads(Path(source).read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"statistics {source}: cannot be read as JSON ({error}); save GET /v1/stats again") from error
    sketch: Any = data.get("profile", data) if isinstance(data, dict) else None
    profile = Profile.from_dict(sketch if isinstance(sketch, dict) else None)
    if profile is None or profile.sane().effective_turns < _FEWEST_TURNS_SEEN:
        raise InputError(
            f"statistics {source}: profile holds fewer than {_FEWEST_TURNS_SEEN} turns of this version; "
            "let some trajectories finish, then save GET /v1/stats again"
        )
    seen = profile.sane()
    survival = _survival(seen)
    turns = 1.0 + sum(survival)
    first = _first_prompt(seen, 1.0 / turns)
    return DrawnWorkload(
        name=Path(source).stem,
        turns=HazardTurns(survival),
        first_prompt=always(min(first, context_tokens / 2)),
        appended=_lognormal(_later(seen.appended, first, turns)),
        generated=_lognormal(seen.generated),
        environment=simple(_lognormal(seen.environment)),
        groups=groups,
        group_size=group_size,
        retained_share=min(1.0, max(0.0, seen.retained.mean)) if seen.retained.count > 0 else 1.0,
        reset=simple(always(0.0)),
        reward_seconds=0.0,
        context_tokens=context_tokens,
    )


def _lognormal(moments: Moments) -> LogNormal:
    """With this mean and variance; σ at most 2, since a mean of few values says no more about the tail."""
    mean = max(moments.mean, 0.0)
    if moments.count <= 0 or mean <= 0.0:
        return always(0.0)
    sigma = min(2.0, math.sqrt(math.log1p(moments.variance / (mean * mean))))
    return LogNormal(mean * math.exp(-sigma * sigma / 2), sigma)


def _survival(profile: Profile) -> tuple[float, ...]:
    """P(more than k turns), from the chances to go on; unseen turns end."""
    found: list[float] = []
    alive = 1.0
    for turn in range(1, _MOST_TURNS):
        at = turn_bin(turn)
        on, off = profile.continued[at], profile.ended[at]
        alive *= on / (on + off) if on + off > 0 else 0.0
        found.append(alive)
        if alive < 1e-4:  # noqa: PLR2004 - rarer than any batch shows
            break
    return (*found[:-1], 0.0)


def _first_prompt(profile: Profile, share: float) -> float:
    """Mean of the largest `share` of all appends, since there is one first prompt per trajectory; by bins of 2^k."""
    total = sum(profile.appended_bins)
    left, tokens = share * total, 0.0
    for at in range(len(profile.appended_bins) - 1, -1, -1):
        taken = min(left, profile.appended_bins[at])
        tokens += taken * 1.5 * 2.0**at
        left -= taken
    return tokens / (share * total) if total > 0 else 1024.0


def _later(appended: Moments, first: float, turns: float) -> Moments:
    """Moments without the first prompts, of which there is one per `turns` turns."""
    if turns <= 1.0:
        return appended
    mean = max(1.0, (appended.mean * turns - first) / (turns - 1.0))
    square = ((appended.variance + appended.mean**2) * turns - first**2) / (turns - 1.0)
    return Moments(appended.count, mean, max(0.0, square - mean**2))
