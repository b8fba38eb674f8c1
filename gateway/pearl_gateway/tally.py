"""Counters and gauges of one process; the numbers behind `/v1/stats` and `/metrics`."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pearl_api.wire.gateway import Counters

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_TOTALS = (*Counters.model_fields, "mixed_versions", "storage_errors")
_BY_CAUSE = ("degraded", "breaks", "ages_at_consumption")


def by_cause(totals: Mapping[str, int], kind: str) -> dict[str, int]:
    """Totals of one kind, by cause."""
    return {name.removeprefix(f"{kind}."): count for name, count in totals.items() if name.startswith(f"{kind}.")}


@dataclass(slots=True)
class Tally:
    """Totals since start, and what is going on now."""

    turns: int = 0
    trajectories_finished: int = 0
    trajectories_aborted: int = 0
    generated_tokens: int = 0
    prefilled_tokens: int = 0
    wasted_tokens: int = 0
    handoffs: int = 0
    handoff_failures: int = 0
    local_appends: int = 0
    resumes: int = 0
    lost_turns: int = 0
    prefix_broken: int = 0
    degraded_turns: int = 0
    mixed_versions: int = 0
    """Hand-offs whose decode worker changed weights between the check and the request; recomputed if possible."""
    asked_at: float | None = None
    """Monotonic time at which a turn, permit or batch was last asked for, or a turn ended."""
    turns_queued: int = 0
    turns_prefilling: int = 0
    turns_in_flight: int = 0
    eval_turns_in_flight: int = 0
    storage_errors: int = 0
    """Lines that could not be written: what they hold is in memory only, and lost with the process."""
    degraded: dict[str, int] = field(default_factory=dict)
    """`degraded_turns` by cause, see `router.Route`."""
    breaks: dict[str, int] = field(default_factory=dict)
    """`prefix_broken` by cause: `edited` history, a `template` that does not join, `forgotten`, or sent as `ids`."""
    ages_at_consumption: dict[str, int] = field(default_factory=dict)

    def totals(self) -> dict[str, int]:
        """Everything that only grows, by name; those by cause or age as `name.cause`."""
        found = {name: getattr(self, name) for name in _TOTALS}
        for kind in _BY_CAUSE:
            found |= {f"{kind}.{cause}": count for cause, count in getattr(self, kind).items()}
        return found

    def asked_seconds(self, now: float) -> float | None:
        """See `GatewayStats`."""
        if self.turns_in_flight:
            return 0.0
        return None if self.asked_at is None else now - self.asked_at

    @contextmanager
    def queued(self) -> Iterator[None]:
        """A turn waits for a worker while the block runs."""
        self.turns_queued += 1
        try:
            yield
        finally:
            self.turns_queued -= 1

    @contextmanager
    def prefilling(self) -> Iterator[None]:
        """A turn is prefilled on another worker while the block runs."""
        self.turns_prefilling += 1
        try:
            yield
        finally:
            self.turns_prefilling -= 1
