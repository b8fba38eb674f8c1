"""`dynamo-like`: prefill and decode sized separately by load and latency targets, as serving autoscalers do.

Prefill workers for the measured turn rate at a target utilisation and for the backlog within a time-to-first-token
target; decode workers so that the sequences decode within an inter-token target; both cut in proportion to what the
GPUs allow. Such scalers do not change the role of a running worker: a role change is modelled as one elastic worker
deleted and, when it is gone, another one started with the other role. Reserved workers cannot be given away, so where
the surplus stands on them they are flipped in place, which favours this rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pearl_planner.engine.model import decode_seconds, prefill_seconds
from pearl_planner.facts import sizes
from pearl_planner.fleet.shapes import carried_shape
from pearl_planner.types import Mode, Role, Shape
from pearl_simulator.rules.base import NoLoans, decision, load_of, present_shape, remote_tokens, serving, table_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pearl_planner.choice.decide import Decision
    from pearl_planner.prediction.mean_turn import Workload
    from pearl_planner.types import Policy, Snapshot, Worker

MAX_SEQUENCES = 1024


@dataclass(slots=True)
class DynamoRule(NoLoans):
    """Mutable by design: it holds the last needs and a replacement that is half done. One instance per run."""

    interval_seconds: float = 60.0
    """Between two adjustments."""
    inter_token_factor: float = 1.3
    """Inter-token target, in times of that of a single sequence."""
    first_token_seconds: float = 2.0
    """Time-to-first-token target."""
    utilisation: float = 0.4
    """Of prefill workers."""
    down_patience: int = 3
    """Adjustments for which fewer workers must have been enough before some are given back."""
    colocated_below: int = 0
    """Fewer workers than this are deployed aggregated."""
    _adjusted_at: float | None = None
    _needs: list[tuple[int, int]] = field(default_factory=list)
    _replacement: Shape | None = None

    def decide(self, snapshot: Snapshot, policy: Policy) -> Decision:
        """The next stage of a replacement, or the shape for the present load."""
        room = sizes(snapshot)
        present = present_shape(snapshot)
        if self._replacement is not None and present.workers < self._replacement.workers:
            wanted, self._replacement = self._replacement, None
            return self._sized(snapshot, policy, wanted)
        load = load_of(snapshot, policy)
        due = self._adjusted_at is None or snapshot.now - self._adjusted_at >= self.interval_seconds
        top = room.fixed + room.elastic_high
        if top < self.colocated_below or top < 2 or Mode.DISAGGREGATED not in policy.modes:  # noqa: PLR2004 - two stages need two workers
            return decision(snapshot, policy, room.elastic_high, Shape(colocated=top), "aggregated")
        if load is None or not due:
            count = top if load is None else room.fixed + room.elastic_kept
            carried = carried_shape(present, count, policy)
            return decision(snapshot, policy, count - room.fixed, carried, "until the next adjustment")
        self._adjusted_at = snapshot.now
        self._needs = [*self._needs, self._need(snapshot, policy, load)][-max(self.down_patience, 1) :]
        need = (max(p for p, _ in self._needs), max(d for _, d in self._needs))
        wanted = _fit(*need, low=room.fixed + room.elastic_low, high=top)
        return self._towards(snapshot, policy, present, wanted)

    def _need(self, snapshot: Snapshot, policy: Policy, load: Workload) -> tuple[int, int]:
        """Prefill and decode workers that the targets ask for; both at least one."""
        table = table_of(snapshot, policy)
        prefills, decoders = (serving(snapshot, role, Role.COLOCATED) for role in (Role.PREFILL, Role.DECODE))
        new = remote_tokens(load)
        seconds = prefill_seconds(table, new, load.context_tokens - new)
        rate = _generated_per_second(snapshot, decoders) / load.generated_tokens
        split_up = present_shape(snapshot).mode is Mode.DISAGGREGATED
        backlog = sum(w.in_flight or 0 for w in prefills) * seconds if split_up else 0.0
        prefill = math.ceil(max(rate * seconds / self.utilisation, backlog / self.first_token_seconds))
        decoding = sum(w.in_flight or 0 for w in decoders)
        limit = self.inter_token_factor * decode_seconds(table, 1.0, load.context_tokens)
        room = next(
            n for n in range(1, MAX_SEQUENCES + 1)
            if n == MAX_SEQUENCES or decode_seconds(table, n + 1.0, load.context_tokens) > limit
        )  # fmt: skip
        return max(prefill, 1), max(math.ceil(decoding / room), 1)

    def _towards(self, snapshot: Snapshot, policy: Policy, present: Shape, wanted: Shape) -> Decision:
        """Straight there where workers are only added or removed, else the surplus role goes first."""
        room = sizes(snapshot)
        between = Shape(0, min(present.prefill, wanted.prefill), min(present.decode, wanted.decode))
        moved = min(present.workers, wanted.workers) - between.workers
        if moved > 0 and present.mode is Mode.DISAGGREGATED and between.workers >= room.fixed + room.elastic_low:
            self._replacement = wanted
            return self._sized(snapshot, policy, between)
        return self._sized(snapshot, policy, wanted)

    @staticmethod
    def _sized(snapshot: Snapshot, policy: Policy, wanted: Shape) -> Decision:
        """With what room there is now."""
        room = sizes(snapshot)
        elastic = min(max(wanted.workers - room.fixed, room.elastic_low), room.elastic_high)
        shape = carried_shape(wanted, room.fixed + elastic, policy)
        return decision(snapshot, policy, elastic, shape, f"load and latency targets ask for {wanted}")


def _generated_per_second(snapshot: Snapshot, decoders: Sequence[Worker]) -> float:
    engines = snapshot.measurements.engines
    rates = [engines[w.uid].generation_tokens_per_second for w in decoders if w.uid in engines]
    return sum(rate for rate in rates if rate is not None)


def _fit(prefill: int, decode: int, *, low: int, high: int) -> Shape:
    """P and D within `low` … `high` workers in total: cut, or raised, in proportion."""
    count = min(max(prefill + decode, low, 2), high)
    if count != prefill + decode:
        share = prefill / (prefill + decode)
        prefill = min(max(round(share * count), 1), count - 1)
    return Shape(0, prefill, count - prefill)
