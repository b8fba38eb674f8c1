"""Sizes of workers by the spec: `spec.engine.parallelism`, and `tensorParallel` for colocated and lent ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl_planner.types import WorkerSizes

if TYPE_CHECKING:
    from pearl_api.rollout import EngineSpec


def worker_sizes(engine: EngineSpec) -> WorkerSizes:
    """For the planner, which knows the rule."""
    stages = engine.parallelism
    return WorkerSizes(
        engine.tensor_parallel,
        prefill_gpus=None if stages is None else stages.prefill,
        decode_gpus=None if stages is None else stages.decode,
    )
