"""The wall clock was set back: instants that were written down move with it, so that nothing waits for the old time.

Otherwise a dwell, a coalescing time or the deadline of a target lasts as much longer as the clock went back.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

from pearl_planner.types import Memory

if TYPE_CHECKING:
    from pearl_planner.types import Snapshot

LEAST_SECONDS: Final = 1.0
"""Less is how clocks are disciplined, and does no harm."""
_INSTANTS: Final = tuple(one.name for one in fields(Memory) if one.name.endswith(("_at", "_since")))


def on_this_clock(snapshot: Snapshot) -> Snapshot:
    """The same snapshot where the clock went on since the last look; else with its instants moved."""
    looked_at, now = snapshot.memory.looked_at, snapshot.now
    if looked_at is None or looked_at - now < LEAST_SECONDS:
        return snapshot
    back, target = looked_at - now, snapshot.target
    moved: dict[str, Any] = {name: _earlier(getattr(snapshot.memory, name), back) for name in _INSTANTS}
    under_way = tuple(replace(one, since=max(one.since - back, 0.0)) for one in snapshot.memory.under_way)
    if target is not None:
        target = replace(target, started_at=target.started_at - back, deadline=target.deadline - back)
    return replace(snapshot, memory=replace(snapshot.memory, under_way=under_way, **moved), target=target)


def _earlier(instant: float | None, seconds: float) -> float | None:
    return None if instant is None else max(instant - seconds, 0.0)
