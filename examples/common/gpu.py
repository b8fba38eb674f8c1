"""What the trainer's GPU did over time, from the trainer's own words and from looks at its loan."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING

from pearl_api.loan import LoanPhase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from examples.common.timeline import LoanSample
    from examples.common.trainer_pod import Step


class Use(StrEnum):
    """Of one GPU at one time."""

    TRAINING = "training"
    SERVING = "lent, serving"
    WAKING = "lent, engine starts or wakes"
    IDLE = "idle"


LENT = {LoanPhase.GRANTED: Use.WAKING, LoanPhase.WAKING: Use.WAKING, LoanPhase.SERVING: Use.SERVING}


@dataclass(frozen=True, slots=True)
class Span:
    """One use from start to end, in seconds."""

    start: float
    end: float
    use: Use


def spans(loans: Sequence[LoanSample], steps: Sequence[Step]) -> list[Span]:
    """What the GPU did from the first look at its loan to the end of the last update, without gaps.

    A phase lasts from the look that saw it to the next one; when the GPU trained is known exactly and goes first.
    """
    if not loans or not steps:
        return []
    first, last = loans[0].at, steps[-1].at
    training = [step.training for step in steps]
    looks = [look.at for look in loans]
    edges = {first, last, *looks, *(edge for interval in training for edge in interval)}
    inside = sorted(edge for edge in edges if first <= edge <= last)

    def use_at(time: float) -> Use:
        if any(start <= time < end for start, end in training):
            return Use.TRAINING
        return LENT.get(LoanPhase(loans[bisect_right(looks, time) - 1].phase), Use.IDLE)

    return _joined([Span(start, end, use_at((start + end) / 2)) for start, end in pairwise(inside)])


def _joined(parts: Sequence[Span]) -> list[Span]:
    found: list[Span] = []
    for part in parts:
        if found and found[-1].use is part.use:
            found[-1] = Span(found[-1].start, part.end, part.use)
        else:
            found.append(part)
    return found


def shares(found: Sequence[Span], since: float = 0.0) -> dict[Use, float]:
    """Part of the time after `since` (seconds) in each use; they sum to 1, or are 0 where nothing was seen."""
    seconds = {use: sum(max(0.0, one.end - max(one.start, since)) for one in found if one.use is use) for use in Use}
    total = sum(seconds.values())
    return {use: spent / total if total else 0.0 for use, spent in seconds.items()}
