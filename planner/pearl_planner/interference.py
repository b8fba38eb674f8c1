"""What a prefill costs its neighbours beyond the engine formula, learned from the time between their tokens.

docs/models.md, "Interference". On a worker that also prefills x turns per second, each prefill holds the decoding
sequences up for its chunk and for a residual T (the T_over of the PEARL paper's Equation 1; 0 for a clean engine):

    τ = t(n) + x·τ·(chunk + T)      so      T = Σ(τ − t(n)) / Σ(x·τ) − mean chunk
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pearl_planner.engine_model import chunk_seconds, decode_seconds
from pearl_planner.numbers import known

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pearl_planner.engine_model import EngineTable
    from pearl_planner.records import TurnRecord

MIN_PREFILLS = 3.0
"""Prefills that must have been met before anything is said."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Decode on a worker that also prefills, over some time."""

    inter_token_seconds: float
    sequences: float
    """That decoded at a time."""
    context_tokens: float
    prefills_per_second: float
    new_tokens: float
    """Computed per prefill."""
    seconds: float
    """How long this was seen."""


def of_record(record: TurnRecord, *, sequences: float, prefills_per_second: float) -> Observed | None:
    """What one colocated (or local) turn says, with the load of its worker at that time."""
    between = known(record.inter_token_seconds, low=1e-7, high=1e4)
    if between is None or record.route not in ("colocated", "local") or record.generated_tokens < 2:  # noqa: PLR2004
        return None
    cached = known(record.cached_tokens)
    new = record.appended_tokens if cached is None else max(record.context_tokens - cached, 0.0)
    context = record.context_tokens + record.generated_tokens / 2
    return Observed(between, sequences, context, prefills_per_second, new, between * (record.generated_tokens - 1))


def interference_seconds(observed: Iterable[Observed], table: EngineTable) -> float | None:
    """T of the page's formula, at least 0; None while too few prefills were met."""
    late = met = chunks = 0.0
    for one in observed:
        step = decode_seconds(table, one.sequences, one.context_tokens)
        tokens = one.seconds / one.inter_token_seconds if one.inter_token_seconds > 0 else 0.0
        prefills = one.prefills_per_second * one.seconds
        late += tokens * (one.inter_token_seconds - step)
        met += prefills
        chunks += prefills * chunk_seconds(table, one.new_tokens, max(one.context_tokens - one.new_tokens, 0.0))
    return max((late - chunks) / met, 0.0) if met >= MIN_PREFILLS else None
