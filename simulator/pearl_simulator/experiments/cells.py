"""The cells of the end-to-end comparison: two models on three spot segments, in the PEARL paper's set-up.

32 GPUs: 16 train, 4 are reserved for rollout, up to 12 are preemptible and follow a recorded trace; two GPUs per
worker, batches of 64 trajectories in groups of 16, 32 K tokens of context, staleness 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pearl_simulator.calibration import calibrations
from pearl_simulator.types import Fleet, Router, Scenario, Training
from pearl_simulator.workloads.capacity import segments

if TYPE_CHECKING:
    from pearl_simulator.types import Calibration
    from pearl_simulator.workloads.capacity import Segment
    from pearl_simulator.workloads.drawn import DrawnWorkload

MODELS = {"8B": "Qwen/Qwen3-8B", "30B-A3B": "Qwen/Qwen3-30B-A3B"}
SEGMENTS = ("S1", "S2", "S3")
CALIBRATIONS = ("paper", "clean")
WINDOW = 64
"""Of the headline: one batch in flight."""
TRAINING_GPUS = 16
LOOK_SECONDS = 20.0
"""Longest time between two looks of a rule, the same for all; events wake it earlier. Looks every 10 s change PEARL's
throughput by less than its seeds do and cost twice the time."""
FULL, SHORT, QUICK = (7200.0, 900.0), (3000.0, 900.0), (1500.0, 500.0)
"""Seconds of a run, and of its warm-up: the whole segment, a part of it, the least that says something."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One column of the comparison."""

    model: str
    """Key of `MODELS`."""
    segment: str
    calibration: str
    window: int | None = WINDOW
    """None = automatic."""

    @property
    def name(self) -> str:
        """For tables: `8B S1`."""
        return f"{self.model} {self.segment}"

    @property
    def key(self) -> str:
        """For rows: names the calibration and the window as well."""
        return f"{self.name} {self.calibration} {'auto' if self.window is None else self.window}"


def cells(calibration: str, window: int | None = WINDOW) -> tuple[Cell, ...]:
    """All six under one calibration."""
    return tuple(Cell(model, segment, calibration, window) for model in MODELS for segment in SEGMENTS)


def calibrated(calibration: str, model: str) -> Calibration:
    """`paper` or `clean` engines of a key of `MODELS`, on two H100 GPUs."""
    return calibrations.clean(MODELS[model]) if calibration == "clean" else calibrations.paper(MODELS[model])


def workload(model: str) -> DrawnWorkload:
    """Of both calibrations, so that only the engines differ: the one that was fitted together with `paper`."""
    return calibrations.paper_workload(MODELS[model])


def segment(name: str) -> Segment:
    """S1, S2 or S3."""
    return next(one for one in segments() if one.name == name)


def scenario(cell: Cell, *, quick: bool, length: tuple[float, float] = FULL) -> Scenario:
    """What every elastic policy of the cell meets, for `length`; `quick` is shorter still."""
    horizon, warmup = QUICK if quick else length
    return Scenario(
        name=cell.key,
        workload=workload(cell.model),
        calibration=calibrated(cell.calibration, cell.model),
        training=Training(calibrations.update_seconds(TRAINING_GPUS)),
        horizon_seconds=horizon,
        warmup_seconds=warmup,
        costs=calibrations.costs(MODELS[cell.model]),
        router=Router(window=cell.window),
        capacity=segment(cell.segment).changes,
        look_seconds=LOOK_SECONDS,
    )


def fixed(base: Scenario, gpus: int) -> Scenario:
    """The same with this many reserved rollout GPUs and no others."""
    fleet = Fleet(base.fleet.gpus_per_worker, gpus, 0, 0)
    return replace(base, name=f"{base.name} {gpus} GPUs", fleet=fleet, capacity=())


def mean_gpus(cell: Cell) -> int:
    """The segment's mean of rollout GPUs, rounded up to even: the paper's ROLL-Large."""
    return 2 * math.ceil(segment(cell.segment).mean_gpus / 2)
