"""The bound as rows beside the policies: the same unit, so that shares of it are ordinary ratios."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pearl_simulator.bounds.bound import bound
from pearl_simulator.bounds.free_fleet import free_fleet
from pearl_simulator.experiments.common import Row, row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pearl_simulator.experiments.common import Job
    from pearl_simulator.reporting.parallel import Pool

BOUND = "bound"
"""The least of the strict terms and of the free fleet."""
STRICT = "strict bound"
FREE = "free fleet"


def bound_rows(
    jobs: Iterable[Job],
    pool: Pool,
    bounded: Callable[[Job], Row],
    freed: Callable[[Job], Row],
) -> list[Row]:
    """Strict bound, free fleet and the lesser of both, per scenario and seed of PEARL's runs.

    A free fleet meets no capacity and no interference, so cells that differ in nothing else share one run.
    """
    mine = [job for job in jobs if job.label == "pearl"]
    strict = pool.map(bounded, mine, "bounds")
    distinct = {_free_key(job): job for job in mine}
    runs = dict(zip(distinct, pool.map(freed, list(distinct.values()), "free fleets"), strict=True))
    free = [replace(runs[_free_key(job)], cell=job.cell) for job in mine]
    least = [
        replace(min(pair, key=lambda row: row.trajectories_per_hour), label=BOUND)
        for pair in zip(strict, free, strict=True)
    ]
    return [*strict, *free, *least]


def _free_key(job: Job) -> tuple[object, ...]:
    what = job.scenario
    return (what.workload, what.calibration.table, what.training, what.router, what.horizon_seconds, job.seed)


def free_row(job: Job) -> Row:
    """The free fleet under a job's scenario; it holds no GPUs that could be compared."""
    return replace(row(job, free_fleet(job.scenario, job.seed)), label=FREE, gpu_hours=0.0, note=FREE)


def bound_row(job: Job) -> Row:
    """Upper bound of any rule there; only its throughput means something."""
    found = bound(job.scenario, job.seed)
    return Row(
        cell=job.cell,
        label=STRICT,
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
