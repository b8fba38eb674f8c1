"""Which turns a decode worker prefills itself (docs/models.md, "Local append")."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl_planner.engine.model import chunk_seconds, prefill_seconds, transfer_seconds

if TYPE_CHECKING:
    from pearl_planner.engine.model import EngineTable
    from pearl_planner.prediction.mean_turn import Workload


def local_append_tokens(load: Workload, table: EngineTable, *, sequences: float) -> int:
    """Uncached tokens up to which the decode worker prefills itself.

    It holds up its other sequences for the chunk; elsewhere costs the retained tokens again, a step's fixed time and
    the hand-off. The threshold is where both are equal (docs/models.md, "Local append").
    """
    retained = load.retained_share * load.generated_tokens
    held_up = max(sequences - 1.0, 0.0)

    def worth(tokens: float) -> bool:
        chunk = chunk_seconds(table, tokens, load.context_tokens) + table.interference_seconds
        elsewhere = prefill_seconds(table.prefilling, tokens + retained, load.context_tokens)
        return chunk * (1.0 + held_up) <= elsewhere + transfer_seconds(table, tokens + retained)

    threshold = 0
    for power in range(1, 17):
        if not worth(float(2**power)):
            break
        threshold = 2**power
    return threshold


def split_appends(load: Workload, local_below: int) -> tuple[float, float, float]:
    """(share of turns prefilled locally, their mean appended tokens, the mean of the others), from the histogram."""
    total = sum(load.appended_bins)
    if total <= 0 or local_below <= 0:
        return 0.0, 0.0, load.appended_tokens
    middles = [1.5 * 2**k for k in range(len(load.appended_bins))]
    below = [count if 2 ** (k + 1) <= local_below else 0.0 for k, count in enumerate(load.appended_bins)]
    share = sum(below) / total
    weighted = sum(count * middle for count, middle in zip(load.appended_bins, middles, strict=True))
    scale = load.appended_tokens * total / weighted  # keeps the exact mean that the bins only approximate
    local_sum = scale * sum(count * middle for count, middle in zip(below, middles, strict=True))
    if share >= 1.0:
        return 1.0, load.appended_tokens, 0.0
    local_mean = local_sum / sum(below) if share > 0 else 0.0
    return share, local_mean, (load.appended_tokens * total - local_sum) / (total - sum(below))
