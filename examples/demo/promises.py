"""What PEARL promises, held against the record: each line of the report's first table."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from examples.demo.facts import Record

GROWTH = 0.1
"""Reward must grow by at least this; it starts near 0.5 and cannot exceed 1."""
EDGE_STEPS = 5
MAX_GAP = 1e-3


def check(record: Record, *, uids_before: Mapping[str, str], uids_after: Mapping[str, str], lost_turns: int) -> None:
    """Append every promise with whether it was kept and what was seen."""
    say = record.checks.append
    say(
        ("No turn is lost", lost_turns == 0 and all(not load.lost_turns for load in record.loads), f"{lost_turns} lost")
    )
    checked = record.loads_checked
    if checked is not None:
        wrong = checked.mismatched_turns
        seen = f"{checked.turns} turns compared with an undisturbed engine, an engine killed meanwhile: {wrong} differ"
        say(("Every token is right", wrong == 0, seen))
    shapes = list(dict.fromkeys(d.shape for d in record.decisions if d.rollout == "agents"))
    say(("The shape follows the work", len(shapes) > 1, " → ".join(shapes)))
    same = dict(uids_before) == dict(uids_after)
    say(("Role changes replace no pod", same, f"{len(uids_after)} pods, the same UIDs" if same else "pods changed"))
    _training(record)


def _training(record: Record) -> None:
    say, steps = record.checks.append, record.steps
    reclaims = [step for step in steps if step.reclaim_seconds is not None]
    late = [step for step in reclaims if (step.reclaim_seconds or 0.0) > step.deadline_seconds]
    longest = max((step.reclaim_seconds or 0.0 for step in reclaims), default=None)
    seen = "never lent" if longest is None else f"{len(reclaims)} reclaims, the longest {longest:.2f} s"
    say(("Training GPUs come back on time", bool(reclaims) and not late, seen))
    share = record.borrowed_turns / record.rollout_turns if record.rollout_turns else 0.0
    say(("Lent GPUs do work", record.borrowed_turns > 0, f"{share:.0%} of the turns went through the borrowed worker"))
    first = _mean([step.reward for step in steps[:EDGE_STEPS]])
    last = _mean([step.reward for step in steps[-EDGE_STEPS:]])
    say(("The policy learns", last > first + GROWTH, f"mean reward {first:.2f} → {last:.2f}"))
    gap = max((step.logprob_gap for step in steps), default=float("inf"))
    seen = f"behaviour and trainer logprobs differ by at most {gap:.1e}"
    say(("Tokens come from the weights they claim", gap < MAX_GAP, seen))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
