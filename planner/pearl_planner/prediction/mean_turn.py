"""The mean turn of a profile, and how it changes along a trajectory.

docs/models.md, "From the profile to the stations".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pearl_planner.numbers import clamp
from pearl_planner.workload.lengths import mean_turns, turn_shares

if TYPE_CHECKING:
    from pearl_planner.prediction.paths import Remainder
    from pearl_planner.workload.profile import Profile

MIN_TURNS = 12.0
"""Effective turns below which nothing is predicted."""
MAX_ERROR = 0.15
STAGE_TURNS = (1.0, 2.0, 3.5, 6.5, 12.5, 24.5, 48.5, 80.0)
"""Middle turn of each stage of a profile."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One turn of the mean trajectory, with how many trajectories there are."""

    appended_tokens: float
    generated_tokens: float
    retained_share: float
    environment_seconds: float
    context_tokens: float
    missed_tokens: tuple[tuple[str, float], ...]
    """(route, prefilled tokens beyond the derived ones), where the engines said."""
    appended_bins: tuple[float, ...]
    trajectories: int
    """In flight now, at least 1."""
    rest: Remainder | None
    """The rest of the open batch; None = none known, steady state."""
    error: float = 0.0
    """What two shapes may seem to differ by (as a share) because the mean turn is known from few turns only."""
    progress: tuple[tuple[float, float, float], ...] = ()
    """(turn number, context and appended tokens there as a share of the mean turn's), ascending; empty = all alike."""
    turns_per_trajectory: float | None = None
    """Expected turns of a whole trajectory; None = none ever finished."""
    edge_seconds: float = 0.0
    """Reset and reward of a trajectory together, outside of the engines."""
    refill: bool = False
    """Whether trajectories of later batches take the places of those of this batch that end."""

    def missed(self, route: str) -> float:
        """Measured tokens beyond the derived ones on this route; a rate of one mode is never carried to another.

        Only a decode worker that never prefilled is held to miss as little as the best of the others, since what the
        agent itself breaks is missed everywhere.
        """
        known = dict(self.missed_tokens)
        if route == "local" and route not in known:
            return max(0.0, min(known.values(), default=0.0))
        return known.get(route, 0.0)

    def at(self, turn: float) -> tuple[float, float]:
        """Context and appended tokens of a turn of this number."""
        context, appended = _between(self.progress, turn)
        return self.context_tokens * context, self.appended_tokens * appended

    @property
    def delay_seconds(self) -> float:
        """Outside of the engines, per turn; one wait less than turns, but reset and reward."""
        if not self.turns_per_trajectory:
            return self.environment_seconds
        share = 1.0 / max(self.turns_per_trajectory, 1.0)
        return self.environment_seconds * (1.0 - share) + self.edge_seconds * share


def workload(profile: Profile, trajectories: int, rest: Remainder | None, *, refill: bool = False) -> Workload | None:
    """The mean turn; None while the profile rests on too few turns."""
    if profile.effective_turns < MIN_TURNS:
        return None
    retained = profile.retained.known_mean()
    shares = turn_shares(profile)
    return Workload(
        appended_tokens=_appended(profile),
        generated_tokens=max(profile.generated.mean, 1.0),
        retained_share=1.0 if retained is None else retained,
        environment_seconds=profile.environment.known_mean() or 0.0,
        context_tokens=max(profile.context.mean, 1.0),
        missed_tokens=tuple(sorted(profile.missed_tokens().items())),
        appended_bins=profile.appended_bins,
        trajectories=max(trajectories, 1),
        rest=rest,
        error=comparison_error(profile),
        progress=_progress(profile),
        turns_per_trajectory=None if shares is None else mean_turns(shares),
        edge_seconds=(profile.reset.known_mean() or 0.0) + (profile.reward.known_mean() or 0.0),
        refill=refill,
    )


def _progress(profile: Profile) -> tuple[tuple[float, float, float], ...]:
    """Shares of the mean turn's context and appended tokens by stage."""
    context, appended = max(profile.context.mean, 1.0), _appended(profile)
    first = profile.first_computed.known_mean()
    rows = []
    for turn, stage in zip(STAGE_TURNS, profile.stages, strict=False):
        if stage.context.count >= 1.0:
            new = stage.appended.mean if turn > 1 or first is None else first
            rows.append((turn, max(stage.context.mean, 1.0) / context, max(new, 1.0) / appended))
    return tuple(rows)


def _appended(profile: Profile) -> float:
    """Mean new tokens of a turn, without what of first prompts was cached since a sibling brought it."""
    first, computed = profile.stages[0].appended, profile.first_computed.known_mean()
    if computed is None or profile.appended.count <= 0:
        return max(profile.appended.mean, 1.0)
    saved = max(first.mean - computed, 0.0) * first.count / profile.appended.count
    return max(profile.appended.mean - saved, 1.0)


def _between(rows: tuple[tuple[float, float, float], ...], turn: float) -> tuple[float, float]:
    """Interpolated; the ends go on flat."""
    if not rows:
        return 1.0, 1.0
    before = rows[0]
    for row in rows:
        if turn <= row[0]:
            width = row[0] - before[0]
            share = (turn - before[0]) / width if width > 0 else 1.0
            share = min(max(share, 0.0), 1.0)
            return before[1] + share * (row[1] - before[1]), before[2] + share * (row[2] - before[2])
        before = row
    return before[1], before[2]


def comparison_error(profile: Profile) -> float:
    """Half the relative standard error of prefill and decode work per turn (docs/models.md, "Choice")."""
    parts = (profile.appended, profile.generated)
    squares = [part.variance / (max(part.count, 1.0) * max(part.mean, 1.0) ** 2) for part in parts]
    return clamp(0.5 * math.sqrt(max(sum(squares), 0.0)), 0.0, MAX_ERROR)
