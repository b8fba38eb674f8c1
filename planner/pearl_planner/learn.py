"""What the planner remembers from one look to the next (in the status, so it survives restarts)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from pearl_planner.costs import learn_costs, learn_life
from pearl_planner.engine_model import decode_seconds, sane_table
from pearl_planner.feeding import evident_feeding
from pearl_planner.numbers import clamp, known, median
from pearl_planner.profile import Profile
from pearl_planner.types import Role, Zone

if TYPE_CHECKING:
    from pearl_planner.types import Memory, Policy, Snapshot, WorkerMetrics

SCALE_LIMITS = (0.05, 20.0)
SCALE_WEIGHT = 0.1
"""Weight of one look in the decaying average (of logarithms) of measured over predicted step time."""
MIN_RUNNING = 0.5


def learn(snapshot: Snapshot, policy: Policy) -> Memory:
    """The memory after this look; decisions add the target that they start."""
    memory = learn_costs(snapshot)
    if not policy.advisory:  # then targets never change, and one loss would be seen again and again
        memory = learn_life(replace(snapshot, memory=memory))
    changed_at = memory.capacity_changed_at
    elastic = _elastic_gpus(snapshot)
    if elastic is not None and memory.elastic_gpus_seen is not None and elastic != memory.elastic_gpus_seen:
        changed_at = snapshot.now
    return replace(
        memory,
        next_incarnations=tuple(sorted(_incarnations(snapshot).items())),
        last_target_id=max(memory.last_target_id, snapshot.target.id if snapshot.target else 0),
        model_scale=_scale(snapshot, policy),
        capacity_changed_at=changed_at,
        elastic_gpus_seen=memory.elastic_gpus_seen if elastic is None else elastic,
        feeding=evident_feeding(snapshot, policy) or memory.feeding,
        looked_at=snapshot.now,
    )


def _incarnations(snapshot: Snapshot) -> dict[int, int]:
    """Next incarnation of every slot that ever had a pod."""
    found = dict(snapshot.memory.next_incarnations)
    for worker in snapshot.workers:
        if worker.zone is not Zone.BORROWED:
            found[worker.slot] = max(found.get(worker.slot, 0), worker.incarnation + 1)
    return found


def _elastic_gpus(snapshot: Snapshot) -> int | None:
    free = snapshot.budget.elastic_free_gpus
    if free is None:
        return None
    return free + sum(worker.gpus for worker in snapshot.workers if worker.zone is Zone.ELASTIC)


def _scale(snapshot: Snapshot, policy: Policy) -> float | None:
    """Corrects a wrong table from the inter-token times that Prometheus reports, within `SCALE_LIMITS`."""
    old = snapshot.memory.model_scale
    measured = median(_ratios(snapshot, policy))
    if measured is None:
        return old
    measured = clamp(measured, *SCALE_LIMITS)
    if old is None:
        return measured
    mixed = (1 - SCALE_WEIGHT) * math.log(clamp(old, *SCALE_LIMITS)) + SCALE_WEIGHT * math.log(measured)
    return float(f"{math.exp(mixed):.6g}")


def _ratios(snapshot: Snapshot, policy: Policy) -> list[float]:
    """Measured over predicted seconds between tokens, per engine that decodes now."""
    age = snapshot.measurements.prometheus_age_seconds
    if age is None or age > policy.stale_after_seconds or not sane_table(policy.table):
        return []
    profile = snapshot.profile or Profile()
    context = profile.context.known_mean() or 0.0
    new_share = min(1.0, profile.appended.mean / context) if context else 0.0
    ratios = []
    for worker in snapshot.workers:
        metrics = snapshot.measurements.engines.get(worker.uid)
        if metrics is None or worker.role is Role.PREFILL:
            continue
        # Engines count cached and received prompt tokens too; only the new ones of a colocated worker are computed.
        ratio = _ratio(metrics, policy, context, new_share if worker.role is Role.COLOCATED else 0.0)
        if ratio is not None:
            ratios.append(ratio)
    return ratios


def _ratio(metrics: WorkerMetrics, policy: Policy, context_tokens: float, new_share: float) -> float | None:
    """Prefill in between stretches the time between tokens: it takes its share of every second."""
    running = known(metrics.running, low=MIN_RUNNING, high=1e5)
    between = known(metrics.inter_token_seconds, low=1e-7, high=1e4)
    if running is None or between is None:
        return None
    # Prefill work scales like decode work, so the measured share of the second is s·p₁·rate; with
    # between·(1 − s·p₁·rate) = s·t(n) this solves for s.
    prompt_rate = known(metrics.prompt_tokens_per_second, high=1e9) or 0.0
    prefill = policy.table.prefill_per_token_seconds * prompt_rate * new_share
    return between / (decode_seconds(policy.table, running, context_tokens) + between * prefill)
