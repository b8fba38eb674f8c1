"""What happened when: plain facts with times in seconds since the start of the sampler."""

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
class LoanSample:
    """One look at a GPULoan."""

    at: float
    phase: str


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


@dataclass(slots=True)
class Timeline:
    """All of it."""

    samples: list[FleetSample] = field(default_factory=list)
    loans: list[LoanSample] = field(default_factory=list)
    decisions: list[DecisionFact] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)

    def of(self, rollout: str) -> list[FleetSample]:
        """The looks at one PearlRollout."""
        return [sample for sample in self.samples if sample.rollout == rollout]
