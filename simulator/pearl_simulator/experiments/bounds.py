"""The bound as rows beside the policies: the same unit, so that shares of it are ordinary ratios."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl_simulator.bound import bound
from pearl_simulator.experiments.common import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pearl_simulator.experiments.common import Job
    from pearl_simulator.parallel import Pool

BOUND = "bound"


def bound_rows(jobs: Iterable[Job], pool: Pool, bounded: Callable[[Job], Row]) -> list[Row]:
    """One per scenario and seed of PEARL's runs."""
    return pool.map(bounded, [job for job in jobs if job.label == "pearl"], "bounds")


def bound_row(job: Job) -> Row:
    """Upper bound of any rule there; only its throughput means something."""
    found = bound(job.scenario, job.seed)
    return Row(
        cell=job.cell,
        label=BOUND,
        seed=job.seed,
        tokens_per_second=0.0,
        trajectories_per_hour=found.trajectories_per_hour,
        batches=0,
        gpu_hours=0.0,
        borrowed_gpu_hours=0.0,
        trainer_waiting_share=0.0,
        prefilled_per_generated=0.0,
        recomputed_share=0.0,
        changes=0,
        disaggregated_share=0.0,
        mean_age=None,
        simulated_seconds=0.0,
        wall_seconds=0.0,
        plan_seconds=0.0,
        note=found.binds,
    )
