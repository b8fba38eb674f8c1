"""How an experiment is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pearl_simulator.reporting.parallel import Pool

if TYPE_CHECKING:
    from pathlib import Path

REPORT_SEEDS = 1000
"""Reported seeds are 1000, 1001, …; tuning uses seeds below (`tune.TRAINING_SEEDS`)."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How an experiment is run."""

    pool: Pool = field(default_factory=Pool)
    quick: bool = False
    seeds: int | None = None
    """How many; None = the experiment's own number."""
    seed: int = REPORT_SEEDS
    """The first one."""
    workloads: int | None = None
    file: Path | None = None
    table: str | None = None
    """Shipped engine table to start from, `MODEL/HARDWARE`."""
    processor_time: bool = False
    """Whether recorded steps count by the processor time that they took."""
    write: Path | None = None
    """Where a result that other commands read goes."""

    def seed_list(self, full: int, quick: int) -> tuple[int, ...]:
        """The seeds of this run."""
        count = self.seeds or (quick if self.quick else full)
        return tuple(range(self.seed, self.seed + count))
