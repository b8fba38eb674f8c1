"""What the demo records beside the timeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from examples.common.timeline import Timeline

if TYPE_CHECKING:
    from examples.common.promises import Promise
    from examples.common.trainer_pod import Batch, Step


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


@dataclass(slots=True)
class Record(Timeline):
    """Everything that the report shows."""

    loads: list[LoadResult] = field(default_factory=list)
    frozen: list[Batch] = field(default_factory=list)
    """Batches of the untrained policy."""
    steps: list[Step] = field(default_factory=list)
    loads_checked: LoadResult | None = None
    """The run whose every token was compared."""
    scales: list[str] = field(default_factory=list)
    """Sentences on how recorded sessions were scaled."""
    checks: list[Promise] = field(default_factory=list)
