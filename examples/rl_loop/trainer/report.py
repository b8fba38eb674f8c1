"""What the trainer tells of each batch: one line of JSON, read by whoever follows the pod's log."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .game import text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pearl_trainer import BatchProgress, Segment, Trajectory

BORROWER_MARK = "-borrower-"
"""In the name of every borrowed pod."""


@dataclass(slots=True)
class Laps:
    """A stop watch: `laps("x")` notes the seconds since the lap before under `x`. `clock` never goes back."""

    clock: Callable[[], float]
    seconds: dict[str, float] = field(default_factory=dict)
    _last: float = field(init=False)

    def __post_init__(self) -> None:
        self._last = self.clock()

    def __call__(self, name: str) -> None:
        """End a lap."""
        now = self.clock()
        self.seconds[name], self._last = now - self._last, now


def borrowed(batch: Sequence[Trajectory]) -> int:
    """Parts of turns that a borrowed worker prefilled or generated."""
    return sum(_borrowed(segment) for one in batch for segment in one.segments)


def _borrowed(segment: Segment) -> bool:
    return any(BORROWER_MARK in (worker or "") for worker in (segment.worker, segment.prefill_worker))


def of_batch(batch: Sequence[Trajectory], progress: BatchProgress, version: int) -> dict[str, object]:
    """Facts of one batch: what was consumed, how the gateway saw it end, the version that should have generated it."""
    generated = [v for one in batch for v, wrote in zip(one.versions, one.loss_mask, strict=True) if wrote]
    return {
        "version": version,
        "reward": sum(one.reward or 0.0 for one in batch) / len(batch),
        "games": len(batch),
        "broken_games": progress.aborted,
        "lost_games": progress.groups * progress.group_size - len(batch) - progress.aborted,
        "turns": sum(len(one.segments) for one in batch),
        "borrowed_turns": borrowed(batch),
        "other_versions": sum(found != version for found in generated),
        "sample": text(batch[-1].token_ids),
    }


def say(**fact: object) -> None:
    """One line of JSON on standard output."""
    sys.stdout.write(json.dumps(fact) + "\n")
    sys.stdout.flush()
