"""How slow the workers of a shape are for those that are in them: mean values of every station.

docs/models.md, "Stations". `Stations.slowness` answers for one moment: seconds per turn (prefill with its queue, the
hand-off, neighbours' prefills) and seconds per generated token, given how many trajectories are at the workers and how
many turns begin per second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pearl_planner.engine.model import chunk_seconds, decode_seconds, prefill_seconds, transfer_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from pearl_planner.engine.model import EngineTable
    from pearl_planner.types import Shape

KEPT_POWER = 1.5
"""Prefix caches that hold a share x of what they should keep about x^1.5 of the hits (docs/models.md, "Caches")."""
OVERLOAD_POWER = 4.0


class Turn(NamedTuple):
    """The mean turn of those that run at a moment."""

    context_tokens: float
    local_tokens: float
    """New tokens where the decoding worker prefills."""
    remote_tokens: float
    """New tokens where another worker prefills."""
    local_share: float
    """Share of turns that the decode worker of a disaggregated shape prefills."""
    generated_tokens: float


class Presence(NamedTuple):
    """Who is where."""

    running: float
    """Trajectories in flight."""
    turns_per_second: float
    prefilling: float
    """Trajectories that are in prefill, or in its queue."""
    decoding: float
    local: float = 0.0
    """Trajectories whose prompts decode workers prefill."""


class Slowness(NamedTuple):
    """What a moment costs a trajectory that is in the workers."""

    per_turn: float
    per_token: float
    per_prefill: float
    """Of `per_turn`, the part in prefill stations and their queues."""
    per_local: float = 0.0
    """Of `per_turn`, the part at decode workers that prefill."""


@dataclass(frozen=True, slots=True)
class Stations:
    """One shape on one engine."""

    shape: Shape
    table: EngineTable
    variation: float = 1.0
    """Squared coefficient of variation of the prefill time."""
    placed: float = math.inf
    """Trajectories that were placed evenly on the workers; those that are left of them are not so even."""

    def slowness(self, turn: Turn, at: Presence, contexts: float) -> Slowness:
        """Seconds per turn and per token; `contexts`: trajectories whose history should be in the caches."""
        return self.moment(turn, at.running, contexts)(at)

    def moment(self, turn: Turn, running: float, contexts: float) -> Callable[[Presence], Slowness]:
        """`slowness` while so many run: what follows from that alone is worked out once, for many answers."""
        return self._split(turn, running, contexts) if self.shape.prefill else self._shared(turn, running, contexts)

    def _shared(self, turn: Turn, running: float, contexts: float) -> Callable[[Presence], Slowness]:
        """Colocated: every neighbour's prefill holds a sequence up."""
        table, workers = self.table, float(self.shape.colocated)
        others, room = self._others(running, workers), self._room(turn)
        stall = self._chunk(self.computed(turn.local_tokens, turn.context_tokens, contexts, workers), turn)
        context = turn.context_tokens + turn.generated_tokens / 2

        def slowness(at: Presence) -> Slowness:
            here = 1.0 + (at.prefilling + at.decoding) * others / workers
            held, passes = (here, 1.0) if here <= room else (room, here / room)
            step = decode_seconds(table, held, context)
            per_turn = held * stall * passes
            return Slowness(per_turn + step / 2, step * passes, per_turn)

        return slowness

    def _split(self, turn: Turn, running: float, contexts: float) -> Callable[[Presence], Slowness]:
        """Prefill workers, then the hand-off, then decode workers (with the appends they prefill themselves)."""
        table, workers, local = self.table, self.shape.decode, turn.local_share
        others, room = self._others(running, workers), self._room(turn)
        chunk = self._chunk(turn.local_tokens, turn) if local > 0.0 else 0.0
        context = turn.context_tokens + turn.generated_tokens / 2
        remotely = self._remote(turn, running, contexts)
        hand_off = (1.0 - local) * transfer_seconds(table, turn.remote_tokens)

        def slowness(at: Presence) -> Slowness:
            here = 1.0 + (at.local + at.decoding) * others / workers
            held, passes = (here, 1.0) if here <= room else (room, here / room)
            step = decode_seconds(table, held, context)
            stalls = local * held * chunk * passes if local > 0.0 else 0.0
            per_turn = step / 2 + stalls
            if local >= 1.0:
                return Slowness(per_turn, step * passes, 0.0, stalls)
            remote = (1.0 - local) * remotely(at)
            return Slowness(per_turn + remote + hand_off, step * passes, remote, stalls)

        return slowness

    def _remote(self, turn: Turn, running: float, contexts: float) -> Callable[[Presence], float]:
        """One turn at the prefill workers, with its wait."""
        servers, elsewhere, variation = self.shape.prefill, 1.0 - turn.local_share, self.variation
        table = self.table.prefilling
        tokens = self.computed(turn.remote_tokens, turn.context_tokens, contexts, servers)
        service = prefill_seconds(table, tokens, max(turn.context_tokens - tokens, 0.0))
        others = max(running - 1.0, 0.0) / running

        def seconds(at: Presence) -> float:
            offered = at.turns_per_second * elsewhere * service / servers
            load = min(offered, 1.0) * others
            waiting = max(at.prefilling * others / servers - load, 0.0)
            wait = service * (waiting + pooling(load, servers) * load * (1.0 + variation) / 2)
            # Mean values let a full station do a little more than it can; the power makes the settled flow stay below.
            return (service + wait) * (math.pow(offered, OVERLOAD_POWER) if offered > 1.0 else 1.0)

        return seconds

    def _others(self, running: float, workers: float) -> float:
        """Whom a trajectory meets on its worker, as a share of the mean number there: not itself."""
        if running <= 1.0:
            return 0.0
        even = max(self.placed - workers, 0.0) / (self.placed - 1.0) if math.isfinite(self.placed) else 1.0
        return even * (running - 1.0) / running if self.placed > 1.0 else 0.0

    def _room(self, turn: Turn) -> float:
        """Sequences that a worker can hold; beyond it those that are there take turns."""
        capacity = self.table.kv_capacity_tokens
        return math.inf if capacity is None else max(capacity / max(turn.context_tokens, 1.0), 1.0)

    def _chunk(self, tokens: float, turn: Turn) -> float:
        prefix = max(turn.context_tokens - tokens, 0.0)
        return chunk_seconds(self.table, tokens, prefix) + self.table.interference_seconds

    def computed(self, new_tokens: float, context_tokens: float, contexts: float, workers: float) -> float:
        """New tokens plus the history that no longer fits the caches of the workers that prefill."""
        context = max(context_tokens, 1.0)
        new = min(max(new_tokens, 1.0), context)
        capacity = self.table.prefilling.kv_capacity_tokens
        wanted = contexts * context
        if capacity is None or wanted <= workers * capacity:
            return new
        kept = math.pow(workers * capacity / wanted, KEPT_POWER)
        return new + (1.0 - kept) * (context - new)


def pooling(load: float, servers: int) -> float:
    """Chance that all servers are busy over that one is, by the number of servers: a turn may go to an idle one."""
    if servers <= 1:
        return 1.0
    power = math.sqrt(2.0 * (servers + 1.0)) - 2.0
    return math.pow(max(load, 1e-6), power) / servers
