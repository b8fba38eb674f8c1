"""GPUs of one worker, by its role: `spec.engine.parallelism`, and `tensorParallel` for colocated and lent workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl_api.names import Role

if TYPE_CHECKING:
    from pearl_api.rollout import EngineSpec


def gpus_of(engine: EngineSpec, role: Role) -> int:
    """Of a worker that is made for this role."""
    stages = engine.parallelism
    if stages is None or role is Role.COLOCATED:
        return engine.tensor_parallel
    return stages.prefill if role is Role.PREFILL else stages.decode


def worker_sizes(engine: EngineSpec) -> tuple[int, ...]:
    """Every size that a worker may have."""
    return tuple(sorted({gpus_of(engine, role) for role in Role}))
