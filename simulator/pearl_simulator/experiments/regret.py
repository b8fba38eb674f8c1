"""Regret of PEARL against the best simple policy on random workloads, paired by seed.

Which simple policy is the best of a workload is found on training seeds, so that the luck of the reported ones does
not choose it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pearl_simulator.experiments.cells import MODELS, calibrated
from pearl_simulator.experiments.common import Job, Rows, rows
from pearl_simulator.experiments.policies import tuned
from pearl_simulator.reporting.statistics import Interval, mean_interval
from pearl_simulator.types import Feeding, Fleet, Router, Scenario, Training
from pearl_simulator.workloads.presets import random_workload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pearl_simulator.experiments.common import Row
    from pearl_simulator.reporting.parallel import Pool

SIMPLE = ("rlboost+", "ratio:1P3D", "ratio:1P1D", "ratio:3P1D", "prorsa-like")
"""Colocated, fixed proportions of prefill and decode, and roles switched by forecast."""
WORKER_COUNTS = (2, 3, 4, 6, 8)
TRAINING_SHIFT = -500
"""Added to a seed: its training seed."""
SECONDS, WARMUP_SECONDS = 3000.0, 900.0
LARGE = 0.03


@dataclass(frozen=True, slots=True)
class Regret:
    """Of one workload."""

    cell: str
    best: str
    share: Interval
    """Throughput of the best simple policy over PEARL's, less 1."""
    apart: float
    """Share of the time that PEARL ran disaggregated."""

    @property
    def significant(self) -> bool:
        """Large, and not by luck."""
        return self.share.value > LARGE and self.share.low is not None and self.share.low > 0.0


def regrets(workloads: int, seed: int, seeds: int, pool: Pool, simulated: Callable[[Job], Row]) -> list[Regret]:
    """One per random workload."""
    cases = [_scenario(seed + k, k) for k in range(workloads)]
    training = [_job(case, rule, seed + TRAINING_SHIFT) for case in cases for rule in SIMPLE]
    trained = rows(pool.map(simulated, training, "simple policies"))
    best = {case.name: max(SIMPLE, key=lambda rule: trained.values(case.name, rule)[0]) for case in cases}
    reported = [
        _job(case, rule, seed + k) for case in cases for rule in (best[case.name], "pearl") for k in range(seeds)
    ]
    found = rows(pool.map(simulated, reported, "regret"))
    return [_regret(found, case.name, best[case.name]) for case in cases]


def _regret(found: Rows, cell: str, best: str) -> Regret:
    pairs: Sequence[tuple[float, float]] = list(zip(found.values(cell, best), found.values(cell, "pearl"), strict=True))
    shares = [mine / theirs - 1.0 for mine, theirs in pairs if theirs > 0]
    return Regret(cell, best, mean_interval(shares), found.mean(cell, "pearl", lambda row: row.disaggregated_share))


def _job(case: Scenario, rule: str, seed: int) -> Job:
    return Job(case.name, rule, rule, tuned(rule, case.calibration.name), case, seed)


def _scenario(seed: int, k: int) -> Scenario:
    """A standing fleet; fleet, model, calibration and feeding change from one workload to the next."""
    workload = random_workload(seed)
    model = tuple(MODELS)[k % 2]
    calibration = "paper" if k % 4 >= 2 else "clean"  # noqa: PLR2004
    feeding = Feeding.BARRIER if k % 3 == 0 else Feeding.REFILL
    count = WORKER_COUNTS[k % len(WORKER_COUNTS)]
    base = Scenario(
        name=f"{workload.name} {model} {calibration} {feeding.value} {count} workers",
        workload=workload,
        calibration=calibrated(calibration, model),
        training=Training(update_seconds=60.0, feeding=feeding),
        horizon_seconds=SECONDS,
        warmup_seconds=WARMUP_SECONDS,
        router=Router(window=workload.groups * workload.group_size),
    )
    return replace(base, fleet=Fleet(2, 2 * count, 0, 0))
