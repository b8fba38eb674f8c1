"""The least that a trajectory costs, whoever serves it: engine work, waiting, and the time it takes alone.

Only what no schedule can avoid is counted: a prompt that a group shares once per group, prompts as chunks inside
decode steps, no queue, no hand-off, no second prefill of a worker that has not seen the history.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pearl_simulator.types import Calibration, Script, Turn


@dataclass(frozen=True, slots=True)
class Engine:
    """Lower bounds of one worker's times: a decode step of n sequences ≥ fixed + Σ slope, whatever is mixed in."""

    fixed_seconds: float
    per_sequence_seconds: float
    per_context_token_seconds: float
    per_new_token_seconds: float
    per_token_pair_seconds: float
    per_turn_seconds: float
    """Of a turn on a worker that does both stages; 0 where the spec allows to split them."""
    kv_tokens: float | None

    def prefill_seconds(self, tokens: float, prefix: float) -> float:
        """Work of a prompt, without any fixed cost of a step."""
        pairs = tokens * prefix + tokens * tokens / 2
        return self.per_new_token_seconds * tokens + self.per_token_pair_seconds * pairs + self.per_turn_seconds

    def slope_seconds(self, context_tokens: float) -> float:
        """What one sequence adds to a step."""
        return max(0.0, self.per_sequence_seconds + self.per_context_token_seconds * context_tokens)


def engine_of(calibration: Calibration, most_sequences: int, *, may_split: bool) -> Engine:
    """The engine of a calibration; √n of a mixture of experts becomes its chord over 1 … `most_sequences`."""
    table = calibration.table
    root, linear = table.decode_per_root_sequence_seconds, table.decode_per_sequence_seconds
    top = max(most_sequences, 2)
    one, many = linear + root, linear * top + root * math.sqrt(top)
    slope = max((many - one) / (top - 1.0), 0.0)
    start = max(min(one - slope, many), 0.0)  # what is concave in n lies above the line through its ends
    return Engine(
        fixed_seconds=table.decode_fixed_seconds + calibration.host_seconds + (start if root else 0.0),
        per_sequence_seconds=slope,
        per_context_token_seconds=table.decode_per_context_token_seconds,
        per_new_token_seconds=table.prefill_per_token_seconds,
        per_token_pair_seconds=table.prefill_per_token_pair_seconds,
        per_turn_seconds=0.0 if may_split else calibration.interference_seconds,
        kv_tokens=None if table.kv_capacity_tokens is None else float(table.kv_capacity_tokens),
    )


@dataclass(frozen=True, slots=True)
class Effort:
    """Sums over trajectories (or one)."""

    trajectories: float
    prefill_seconds: float
    """Engine time and time in flight of its prompts."""
    decode_slope_seconds: float
    """Σ over generated tokens of what each adds to its step."""
    decode_slope_roots: float
    """Σ √ of the same."""
    tokens: float
    """Decoded in steps of their own: the first of each turn comes with the prompt."""
    waiting_seconds: float
    """Reset, environment, reward."""
    kv_token_seconds: float
    """Context held while it decodes as fast as it can."""
    before_first_token_seconds: float
    """Of the waiting and the prefill."""

    def alone_seconds(self, engine: Engine) -> float:
        """From reset to reward on empty workers."""
        decode = self.tokens * engine.fixed_seconds + self.decode_slope_seconds
        return self.waiting_seconds + self.prefill_seconds + decode

    def cost(self, engine: Engine, in_flight_price: float) -> float:
        """Least of (worker seconds + price · seconds in flight), see `bound.py`."""
        price, fixed = in_flight_price, engine.fixed_seconds
        decode = self.decode_slope_seconds + price * fixed * self.tokens
        decode += 2.0 * math.sqrt(price * fixed) * self.decode_slope_roots
        return decode + (1.0 + price) * self.prefill_seconds + price * self.waiting_seconds


def total(efforts: Sequence[Effort]) -> Effort:
    """Their sum."""
    return Effort(
        sum(one.trajectories for one in efforts),
        sum(one.prefill_seconds for one in efforts),
        sum(one.decode_slope_seconds for one in efforts),
        sum(one.decode_slope_roots for one in efforts),
        sum(one.tokens for one in efforts),
        sum(one.waiting_seconds for one in efforts),
        sum(one.kv_token_seconds for one in efforts),
        sum(one.before_first_token_seconds for one in efforts),
    )


def effort_of(script: Script, engine: Engine, *, pays_prompt: bool) -> Effort:
    """Of one trajectory; the first prompt only where this member of the group pays for it."""
    prefill = slopes = roots = tokens = kv = 0.0
    waiting = before = script.reset_seconds
    history = 0.0
    own = 0.0  # context that is not the shared prompt
    for number, turn in enumerate(script.turns):
        first = number == 0
        new = turn.appended_tokens + turn.missed_share * history
        if pays_prompt or not first:
            seconds = engine.prefill_seconds(new, max(history + turn.appended_tokens - new, 0.0))
            prefill += seconds
            before += seconds if first else 0.0
        start = history + turn.appended_tokens
        own += turn.appended_tokens if pays_prompt or not first else 0.0
        steps = max(turn.generated_tokens - 1.0, 0.0)
        low, high = engine.slope_seconds(start), engine.slope_seconds(start + steps)
        slopes += steps * (low + high) / 2
        roots += steps * (math.sqrt(low) + math.sqrt(high)) / 2  # √ is concave: at least its chord
        tokens += steps
        kv += own * (steps * engine.fixed_seconds + steps * low)
        waiting += turn.environment_seconds
        kept = _kept(turn)
        history, own = start + kept, own + kept
    return Effort(1.0, prefill, slopes, roots, tokens, waiting, kv, before)


def _kept(turn: Turn) -> float:
    return float(min(turn.retained_tokens, turn.generated_tokens))


def group_efforts(scripts: Sequence[Script], engine: Engine) -> dict[int, list[Effort]]:
    """Efforts by group; one member pays for the shared first prompt."""
    groups: dict[int, list[Effort]] = {}
    for script in scripts:
        mine = groups.setdefault(script.group, [])
        mine.append(effort_of(script, engine, pays_prompt=not mine))
    return groups
