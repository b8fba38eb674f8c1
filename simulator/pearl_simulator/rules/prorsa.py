"""`prorsa-like`: roles switched by a forecast of prefill and decode demand over the next seconds.

Prorsa is known from its abstract only, so this is the best version of its idea that could be made: from the state of
every live trajectory (in its environment for t seconds, queued, decoding) follows what will be asked of both stages
within a horizon; a role changes when another split serves the more loaded stage better by a margin for longer than a
switch costs. It uses whatever GPUs there are and borrows none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pearl_planner.engine.model import decode_seconds, prefill_seconds
from pearl_planner.facts import sizes
from pearl_planner.fleet.shapes import carried_shape
from pearl_planner.types import Mode, Role, Shape
from pearl_simulator.rules.base import NoLoans, decision, load_of, present_shape, remote_tokens, serving, table_of

if TYPE_CHECKING:
    from pearl_planner.choice.decide import Decision
    from pearl_planner.prediction.mean_turn import Workload
    from pearl_planner.types import Policy, Snapshot
    from pearl_planner.workload.profile import Moments


@dataclass(frozen=True, slots=True)
class Demand:
    """What the next seconds ask of a fleet, whatever its split."""

    prefill_seconds: float
    """Of one worker."""
    decode_tokens: float
    sequences: float
    """That decode now or will: at least 1."""

    def clearing_seconds(self, prefill: int, step_seconds: float) -> tuple[float, float]:
        """Demand over capacity of both stages; `step_seconds` is the decode step of the split."""
        return self.prefill_seconds / prefill, self.decode_tokens * step_seconds / self.sequences


@dataclass(slots=True)
class ProrsaRule(NoLoans):
    """Mutable by design: it remembers since when another split was better. One instance per run."""

    horizon_seconds: float = 30.0
    margin: float = 0.1
    patience_seconds: float = 10.0
    colocated_below: int = 3
    """Fewer workers than this are not split."""
    _better_since: float | None = None

    def decide(self, snapshot: Snapshot, policy: Policy) -> Decision:
        """All GPUs there are, split by the forecast."""
        room = sizes(snapshot)
        count = room.fixed + room.elastic_high
        present = present_shape(snapshot)
        shape, why = carried_shape(present, count, policy), "not enough measured"
        if count < max(self.colocated_below, 2):
            shape, why = Shape(colocated=count), "too few workers to split"
        elif (load := load_of(snapshot, policy)) is not None:
            best, better = self._best(snapshot, policy, load, shape)
            why = "forecast of the next seconds"
            if present.mode is Mode.COLOCATED or present.workers != count or self._lasting(snapshot.now, better):
                shape, self._better_since = best, None
        return decision(snapshot, policy, room.elastic_high, shape, why)

    def _best(self, snapshot: Snapshot, policy: Policy, load: Workload, present: Shape) -> tuple[Shape, bool]:
        """The split with the lowest load of its more loaded stage, and whether it beats the present by the margin."""
        table = table_of(snapshot, policy)
        demand = forecast(snapshot, policy, load, self.horizon_seconds)

        def worst(shape: Shape) -> float:
            each = max(demand.sequences / shape.decode, 1.0)
            step = decode_seconds(table, each, load.context_tokens)
            return max(demand.clearing_seconds(shape.prefill, step))

        splits = [Shape(0, p, present.workers - p) for p in range(1, present.workers)]
        best = min(splits, key=lambda shape: (worst(shape), shape.prefill))
        split_up = present.mode is Mode.DISAGGREGATED
        return best, not split_up or worst(best) < worst(present) * (1.0 - self.margin)

    def _lasting(self, now: float, better: bool) -> bool:
        if not better:
            self._better_since = None
            return False
        if self._better_since is None:
            self._better_since = now
        return now - self._better_since >= self.patience_seconds


def forecast(snapshot: Snapshot, policy: Policy, load: Workload, horizon_seconds: float) -> Demand:
    """Σ P(environment answers within h | it took t so far) and Σ E[min(tokens left, h / token time)].

    A turn that ends early within the horizon comes back with its next one, after a mean environment time.
    """
    table = table_of(snapshot, policy)
    environment = None if snapshot.profile is None else snapshot.profile.environment
    idle = () if snapshot.batch is None else snapshot.batch.unfinished
    waits = [one.idle_seconds for one in idle if one.idle_seconds is not None]
    arriving = sum(returns_within(horizon_seconds, wait, environment) for wait in waits)
    arriving += sum(w.in_flight or 0 for w in serving(snapshot, Role.PREFILL))
    decoders = serving(snapshot, Role.DECODE, Role.COLOCATED)
    decoding = float(sum(w.in_flight or 0 for w in decoders))
    each = max(decoding / max(len(decoders), 1), 1.0)
    possible = horizon_seconds / decode_seconds(table, each, load.context_tokens)
    generated = None if snapshot.profile is None else snapshot.profile.generated
    left = load.generated_tokens if generated is None else _residual(generated)
    tokens = decoding * min(left, possible) + arriving * min(load.generated_tokens, possible)
    again = max(0.0, 1.0 - load.environment_seconds / horizon_seconds)
    ends = again * max(0.0, decoding * possible / load.generated_tokens - decoding)
    turns = arriving + again * decoding * min(1.0, possible / left) + ends
    new = remote_tokens(load)
    prefill = turns * prefill_seconds(table, new, load.context_tokens - new)
    return Demand(prefill, tokens + ends * load.generated_tokens, max(decoding + arriving / 2, 1.0))


def returns_within(horizon_seconds: float, waited_seconds: float, environment: Moments | None) -> float:
    """P(Z ≤ t + h | Z > t) of a log-normal Z with the measured mean and variance; 1 where nothing is known."""
    if environment is None or environment.count <= 0 or environment.mean <= 0:
        return 1.0
    spread = math.log1p(max(environment.variance, 1e-6) / environment.mean**2)
    middle = math.log(environment.mean) - spread / 2

    def beyond(seconds: float) -> float:
        if seconds <= 0:
            return 1.0
        return 0.5 * math.erfc((math.log(seconds) - middle) / math.sqrt(2 * spread))

    still = beyond(waited_seconds)
    return 1.0 - beyond(waited_seconds + horizon_seconds) / still if still > 1e-12 else 1.0  # noqa: PLR2004 - underflow


def _residual(tokens: Moments) -> float:
    """Mean rest of a length in progress: E[r²]/(2·E[r])."""
    return (tokens.mean**2 + tokens.variance) / (2 * tokens.mean) if tokens.mean > 0 else 0.0
