"""What PEARL promises a trainer, held against what was seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from examples.common.trainer_pod import Batch, Step

GROWTH = 0.1
"""Reward must grow by this from the untrained policy to the last batches: more than by chance (see `DRIFT`).

It starts near 0.5, and 1 is the best. How far a number of updates gets differs from run to run.
"""
DRIFT = 0.1
"""Reward must not move by this between two halves of the untrained policy's batches. Each half is a mean over
hundreds of games with a standard deviation of 0.5, so chance moves the difference by 0.02 to 0.03."""
LAST_STEPS = 4
MAX_GAP = 1e-4
"""Of two float32 logprobs of one token under one set of weights, computed by two programs."""


class Promise(NamedTuple):
    """One line of the table at the end."""

    text: str
    kept: bool
    seen: str


def of_training(frozen: Sequence[Batch], steps: Sequence[Step], *, wanted_steps: int) -> list[Promise]:
    """Held against every batch: those of the untrained policy, and those that an update followed."""
    everything = [*frozen, *steps]
    first, last = _reward(frozen), _reward(steps[-LAST_STEPS:])
    half = len(frozen) // 2
    early, late = _reward(frozen[:half]), _reward(frozen[half:])
    foreign = sum(batch.other_versions for batch in everything)
    gap = max((step.logprob_gap for step in steps), default=float("inf"))
    turns, borrowed = sum(b.turns for b in everything), sum(b.borrowed_turns for b in everything)
    games, broken = sum(b.games for b in everything), sum(b.broken_games for b in everything)
    lost = sum(batch.lost_games for batch in everything)
    return [
        Promise("Training runs to its end", len(steps) == wanted_steps, f"{len(steps)} of {wanted_steps} updates"),
        in_time(steps),
        Promise("Lent GPUs do work", borrowed > 0, f"{borrowed} of {turns} turns went through the borrowed worker"),
        Promise("Every game is accounted for", lost == 0, f"{games} have a reward, {broken} broke, {lost} were lost"),
        Promise("The policy learns", last > first + GROWTH, f"mean reward {first:.2f} → {last:.2f}"),
        Promise(
            "And only by its updates",
            half > 0 and abs(late - early) < DRIFT,
            f"without updates {early:.2f} → {late:.2f} over {len(frozen)} batches",
        ),
        Promise("Tokens come from the weights they claim", gap < MAX_GAP, f"logprobs differ by at most {gap:.1e}"),
        Promise("No batch mixes weights", foreign == 0, f"{foreign} tokens of another version than the batch's"),
    ]


def in_time(steps: Sequence[Step]) -> Promise:
    """Every reclaim of a lent GPU ended before its deadline."""
    lent = [step for step in steps if step.was_lent]
    late = [step for step in lent if step.deadline_seconds is None or step.reclaim_seconds > step.deadline_seconds]
    longest = max((step.reclaim_seconds for step in lent), default=None)
    seen = "never lent" if longest is None else f"{len(lent)} reclaims, the longest {longest:.2f} s"
    return Promise("Training GPUs come back on time", bool(lent) and not late, seen)


def _reward(batches: Sequence[Batch]) -> float:
    return sum(batch.reward for batch in batches) / len(batches) if batches else 0.0
