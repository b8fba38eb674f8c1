"""Measurements of one rollout, with age: gateway statistics, Prometheus, and the agents of pods in transition.

A source that does not answer keeps its last reading, which grows old; the planner judges by age. Nothing that fails
here stops a look.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pearl_api.loan import LoanPhase
from pearl_api.names import COMPONENT_WORKER, Activity, Zone
from pearl_operator.coverage import Agreement, Coverage, ScrapeTimes, quorum_age
from pearl_operator.dcgm import of_pods
from pearl_operator.errors import OperatorError
from pearl_operator.gpu_use import GpuUseReader
from pearl_operator.ports import EngineSamples

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pearl_api.rollout import PrometheusSpec
    from pearl_api.wire.gateway import GatewayStats
    from pearl_api.wire.worker import WorkerState
    from pearl_operator.dcgm import GpuUse
    from pearl_operator.facts import LoanFact, PodFact
    from pearl_operator.ports import Agents, Clock, Gateway, Prometheus, RolloutKey

_PROMETHEUS_EVERY_SECONDS: Final = 5.0
_MAX_SCRAPES: Final = 64
"""Agents asked in one look; the others wait for the next."""
_MOVING: Final = (LoanPhase.GRANTED, LoanPhase.WAKING, LoanPhase.DRAINING, LoanPhase.ASLEEP)
"""Phases in which agents change by themselves, so that only a fresh answer will do."""
_BORROWER_EVERY_SECONDS: Final = 1.0
"""Between two questions to the agent of any other borrower whose pod and loan are as they were. Every change of any
loan makes a look: with a hundred of them all agents would be asked many times a second, and offers would wait."""


@dataclass(frozen=True, slots=True)
class Samples:
    """What one look knows of the sources. Ages are seconds; None = never read."""

    stats: GatewayStats | None = None
    stats_age: float | None = None
    gateway_error: str | None = None
    engines: EngineSamples | None = None
    """Only of pods that live and were there when the sample was taken."""
    engines_age: float | None = None
    """That at least half of the serving workers' samples have at most."""
    coverage: Coverage = field(default_factory=Coverage)
    scrape_seconds: float | None = None
    """Between two scrapes; None = not learned yet."""
    disagreement: str | None = None
    """What gateway and engines tell differently, if they do."""
    prometheus_error: str | None = None
    agents: dict[str, WorkerState] = field(default_factory=dict)
    """By pod UID, of pods in transition only."""
    gpus: dict[str, GpuUse] = field(default_factory=dict)
    """By pod UID, where DCGM tells; for metrics only."""


Versions = tuple[str, str]
"""Of a borrower pod and its loan."""


@dataclass(frozen=True, slots=True)
class _Told:
    """What an agent said last; None = nothing."""

    at: float
    versions: Versions | None
    state: WorkerState | None


