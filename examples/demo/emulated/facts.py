"""What act 1 records: samples of the fleet, what happened, and what was kept. Times are seconds of the trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from examples.common.promises import Promise
    from examples.common.timeline import DecisionFact
    from pearl_dev.virtual.trainer_pod import Reclaim


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at the rollout's status, the machines and the trainer."""

    at: float
    reserved: int
    """GPUs that worker pods hold, by zone."""
    elastic: int
    borrowed: int
    spot: int
    """Spot GPUs that there are."""
    prefill: int
    """Workers by role, of the status."""
    decode: int
    colocated: int
    ready: int
    mode: str
    training: bool
    """The trainer updates; otherwise it waits for its batch."""
    lent: bool
    predicted_seconds: float | None
    """Of a batch at the rate that the planner predicts for the shape it decided for."""
    fixed_seconds: float | None
    """The same of the reserved GPUs alone, colocated."""


@dataclass(frozen=True, slots=True)
class Told:
    """Something that happened, and who tells it."""

    at: float
    who: str
    text: str


@dataclass(frozen=True, slots=True)
class Switch:
    """From one mode to the other."""

    at: float
    before: str
    after: str


@dataclass(slots=True)
class Record:
    """Everything that view and report show."""

    samples: list[Sample] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    decisions: list[DecisionFact] = field(default_factory=list)
    switches: list[Switch] = field(default_factory=list)
    notices: list[float] = field(default_factory=list)
    """When the end of a spot node with a worker was announced."""
    reclaims: list[Reclaim] = field(default_factory=list)
    phases: list[tuple[float, str]] = field(default_factory=list)
    """When a batch of other agents was the oldest one open."""
    batches: list[float] = field(default_factory=list)
    """When each was consumed."""
    fixed_batches: list[float] = field(default_factory=list)
    """The same of the reserved GPUs alone, simulated apart."""
    begun: int = 0
    ended: int = 0
    live: int = 0
    """Trajectories."""
    held_while_training: int = 0
    """Looks at which a training GPU was held by a worker while the trainer updated."""
    checks: list[Promise] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Use:
    """GPU-hours."""

    spot: float
    """That there were."""
    given_back: float
    """Of them, those that no worker held."""
    training: float
    lent: float
    idle: float
    """Of the training GPUs."""


def use(record: Record, training_gpus: int) -> Use:
    """Summed over the samples."""
    spot = given_back = 0.0
    hours = {"training": 0.0, "lent": 0.0, "idle": 0.0}
    for one, following in zip(record.samples, record.samples[1:], strict=False):
        span = (following.at - one.at) / 3600.0
        spot += span * one.spot
        given_back += span * max(one.spot - one.elastic, 0)
        hours["training" if one.training else "lent" if one.lent else "idle"] += span * training_gpus
    return Use(spot, given_back, hours["training"], hours["lent"], hours["idle"])
