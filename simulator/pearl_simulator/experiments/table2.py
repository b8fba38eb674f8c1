"""The selected prefill:decode ratios of the PEARL paper's Table 2, from its equations with one set of parameters.

The paper gives neither B·ΔL, r nor θ of its runs, so the three free ones (context, r, ΔL) were fitted to the six
ratios; engine constants are the estimates of `Qwen/Qwen3-8B/H100-TP2` with the link of the paper. It shows that the
published equations lead to the published choices, and validates nothing beyond that.
"""

from __future__ import annotations

from dataclasses import dataclass

from pearl_planner.paper_model import PaperModel, ranked

GPUS_PER_WORKER = 2
LENT_GPUS = 16
"""The overlap zone of the paper: all its training GPUs."""
TURNS = 40.0
TOP = 3

MODEL = PaperModel(
    trajectories=64,
    turns=TURNS,
    new_tokens=4000,
    generated_tokens=200,
    decode_fixed_seconds=4.23e-3,
    decode_per_sequence_seconds=(0.0065 + 0.0242 * 16) * 1e-3,  # at a context of 16 K tokens
    prefill_per_token_seconds=25e-6,
    environment_seconds=TURNS * 1.0,
    kv_bytes_per_token=147_456,
    transfer_bytes_per_second=100e9,
    sequence_tokens=16 * 1024,
    worker_kv_tokens=876_000,
)
"""Qwen3-8B, two H100 GPUs per worker, batch 64."""

PUBLISHED: tuple[tuple[int, bool, tuple[str, ...]], ...] = (
    (10, False, ("2P3D",)),
    (10, True, ("4P9D", "5P8D")),  # selected, and measured best (0.4 % apart)
    (12, False, ("3P3D",)),
    (12, True, ("4P10D",)),
    (16, False, ("3P5D",)),
    (16, True, ("4P12D",)),
)
"""(rollout GPUs, with the overlap zone, ratios that count as the published one)."""


@dataclass(frozen=True, slots=True)
class Row:
    """One column of the paper's table."""

    gpus: int
    overlap: bool
    workers: int
    wanted: tuple[str, ...]
    got: str
    top: tuple[tuple[str, float], ...]
    """The best ratios with their predicted seconds per batch, fastest first."""

    @property
    def matches(self) -> bool:
        """Whether the published ratio was chosen."""
        return self.got in self.wanted


@dataclass(frozen=True, slots=True)
class Table2:
    """All six, and the parameters they share."""

    model: PaperModel
    rows: tuple[Row, ...]

    @property
    def matches(self) -> int:
        """How many of the six agree."""
        return sum(row.matches for row in self.rows)


def table2(model: PaperModel = MODEL) -> Table2:
    """Choose a ratio for each of the six fleets; as in the paper's table, only split fleets compete."""
    return Table2(model, tuple(_row(model, *published) for published in PUBLISHED))


def _row(model: PaperModel, gpus: int, overlap: bool, wanted: tuple[str, ...]) -> Row:
    workers = (gpus + (LENT_GPUS if overlap else 0)) // GPUS_PER_WORKER
    best = ranked(model, workers, colocated=False)[:TOP]
    top = tuple((f"{shape.prefill}P{shape.decode}D", seconds) for shape, seconds in best)
    return Row(gpus, overlap, workers, wanted, top[0][0], top)
