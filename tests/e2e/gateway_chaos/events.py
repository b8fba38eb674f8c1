"""What happens, drawn from a seed: the same seed gives the same events to the same workers with the same pauses."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Kind(StrEnum):
    """An event."""

    KILL = "engine kill"
    REPLACE = "pod replaced"
    DRAIN = "drain"
    SLEEP = "sleep"
    FLIP = "flip"
    RECLAIM = "reclaim"
    UPDATE = "weight update"
    TORN = "failed weight load"
    LEASE = "KV lease expiry"
    PARTITION = "partition"
    KV_PARTITION = "KV partition"
    CUT = "broken connections"
    GATEWAY_STALL = "gateway stands still"
    GATEWAY_KILL = "gateway kill"
    GATEWAY_RESTART = "gateway restart"


WEIGHTS = {
    Kind.KILL: 16,
    Kind.REPLACE: 4,
    Kind.DRAIN: 9,
    Kind.SLEEP: 3,
    Kind.FLIP: 18,
    Kind.RECLAIM: 12,
    Kind.UPDATE: 3,
    Kind.TORN: 0.5,
    Kind.LEASE: 12,
    Kind.PARTITION: 6,
    Kind.KV_PARTITION: 6,
    Kind.CUT: 6,
    Kind.GATEWAY_STALL: 0.6,
    Kind.GATEWAY_KILL: 0.4,
    Kind.GATEWAY_RESTART: 0.2,
}
"""How often each is drawn, compared with the others."""
REAL_WEIGHTS = {**WEIGHTS, Kind.KILL: 4, Kind.REPLACE: 1, Kind.SLEEP: 1.5}
"""The same with real engines, whose start takes half a minute of a core: fewer of them die, more happens."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event; `victim` and `chance` are shares in [0, 1) of whatever there is to choose from."""

    number: int
    kind: Kind
    victim: float
    chance: float
    pause: float
    """Share of the mean pause before it, 1 on average."""


def schedule(seed: str, count: int, kinds: dict[Kind, float]) -> Iterator[Event]:
    """`count` events."""
    draw = random.Random(f"{seed}/events")
    names, weights = list(kinds), list(kinds.values())
    for number in range(count):
        (kind,) = draw.choices(names, weights)
        yield Event(number, kind, draw.random(), draw.random(), draw.expovariate(1.0))
