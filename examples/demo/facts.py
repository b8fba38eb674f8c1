"""What the demo records: plain facts with times in seconds since its start."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FleetSample:
    """One look at a PearlRollout and its gateway."""

    at: float
    rollout: str
    prefill: int
    decode: int
    colocated: int
    borrowed: int
    ready: int
    generated_tokens: int | None
    """Since the gateway's start; None while it does not answer."""
    prefilled_tokens: int | None


@dataclass(frozen=True, slots=True)
class DecisionFact:
    """One decision of the operator, as its status told it."""

    at: float
    rollout: str
    reason: str
    shape: str
    message: str


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened on purpose: a phase began, a worker was killed."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What `pearl-load` measured in one phase."""

    phase: str
    fleet: str
    """`pearl` or `fixed colocated`."""
    seconds: float
    trajectories: int
    turns: int
    generated_tokens: int
    lost_turns: int
    mismatched_turns: int | None
    """Answers that differ from an undisturbed engine's; None = not checked."""
    resumed_turns: int | None


@dataclass(frozen=True, slots=True)
class TrainStep:
    """One update of the trainer, as it printed it."""

    step: int
    at: float
    reward: float
    rollout_seconds: float
    train_seconds: float
    reclaim_seconds: float | None
    """None = it was not lent."""
    deadline_seconds: float
    engine_killed: bool
    lent_seconds: float
    version: int
    logprob_gap: float


@dataclass(slots=True)
class Record:
    """Everything that the report shows."""

    samples: list[FleetSample] = field(default_factory=list)
    decisions: list[DecisionFact] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    loads: list[LoadResult] = field(default_factory=list)
    steps: list[TrainStep] = field(default_factory=list)
    loads_checked: LoadResult | None = None
    """The run whose every token was compared."""
    scales: list[str] = field(default_factory=list)
    """Sentences on how recorded sessions were scaled."""
    borrowed_turns: int = 0
    """Turns of the trainer's batches that a borrowed worker prefilled or generated."""
    rollout_turns: int = 0
    checks: list[tuple[str, bool, str]] = field(default_factory=list)
    """(promise, kept, what was seen)."""
