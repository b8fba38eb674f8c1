"""A job whose agents change: decode-heavy, then prefill-heavy, then bound by its environment; and what it achieved."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pearl_simulator.calibration.calibrations import paper
from pearl_simulator.types import Feeding, Fleet, Router, Scenario, Training
from pearl_simulator.workloads.distributions import LogNormal, LogNormalTurns, Mixture, always, simple
from pearl_simulator.workloads.drawn import DrawnWorkload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pearl_simulator.types import BatchResult, Script

MODEL = "Qwen3-8B"


@dataclass(frozen=True, slots=True)
class Phase:
    """So many batches of one kind; the first `settling` of them are not counted."""

    workload: DrawnWorkload
    steps: int
    settling: int


@dataclass(frozen=True, slots=True)
class Phased:
    """One phase after the other."""

    phases: tuple[Phase, ...]
    name: str = "phases"

    @property
    def groups(self) -> int:
        return self.phases[0].workload.groups

    @property
    def group_size(self) -> int:
        return self.phases[0].workload.group_size

    @property
    def steps(self) -> int:
        return sum(phase.steps for phase in self.phases)

    def batch(self, step: int, seed: int) -> Sequence[Script]:
        """The last phase goes on for ever."""
        left = step
        for phase in self.phases:
            if left < phase.steps:
                return phase.workload.batch(step, seed)
            left -= phase.steps
        return self.phases[-1].workload.batch(step, seed)

    def windows(self, batches: Sequence[BatchResult]) -> tuple[tuple[float, float], ...]:
        """When the counted batches of each phase began and ended."""
        found, first = [], 0
        for phase in self.phases:
            begin, end = batches[first + phase.settling - 1], batches[first + phase.steps - 1]
            found.append((begin.consumed_seconds, end.consumed_seconds))
            first += phase.steps
        return tuple(found)

    def rates(self, batches: Sequence[BatchResult]) -> tuple[float, ...]:
        """Consumed trajectories per hour in the counted batches of each phase."""
        size = self.groups * self.group_size
        return tuple(
            3600.0 * size * (phase.steps - phase.settling) / (end - begin)
            for phase, (begin, end) in zip(self.phases, self.windows(batches), strict=True)
        )


def _agents(name: str, **changes: object) -> DrawnWorkload:
    base = DrawnWorkload(
        name=name,
        turns=LogNormalTurns(12, 0.3, 0.4, cap=40),
        first_prompt=always(2048),
        appended=LogNormal(200, 0.7),
        generated=LogNormal(300, 0.7),
        environment=simple(LogNormal(0.3, 0.5)),
        reset=simple(always(1.0)),
        reward_seconds=1.0,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


DECODE_HEAVY = _agents(
    "decode-heavy", first_prompt=always(1024), appended=LogNormal(100, 0.7), generated=LogNormal(1000, 0.7)
)
PREFILL_HEAVY = _agents(
    "prefill-heavy",
    first_prompt=always(8192),
    appended=LogNormal(1500, 0.7),
    generated=LogNormal(60, 0.7),
    missed_share=0.8,
)
ENVIRONMENT_BOUND = _agents(
    "environment-bound",
    generated=LogNormal(60, 0.7),
    environment=Mixture(LogNormal(15.0, 0.8), LogNormal(60.0, 0.8), 0.1),
    reset=simple(LogNormal(8.0, 0.8)),
    reward_seconds=20.0,
)
PHASES = (Phase(DECODE_HEAVY, 8, 4), Phase(PREFILL_HEAVY, 16, 8), Phase(ENVIRONMENT_BOUND, 6, 2))


def smaller(phases: tuple[Phase, ...], groups: int, group_size: int) -> tuple[Phase, ...]:
    """The same agents in batches of another size."""
    return tuple(
        replace(phase, workload=replace(phase.workload, groups=groups, group_size=group_size)) for phase in phases
    )


def scenario(
    phases: tuple[Phase, ...] = PHASES, *, workers: int = 8, update_seconds: float = 30.0, local_append: bool = True
) -> Scenario:
    """Workers of two GPUs, two of them reserved, fed without a gap; two batches may be in flight."""
    workload = Phased(phases)
    return Scenario(
        name="operator",
        workload=workload,
        calibration=paper(MODEL),
        training=Training(update_seconds, Feeding.REFILL, 1),
        horizon_seconds=200_000.0,
        fleet=Fleet(2, 4, 2 * workers - 4, 0),
        router=Router(window=2 * workload.groups * workload.group_size, local_append=local_append),
        max_batches=workload.steps,
    )
