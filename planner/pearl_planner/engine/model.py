"""How long one engine step lasts: the table of constants and the formula `t(n, c)`.

Formula (docs/models.md, "Engine step"): for n decoding sequences with `context` tokens each and a prefill chunk of
c tokens behind `prefix` cached ones,

    t = fixed + b₀·n + s·√n + c_kv·n·context  (if n)  +  p₁·c + p₂·(c·prefix + c²/2)  (if c)

where `fixed` is the decode constant A, the prefill constant t₀, or the larger of both for a mixed step: one forward
pass reads the weights once. Interference between prefill and decode is this formula, nothing is added to it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pearl_planner.numbers import known

TRANSFER_BYTES_PER_SECOND = 1e9
"""Between pods over TCP; tables of machines with a faster link say so."""
TRANSFER_FIXED_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class EngineTable:
    """Constants of one model on one kind of worker; all times in seconds per step."""

    name: str
    """`MODEL/HARDWARE`."""
    decode_fixed_seconds: float
    decode_per_sequence_seconds: float
    decode_per_context_token_seconds: float
    prefill_fixed_seconds: float
    prefill_per_token_seconds: float
    prefill_per_token_pair_seconds: float
    """Per pair of a new token and a token that it attends to."""
    decode_per_root_sequence_seconds: float = 0.0
    """Factor of √n: experts read by a growing batch of a mixture-of-experts model."""
    kv_bytes_per_token: float | None = None
    kv_capacity_tokens: int | None = None
    """KV room of one worker; None = unknown, then KV limits nothing."""
    transfer_bytes_per_second: float = TRANSFER_BYTES_PER_SECOND
    transfer_fixed_seconds: float = TRANSFER_FIXED_SECONDS
    measured_with: str = ""
    interference_seconds: float = 0.0
    """Residual of one prefill on a worker that also decodes, beyond the formula: measured on the live fleet, 0 for an
    engine that is as the formula says (the T_over of the PEARL paper's Equation 1)."""
    prefill_worker: EngineTable | None = None
    """Of the prefill workers beside such decode workers, where they are of another size; None = the same."""

    @property
    def prefilling(self) -> EngineTable:
        """The table of prefill workers."""
        return self.prefill_worker or self

    def scaled(self, factor: float) -> EngineTable:
        """The same engine with all step times multiplied (correction measured on the live fleet)."""
        if factor == 1.0:
            return self
        return replace(
            self,
            decode_fixed_seconds=self.decode_fixed_seconds * factor,
            decode_per_sequence_seconds=self.decode_per_sequence_seconds * factor,
            decode_per_context_token_seconds=self.decode_per_context_token_seconds * factor,
            decode_per_root_sequence_seconds=self.decode_per_root_sequence_seconds * factor,
            prefill_fixed_seconds=self.prefill_fixed_seconds * factor,
            prefill_per_token_seconds=self.prefill_per_token_seconds * factor,
            prefill_per_token_pair_seconds=self.prefill_per_token_pair_seconds * factor,
            prefill_worker=self.prefill_worker and self.prefill_worker.scaled(factor),
        )

    def resized(self, factor: float) -> EngineTable:
        """A worker of `factor` times as many GPUs where nobody measured one: work is shared, KV room is added."""
        capacity = self.kv_capacity_tokens
        return replace(
            self.scaled(1.0 / factor),
            name=f"{self.name} x{factor:g}",
            kv_capacity_tokens=None if capacity is None else round(capacity * factor),
        )


def sane_table(table: EngineTable) -> bool:
    """Whether the constants can be used: finite, a positive decode step, no negative prefill."""
    prefill = (table.prefill_fixed_seconds, table.prefill_per_token_seconds, table.prefill_per_token_pair_seconds)
    signed = (
        table.decode_per_sequence_seconds,  # a fit with a √n term may have a negative linear one
        table.decode_per_root_sequence_seconds,
        table.decode_per_context_token_seconds,
    )
    return (
        known(table.decode_fixed_seconds, low=1e-9, high=1e6) is not None
        and all(known(value, high=1e6) is not None for value in prefill)
        and all(known(value, low=-1e6, high=1e6) is not None for value in signed)
        and known(table.transfer_bytes_per_second, low=1.0, high=1e18) is not None
        and known(table.transfer_fixed_seconds, high=1e6) is not None
        and known(table.interference_seconds, high=1e6) is not None
        and (table.prefill_worker is None or sane_table(table.prefill_worker))
    )


def decode_seconds(table: EngineTable, sequences: float, context_tokens: float) -> float:
    """Duration of a step that decodes one token of each of `sequences` (≥ 0, may be a mean)."""
    if sequences <= 0:
        return 0.0
    slope = table.decode_per_sequence_seconds + table.decode_per_context_token_seconds * context_tokens
    root = table.decode_per_root_sequence_seconds
    n = sequences
    if slope < 0 < root:
        n = min(n, (root / (2 * -slope)) ** 2)  # the fit is concave there; a larger batch is never faster
    return table.decode_fixed_seconds + max(0.0, slope * n + root * math.sqrt(n))


def chunk_seconds(table: EngineTable, tokens: float, prefix_tokens: float) -> float:
    """What a chunk of new `tokens` behind a cached prefix adds to a step that decodes anyway."""
    if tokens <= 0:
        return 0.0
    pairs = tokens * prefix_tokens + tokens * tokens / 2
    over_decode = max(0.0, table.prefill_fixed_seconds - table.decode_fixed_seconds)
    return over_decode + table.prefill_per_token_seconds * tokens + table.prefill_per_token_pair_seconds * pairs


def prefill_seconds(table: EngineTable, tokens: float, prefix_tokens: float) -> float:
    """Duration of a step that only prefills `tokens` behind a cached prefix."""
    if tokens <= 0:
        return 0.0
    pairs = tokens * prefix_tokens + tokens * tokens / 2
    return (
        table.prefill_fixed_seconds
        + table.prefill_per_token_seconds * tokens
        + table.prefill_per_token_pair_seconds * pairs
    )


def step_seconds(
    table: EngineTable, sequences: float, context_tokens: float, chunk_tokens: float = 0.0, prefix_tokens: float = 0.0
) -> float:
    """t(n, c): duration of one step with both kinds of work."""
    if sequences <= 0:
        return prefill_seconds(table, chunk_tokens, prefix_tokens)
    return decode_seconds(table, sequences, context_tokens) + chunk_seconds(table, chunk_tokens, prefix_tokens)


def transfer_seconds(table: EngineTable, tokens: float) -> float:
    """Hand-off of the KV of `tokens` from a prefill to a decode worker; unknown KV size counts as none."""
    size = (table.kv_bytes_per_token or 0.0) * max(0.0, tokens)
    return table.transfer_fixed_seconds + size / table.transfer_bytes_per_second
