"""Predicted against simulated makespans of fixed shapes, on random workloads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from pearl_planner.prediction.predict import predict_makespan
from pearl_planner.types import Shape
from pearl_simulator.experiments.cells import MODELS, calibrated
from pearl_simulator.experiments.facts import new_batch, profile_of
from pearl_simulator.rules import make_rule
from pearl_simulator.run import run
from pearl_simulator.types import Feeding, Fleet, Router, Scenario, Training
from pearl_simulator.workloads.presets import random_workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pearl_simulator.workloads.drawn import DrawnWorkload

PROFILE_BATCHES = 100
PROFILE_SEED = 500_000
"""Added to the seed: the profile was measured on other batches than those that are predicted."""
ENDLESS_SECONDS = 1e7
WORKER_COUNTS = (2, 3, 4, 6, 8)
DIFFERENT = 0.02
"""Pairs of shapes nearer than this need not be told apart."""


@dataclass(frozen=True, slots=True)
class Question:
    """One workload on one fixed shape."""

    workload: DrawnWorkload
    shape: Shape
    model: str
    """Key of `cells.MODELS`."""
    seed: int
    batches: int

    @property
    def key(self) -> str:
        """Shapes of one workload are compared with each other."""
        return f"{self.workload.name} {self.model}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What was predicted, and what the simulated batches took."""

    key: str
    shape: str
    predicted: float | None
    """None = the predictor gives no number for it."""
    mean: float
    error_of_mean: float
    """Standard error, as a share of the mean."""
    below: tuple[float, float, float]
    """Share of the batches below the predicted 10, 50 and 90 % quantiles."""
    batches: int

    @property
    def error(self) -> float | None:
        """Relative, unsigned."""
        return None if self.predicted is None else abs(self.predicted / self.mean - 1.0)


def questions(workloads: int, seed: int, batches: int) -> list[Question]:
    """Three shapes of each random workload; fleet and model change from one to the next."""
    found = []
    for k in range(workloads):
        count = WORKER_COUNTS[k % len(WORKER_COUNTS)]
        model = tuple(MODELS)[k % 2]
        workload = random_workload(seed + k)
        found += [Question(workload, shape, model, seed + k, batches) for shape in shapes(count)]
    return found


def shapes(count: int) -> tuple[Shape, ...]:
    """Colocated, few and many prefill workers."""
    splits = sorted({max(1, count // 4), count // 2})
    return (Shape(colocated=count), *(Shape(prefill=p, decode=count - p) for p in splits))


def ask(question: Question) -> Answer:
    """Predicts and simulates. A function of a module, so that it can be sent to another process."""
    scenario = batch_scenario(question)
    table = scenario.calibration.table
    known = profile_of(question.workload, batches=PROFILE_BATCHES, seed=question.seed + PROFILE_SEED)
    size = question.workload.groups * question.workload.group_size
    guess = predict_makespan(known, question.shape, table, new_batch(question.workload), window=size)
    taken = makespans(scenario, question.shape, question.seed)
    quantiles = () if guess is None else (guess.q10, guess.q50, guess.q90)
    shares = [sum(one <= limit for one in taken) / len(taken) for limit in quantiles] or [0.0] * 3
    return Answer(
        key=question.key,
        shape=str(question.shape),
        predicted=None if guess is None else guess.mean,
        mean=fmean(taken),
        error_of_mean=stdev(taken) / len(taken) ** 0.5 / fmean(taken) if len(taken) > 1 else 0.0,
        below=(shares[0], shares[1], shares[2]),
        batches=len(taken),
    )


def batch_scenario(question: Question) -> Scenario:
    """Batches one after the other on a standing fleet, nothing between them."""
    calibration = calibrated("clean", question.model)
    per = Fleet().gpus_per_worker
    base = Scenario(
        name=question.key,
        workload=question.workload,
        calibration=calibration,
        training=Training(update_seconds=0.1, feeding=Feeding.BARRIER),
        horizon_seconds=ENDLESS_SECONDS,
        fleet=Fleet(per, question.shape.workers * per, 0, 0),
        router=Router(window=question.workload.groups * question.workload.group_size),
        max_batches=question.batches + 1,
    )
    return replace(base, costs=replace(base.costs, start_seconds=0.1, weights_seconds=0.0))


def makespans(scenario: Scenario, shape: Shape, seed: int) -> list[float]:
    """Seconds of each batch but the first, in which the fleet starts."""
    colocated = shape.colocated > 0
    name = f"colocated:{shape.colocated}" if colocated else f"fixed:{shape.prefill}P{shape.decode}D"
    result = run(scenario, make_rule(name, {}), seed, rule_name=name)
    return [batch.ready_seconds - batch.opened_seconds for batch in result.batches[1:]]


def ranking_right(answers: Sequence[Answer]) -> tuple[int, int]:
    """(pairs of shapes told apart rightly, pairs that differ) over all workloads."""
    right = pairs = 0
    for one in answers:
        for other in answers:
            if one.key != other.key or one.shape >= other.shape or one.predicted is None or other.predicted is None:
                continue
            if abs(one.mean / other.mean - 1.0) > DIFFERENT:
                pairs += 1
                right += (one.mean < other.mean) == (one.predicted < other.predicted)
    return right, pairs
