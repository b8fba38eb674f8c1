"""Joins facts and samples into the planner's snapshot; pure. What nobody measured stays None."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pearl_api import names
from pearl_api.wire.worker import WorkerPhase
from pearl_operator.notices import SIGNS, Sign, notice_seconds
from pearl_operator.resources.worker import shape_hash
from pearl_operator.stage_sizes import worker_sizes
from pearl_planner.types import (
    Activity,
    Batch,
    Feeding,
    Measurements,
    Role,
    Snapshot,
    Trainer,
    Trajectory,
    Worker,
    WorkerState,
    Zone,
)
from pearl_planner.workload.profile import Profile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pearl_api.rollout import PearlRolloutSpec
    from pearl_api.wire.gateway import GatewayStats, WorkerView
    from pearl_api.wire.worker import WorkerState as AgentState
    from pearl_operator.facts import NodeFact, PodFact
    from pearl_operator.sources import Samples
    from pearl_planner.types import Budget, Loan, Memory, Target, WorkerMetrics


_Made = dict[tuple[Zone, str | None], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that one look found, before it is joined."""

    spec: PearlRolloutSpec
    pods: tuple[PodFact, ...]
    nodes: Mapping[str, NodeFact]
    loans: tuple[Loan, ...]
    samples: Samples
    budget: Budget
    target: Target | None
    memory: Memory
    now: float
    signs: tuple[Sign, ...] = SIGNS
    """What announces the end of a node."""
    served: frozenset[str] = frozenset()
    """UIDs of pods that were Ready at some time."""
    keep_shape: bool = False
    """Treat every pod as made from the present template, because that one is refused by the API."""


def snapshot_of(facts: Facts) -> Snapshot:
    """The snapshot of one look."""
    stats = facts.samples.stats
    views = {view.uid: view for view in stats.workers} if stats is not None else {}
    made = _made_for(facts.spec)
    workers = (_worker(pod, facts, views.get(pod.address.uid), made) for pod in facts.pods)
    return Snapshot(
        now=facts.now,
        workers=tuple(worker for worker in workers if worker is not None),
        loans=facts.loans,
        budget=facts.budget,
        measurements=_measurements(facts),
        profile=Profile.from_dict(stats.profile) if stats is not None else None,
        batch=_batch(stats) if stats is not None else None,
        target=facts.target,
        memory=facts.memory,
        trainer=_trainer(stats),
        feeding=_feeding(stats),
    )


def _worker(pod: PodFact, facts: Facts, view: WorkerView | None, made: _Made) -> Worker | None:
    """None for a pod whose labels make no worker; it is nobody's to touch."""
    try:
        zone, role, activity = Zone(pod.zone or ""), Role(pod.role or ""), Activity(pod.activity)
    except ValueError:
        return None
    if pod.slot is None:
        return None
    agent = facts.samples.agents.get(pod.address.uid)
    made_for = made.get((zone, pod.shape))
    return Worker(
        uid=pod.address.uid,
        pod=pod.address.name,
        slot=pod.slot,
        incarnation=pod.incarnation,
        zone=zone,
        role=role,
        role_epoch=pod.role_epoch,
        activity=activity,
        state=worker_state(pod, agent, served=pod.address.uid in facts.served),
        gpus=_gpus(pod, zone, facts.spec) if made_for is None or facts.spec.engine.parallelism is None else made_for,
        shape_current=facts.keep_shape or pod.shape is None or made_for is not None,
        acked_epoch=view.acked_epoch if view is not None else None,
        in_flight=view.in_flight if view is not None else None,
        resident_tokens=view.resident_tokens if view is not None else None,
        loan=pod.loan,
        notice_seconds=notice_seconds(pod, facts.nodes.get(pod.node or ""), facts.now, facts.signs),
        draining_seconds=_draining(pod, facts.now),
        acked_activity=Activity(view.activity.value) if view is not None else None,
        from_nothing=None if agent is None else agent.phase in (WorkerPhase.COLD, WorkerPhase.STOPPED),
    )