@dataclass(slots=True)
class Sources:
    """Readings of one rollout."""

    rollout: RolloutKey
    gateway: Gateway
    prometheus: Prometheus
    agents: Agents
    clock: Clock
    _stats: GatewayStats | None = None
    _stats_at: float | None = None
    _gateway_error: str | None = None
    _engines: EngineSamples | None = None
    _prometheus_error: str | None = None
    _prometheus_asked_at: float | None = None
    _gpu_use: GpuUseReader = field(init=False)
    _scrapes: ScrapeTimes = field(default_factory=ScrapeTimes)
    _agreement: Agreement = field(default_factory=Agreement)
    _told: dict[str, _Told] = field(default_factory=dict)
    """By pod UID."""

    def __post_init__(self) -> None:
        self._gpu_use = GpuUseReader(self.rollout, self.prometheus, self.clock)

    def close(self) -> None:
        """Nobody looks any more."""
        self._gpu_use.close()

    async def read(
        self, pods: Iterable[PodFact], loans: Iterable[LoanFact], prometheus: PrometheusSpec | None
    ) -> Samples:
        """Asks all sources at once; waits for all but DCGM's series."""
        pods = tuple(pods)
        agents, _, _ = await asyncio.gather(
            self._read_agents(pods, loans),
            self._read_gateway(),
            self._read_prometheus(prometheus),
        )
        engines = self._engines_of(pods)
        ages = self._ages(pods, engines)
        self._compare(pods, engines)
        return Samples(
            stats=self._stats,
            stats_age=None if self._stats_at is None else self.clock.monotonic() - self._stats_at,
            gateway_error=self._gateway_error,
            engines=engines,
            engines_age=quorum_age(ages),
            coverage=Coverage(sum(age is not None for age in ages), len(ages)),
            scrape_seconds=self._scrapes.seconds,
            disagreement=self._agreement.problem,
            prometheus_error=self._prometheus_error,
            agents=agents,
            gpus=of_pods(self._gpu_use.newest(prometheus), {pod.address.path: pod.address.uid for pod in pods}),
        )

    async def in_flight(self, uid: str) -> int | None:
        """Requests of one worker by a fresh read of the gateway; None where it does not know the worker."""
        stats = await self.gateway.stats(self.rollout)
        return next((each.in_flight for each in stats.workers if each.uid == uid), None)

    def _engines_of(self, pods: Iterable[PodFact]) -> EngineSamples | None:
        """Without series of the dead, of strangers, and of a former pod of the same name."""
        found = self._engines
        if found is None:
            return None
        sampled_at = {
            pod.address.path: at for pod in pods if (at := found.sampled_at.get(pod.address.path)) is not None
        }
        created = {pod.address.path: pod.created for pod in pods if pod.created is not None}
        own = {name: at for name, at in sampled_at.items() if at >= created.get(name, at)}
        return EngineSamples({name: found.by_pod[name] for name in own if name in found.by_pod}, own)

    def _ages(self, pods: Iterable[PodFact], engines: EngineSamples | None) -> list[float | None]:
        """Of the newest sample of each serving worker."""
        sampled_at = engines.sampled_at if engines is not None else {}
        times = [sampled_at.get(pod.address.path) for pod in pods if _serves(pod)]
        return [None if at is None else max(self.clock.now() - at, 0.0) for at in times]

    def _compare(self, pods: Iterable[PodFact], engines: EngineSamples | None) -> None:
        sent = {one.uid: one.in_flight for one in self._stats.workers} if self._stats is not None else {}
        told = engines.by_pod if engines is not None else {}
        both = [
            (metrics.running + (metrics.waiting or 0.0), float(sent[pod.address.uid]))
            for pod in pods
            if pod.address.uid in sent
            and (metrics := told.get(pod.address.path)) is not None
            and metrics.running is not None
        ]
        known = bool(both) and self._gateway_error is None and self._prometheus_error is None
        sums = [sum(side) for side in zip(*both, strict=True)] if known else [None, None]
        self._agreement.note(self.clock.monotonic(), *sums)

    async def _read_gateway(self) -> None:
        try:
            self._stats = await self.gateway.stats(self.rollout)
        except OperatorError as error:
            self._gateway_error = str(error)
        else:
            self._stats_at = self.clock.monotonic()
            self._gateway_error = None

    async def _read_prometheus(self, spec: PrometheusSpec | None) -> None:
        if spec is None:
            self._engines, self._prometheus_error, self._prometheus_asked_at = None, None, None
            return
        now = self.clock.monotonic()
        asked = self._prometheus_asked_at
        if asked is not None and now - asked < _PROMETHEUS_EVERY_SECONDS:
            return
        self._prometheus_asked_at = now
        try:
            self._engines = await self.prometheus.engines(self.rollout, spec)
        except OperatorError as error:
            self._prometheus_error = str(error)
        else:
            self._prometheus_error = None
            self._scrapes.note(self._engines.sampled_at)

    async def _read_agents(self, pods: Iterable[PodFact], loans: Iterable[LoanFact]) -> dict[str, WorkerState]:
        """By pod UID; missing = unknown, and the pod's own conditions decide."""
        of_loan = {(loan.namespace, loan.name): loan for loan in loans}
        moving = {
            pod: _versions(pod, of_loan.get((pod.address.namespace, pod.loan or "")))
            for pod in pods
            if in_transition(pod)
        }
        due = sorted((pod for pod, versions in moving.items() if self._is_due(pod, versions)), key=self._told_at)
        told = await asyncio.gather(*(self._ask(pod, moving[pod]) for pod in due[:_MAX_SCRAPES]))
        before = {pod.address.uid for pod in moving} & self._told.keys()
        self._told = {uid: self._told[uid] for uid in before} | dict(told)
        return {uid: each.state for uid, each in self._told.items() if each.state is not None}

    def _is_due(self, pod: PodFact, versions: Versions | None) -> bool:
        told = self._told.get(pod.address.uid)
        if versions is None or told is None or told.versions != versions:
            return True
        return self.clock.monotonic() - told.at >= _BORROWER_EVERY_SECONDS

    def _told_at(self, pod: PodFact) -> float:
        told = self._told.get(pod.address.uid)
        return told.at if told is not None else float("-inf")

    async def _ask(self, pod: PodFact, versions: Versions | None) -> tuple[str, _Told]:
        try:
            state = await self.agents.state(self.rollout, pod.address)
        except OperatorError:
            state = None
        return pod.address.uid, _Told(self.clock.monotonic(), versions, state)


def _serves(pod: PodFact) -> bool:
    return pod.component == COMPONENT_WORKER and pod.ready and not pod.deleting and pod.activity == Activity.ACTIVE


def _versions(pod: PodFact, loan: LoanFact | None) -> Versions | None:
    """While they stay the same an answer holds for a while; None = no answer holds longer than its look."""
    if pod.zone != Zone.BORROWED or loan is None or loan.status.phase in _MOVING:
        return None
    return pod.resource_version, loan.resource_version


def in_transition(pod: PodFact) -> bool:
    """Whether the pod's conditions alone do not say what its engine does."""
    reachable = pod.running and not pod.deleting and pod.address.ip is not None
    settled = pod.ready and pod.activity == Activity.ACTIVE and pod.zone != Zone.BORROWED
    return reachable and not settled
