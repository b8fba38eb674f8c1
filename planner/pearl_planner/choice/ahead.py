"""A burst that the next seconds bring, as an input to the choice of a shape.

docs/models.md, "Short-horizon forecast". What the live trajectories will ask for in the next seconds may be another mix
of prefill and decode than the mean turn's. Where it overloads one stage while the other has room, for longer than a
flip takes, shapes are compared once more: with that mix, over that horizon, and with switches paid there and back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pearl_planner.choice.costs import flip_seconds
from pearl_planner.choice.evaluate import grid
from pearl_planner.engine.model import decode_seconds, prefill_seconds
from pearl_planner.numbers import clamp
from pearl_planner.prediction.forecast import forecast

if TYPE_CHECKING:
    from pearl_planner.choice.evaluate import Situation
    from pearl_planner.types import Shape, Snapshot

HORIZON_SECONDS = 30.0
OVERLOAD = 1.0
"""Worker-seconds asked of a stage per second and worker."""
ROOM = 0.6
MOST_FACTOR = 4.0


def pressed(snapshot: Snapshot, known: Situation, shape: Shape) -> float | None:
    """By how much more prefill (or less, below 1) than the mean turn is ahead of a shape that is overloaded by it.

    None where no stage is overloaded while the other has room, or nobody knows what lies ahead.
    """
    batch, profile = snapshot.batch, snapshot.profile
    if batch is None or profile is None or not batch.unfinished or not shape.prefill or not shape.decode:
        return None
    running = sum(1 for one in batch.unfinished if one.idle_seconds is None)
    sequences = max(running / shape.decode, 1.0)
    table = known.table_of(shape)
    ahead = forecast(batch.unfinished, profile, table, HORIZON_SECONDS, sequences=sequences)
    load = known.load
    missed = max(load.missed("disaggregated"), 0.0)
    new = max(load.appended_tokens + load.retained_share * load.generated_tokens, 1.0)
    prefill = ahead.prefill_workers * (1.0 + missed / new) / shape.prefill
    decode = ahead.decode_workers / shape.decode
    if not ((prefill > OVERLOAD and decode < ROOM) or (decode > OVERLOAD and prefill < ROOM)):
        return None
    turn = prefill_seconds(table.prefilling, new + missed, max(load.context_tokens - new - missed, 0.0))
    step = decode_seconds(table, sequences, load.context_tokens)
    usual = turn / max(load.generated_tokens * step / sequences, 1e-9)
    mix = ahead.prefill_seconds * (1.0 + missed / new) / max(ahead.decode_seconds, 1e-9)
    return clamp(mix / max(usual, 1e-9), 1.0 / MOST_FACTOR, MOST_FACTOR)


def with_mix(known: Situation, factor: float) -> Situation:
    """The same situation for the next seconds: so many times the prefill a turn, a short horizon, both ways paid."""
    load = replace(known.load, appended_tokens=grid(known.load.appended_tokens * factor), rest=None)
    return replace(known, load=load, horizon_seconds=HORIZON_SECONDS, returns=True, floor_seconds=0.0, feeding=None)


def lasting(since: float | None, measured_flip: float | None, now: float) -> bool:
    """Whether a stage is pressed for longer than a flip takes."""
    return since is not None and now - since > flip_seconds(measured_flip)