def worker_state(pod: PodFact, agent: AgentState | None, *, served: bool) -> WorkerState:  # noqa: PLR0911 - a table
    """What a worker does, by its pod first and by its agent where the pod does not tell."""
    if pod.deleting:
        return WorkerState.TERMINATING
    if pod.phase in ("Failed", "Succeeded"):
        return WorkerState.FAILED
    if not pod.running:
        return WorkerState.UNREADY if served else WorkerState.PENDING
    phase = agent.phase if agent is not None else None
    if phase is WorkerPhase.COLD or _given_back(pod, agent):
        return WorkerState.COLD
    if phase is WorkerPhase.ASLEEP:
        return WorkerState.ASLEEP
    if pod.ready and phase in (None, WorkerPhase.READY, WorkerPhase.DRAINING):
        return WorkerState.READY
    first = agent is None or agent.engine_starts <= 1
    starting = phase in (None, WorkerPhase.STARTING, WorkerPhase.WAKING, WorkerPhase.READY)
    return WorkerState.STARTING if starting and first and not served else WorkerState.UNREADY


def _given_back(pod: PodFact, agent: AgentState | None) -> bool:
    """A borrower that rests because nothing is lent: no worker of the fleet, whether its engine sleeps or is gone."""
    if agent is None or pod.loan is None or agent.phase not in (WorkerPhase.ASLEEP, WorkerPhase.STOPPED):
        return False
    return agent.loan is None or not agent.loan.granted


def _made_for(spec: PearlRolloutSpec) -> _Made:
    """Sizes of worker by the shapes that pods of the present template have."""
    sizes = worker_sizes(spec.engine)
    own = {sizes.gpus_of(role) for role in Role}
    return {
        (zone, shape_hash(spec, names.Zone(zone.value), gpus)): gpus
        for zone in Zone
        for gpus in ({sizes.gpus_per_worker} if zone is Zone.BORROWED else own)
    }


def _gpus(pod: PodFact, zone: Zone, spec: PearlRolloutSpec) -> int:
    """What it holds by its requests; a borrower requests none, but uses one engine's worth."""
    if zone is Zone.BORROWED:
        return spec.engine.tensor_parallel
    return dict(pod.resources).get(spec.engine.gpu_resource, spec.engine.tensor_parallel)


def _draining(pod: PodFact, now: float) -> float | None:
    if pod.activity != Activity.DRAINING or pod.activity_since is None:
        return None
    return max(now - pod.activity_since, 0.0)


def _measurements(facts: Facts) -> Measurements:
    samples = facts.samples
    return Measurements(
        gateway_age_seconds=samples.stats_age,
        prometheus_age_seconds=samples.engines_age,
        prometheus_expected=facts.spec.metrics.prometheus is not None,
        engines=_engines(facts.pods, samples),
        live_trajectories=_live(samples.stats),
        asked_seconds=samples.stats.asked_seconds if samples.stats is not None else None,
        gateway_uptime_seconds=samples.stats.uptime_seconds if samples.stats is not None else None,
    )


def _trainer(stats: GatewayStats | None) -> Trainer | None:
    if stats is None or stats.consumer is None:
        return None
    seen = stats.consumer
    return Trainer(seen.update_seconds, seen.waiting_seconds, seen.ready_trajectories)


def _feeding(stats: GatewayStats | None) -> Feeding | None:
    if stats is None or stats.refill is None:
        return None
    return Feeding.REFILL if stats.refill else Feeding.BARRIER


def _live(stats: GatewayStats | None) -> int | None:
    if stats is None:
        return None
    live = stats.live
    return live.queued + live.prefilling + live.decoding + live.environment


def _engines(pods: Iterable[PodFact], samples: Samples) -> dict[str, WorkerMetrics]:
    """By UID, of pods that live: look-back windows keep series of the dead."""
    by_pod = samples.engines.by_pod if samples.engines is not None else {}
    found = ((pod.address.uid, by_pod.get(pod.address.path)) for pod in pods)
    return {uid: metrics for uid, metrics in found if metrics is not None}


def _batch(stats: GatewayStats) -> Batch | None:
    batch = stats.batch
    if batch is None or batch.closed:
        return None
    return Batch(
        step=batch.step,
        groups=batch.groups,
        group_size=batch.group_size,
        need_groups=batch.need_groups,
        complete_groups=batch.complete_groups,
        started=batch.started,
        finished=batch.finished,
        elapsed_seconds=batch.open_seconds,
        unfinished=tuple(
            Trajectory(each.group, each.turns_done, each.context_tokens, each.idle_seconds) for each in stats.unfinished
        ),
    )
