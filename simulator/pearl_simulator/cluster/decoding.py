"""The turns that decode on one worker, as a fluid between events.

A virtual token clock V advances by one per step. The step time is `engine_model.decode_seconds(n, mean context)` and
grows linearly with V, since every context grows by a token per step; so V₁ - V₀ steps take (V₁ - V₀) times the mean of
the first and the last step time, exactly where the formula is linear in the context. A turn that joins at V with r
tokens to go ends at V + r.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import sqrt
from typing import TYPE_CHECKING

from pearl_planner.engine.model import decode_seconds
from pearl_simulator.cluster.jobs import Stage

if TYPE_CHECKING:
    from pearl_simulator.cluster.jobs import Job
    from pearl_simulator.types import Calibration

NEAR = 1e-6
"""Tokens; what is nearer has arrived."""


class Load:
    """What an engine did since it was last asked, as its metrics would say."""

    __slots__ = ("busy", "decoding", "generated", "prefilled", "sequence_seconds")

    def __init__(self) -> None:
        self.busy = 0.0
        self.decoding = 0.0
        """Seconds in which something decoded."""
        self.sequence_seconds = 0.0
        self.generated = 0.0
        self.prefilled = 0

    def add(self, seconds: float, sequences: int, steps: float) -> None:
        """So many sequences made so many steps."""
        self.busy += seconds
        if sequences:
            self.decoding += seconds
            self.sequence_seconds += sequences * seconds
            self.generated += sequences * steps


class Decoding:
    """Members with the V at which each ends, soonest first."""

    __slots__ = (
        "_base",
        "_host",
        "_linear",
        "_order",
        "_slope",
        "_table",
        "_tau",
        "overflows",
        "running",
        "since",
        "target",
        "v",
    )

    def __init__(self, calibration: Calibration) -> None:
        table = calibration.table
        self._table = table
        self._host = calibration.host_seconds
        self._linear = (
            table.decode_per_root_sequence_seconds == 0.0
            and table.decode_per_context_token_seconds >= 0.0
            and table.decode_per_sequence_seconds >= 0.0
        )
        """The step time is linear in the contexts; otherwise it is interpolated from change to change."""
        self.running: list[tuple[float, int, Job]] = []
        self.v = 0.0
        self.since = 0.0
        """When V had its value."""
        self.target = 0.0
        """V of the next end, or at which the KV is full."""
        self.overflows = False
        self._base = 0.0
        """Σ context − n·V."""
        self._tau = 0.0
        self._slope = 0.0
        self._order = 0

    def contexts(self) -> float:
        """Tokens of KV, of all members."""
        return self._base + len(self.running) * self.v

    def settle(self, now: float, load: Load) -> None:
        """Bring V to now; nothing else ran meanwhile."""
        seconds = now - self.since
        self.since = now
        n = len(self.running)
        if seconds <= 0.0 or n == 0:
            return
        tau, slope = self._tau, self._slope
        gained = 2.0 * seconds / (tau + sqrt(tau * tau + 2.0 * slope * seconds))
        self.v += gained
        self._tau = tau + slope * gained
        load.add(seconds, n, gained)

    def plan(self, now: float, room: float | None) -> float:
        """When the next turn ends, or the KV is full; `room` more tokens fit. Only with members."""
        running = self.running
        n, v, target = len(running), self.v, running[0][0]
        self.overflows = room is not None and n * (target - v) > room
        if self.overflows and room is not None:
            target = v + max(room, 0.0) / n
        span = target - v if target > v else 0.0
        context = self._base / n + v
        tau, slope = decode_seconds(self._table, n, context) + self._host, 0.0
        if self._linear:
            slope = n * self._table.decode_per_context_token_seconds
        elif span > 0.0:
            end = decode_seconds(self._table, n, context + span) + self._host
            slope = (end - tau) / span if end > tau else 0.0
        self._tau, self._slope, self.target, self.since = tau, slope, target, now
        return now + span * (tau + slope * span / 2.0)

    def join(self, job: Job, context: int, left: int, ahead: float) -> None:
        """A new member with `left` tokens to go, which counts from `ahead` steps on."""
        at = self.v + ahead
        job.done += job.left - left
        job.left = left
        job.joined_v = at
        job.joined_context = context
        job.stage = Stage.DECODING
        self._base += context - at
        self._order += 1
        heappush(self.running, (at + left * job.noise, self._order, job))

    def leave(self, job: Job, ahead: int) -> None:
        """A member goes before its end; `job.done` tells what it made, `ahead` steps beyond V included."""
        made = (self.v + ahead - job.joined_v) / job.noise
        job.done += max(min(int(made + NEAR), job.left - 1), 0)
        self.running = [entry for entry in self.running if entry[2] is not job]
        heapify(self.running)
        self._base -= job.joined_context - job.joined_v

    def ended(self) -> Job | None:
        """A member that is complete, taken out; None = no further one."""
        running = self.running
        if not running or running[0][0] > self.v + NEAR:
            return None
        job = heappop(running)[2]
        self._base -= job.joined_context - job.joined_v
        if not running:
            self._base = self.v = 0.0
        job.done += job.left
        job.left = 0
        return job

    def youngest(self) -> Job:
        """The member that joined last."""
        return max(self.running, key=lambda entry: entry[1])[2]

    def clear(self) -> None:
        """No members."""
        self.running.clear()
        self._base = self.v = 0.0
