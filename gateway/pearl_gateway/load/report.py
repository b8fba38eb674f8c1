"""What a replay came to, as numbers."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pearl_gateway.load.replay import Progress


@dataclass(frozen=True, slots=True)
class Summary:
    """Result of one run; seconds are of turns as the client saw them."""

    trajectories: int
    finished: int
    failed: int
    turns_planned: int
    turns: int
    generated_tokens: int
    repeats: int
    duration_seconds: float
    turn_seconds_p50: float | None
    turn_seconds_p99: float | None
    first_seconds_p50: float | None
    """Until the first bytes of a streamed answer; None without --stream."""
    first_seconds_p99: float | None
    admission_seconds_p99: float | None
    """Longest of 99 % of the groups' waits to be admitted; None without permits."""
    tokens_per_second: float
    turns_per_second: float
    token_factor: float
    time_scale: float
    checked: int
    wrong: int
    versions: list[int]
    problems: list[str]
    """Of the run, of trajectories, of turns: one line each."""

    @property
    def good(self) -> bool:
        """Everything finished, and nothing differs."""
        return not self.problems and self.turns == self.turns_planned

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"good": self.good}


def summarise(progress: Progress, duration_seconds: float, *, token_factor: float, time_scale: float) -> Summary:
    """The summary of a replay that is over."""
    seconds = sorted(one.seconds for one in progress.played)
    firsts = sorted(one.first_seconds for one in progress.played if one.first_seconds is not None)
    versions = {span["version"] for one in progress.played for span in one.versions if span["version"] is not None}
    return Summary(
        trajectories=progress.trajectories,
        finished=progress.finished,
        failed=len(progress.failed),
        turns_planned=progress.turns,
        turns=len(progress.played),
        generated_tokens=progress.generated_tokens,
        repeats=progress.repeats,
        duration_seconds=duration_seconds,
        turn_seconds_p50=percentile(seconds, 50),
        turn_seconds_p99=percentile(seconds, 99),
        first_seconds_p50=percentile(firsts, 50),
        first_seconds_p99=percentile(firsts, 99),
        admission_seconds_p99=percentile(sorted(progress.admission_seconds), 99),
        tokens_per_second=progress.generated_tokens / duration_seconds,
        turns_per_second=len(progress.played) / duration_seconds,
        token_factor=token_factor,
        time_scale=time_scale,
        checked=progress.checked,
        wrong=len(progress.wrong),
        versions=sorted(versions),
        problems=[*progress.troubles, *progress.failed, *progress.wrong],
    )


def percentile(ordered: Sequence[float], percent: float) -> float | None:
    """Nearest-rank percentile of ascending values; None of no values."""
    if not ordered:
        return None
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]
