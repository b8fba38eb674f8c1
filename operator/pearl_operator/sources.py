"""Measurements of one rollout, with age: gateway statistics, Prometheus, and the agents of pods in transition.

A source that does not answer keeps its last reading, which grows old; the planner judges by age. Nothing that fails
here stops a look.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pearl_api.names import Activity, Zone
from pearl_operator.errors import OperatorError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pearl_api.rollout import PrometheusSpec
    from pearl_api.wire.gateway import GatewayStats
    from pearl_api.wire.worker import WorkerState
    from pearl_operator.facts import PodFact
    from pearl_operator.ports import Agents, Clock, EngineSamples, Gateway, Prometheus, RolloutKey

_PROMETHEUS_EVERY_SECONDS: Final = 5.0
_MAX_SCRAPES: Final = 64
"""Agents asked in one look; the others wait for the next."""


@dataclass(frozen=True, slots=True)
class Samples:
    """What one look knows of the sources. Ages are seconds; None = never read."""

    stats: GatewayStats | None = None
    stats_age: float | None = None
    gateway_error: str | None = None
    engines: EngineSamples | None = None
    engines_age: float | None = None
    prometheus_error: str | None = None
    agents: dict[str, WorkerState] = field(default_factory=dict)
    """By pod UID, of pods in transition only."""


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

    async def read(self, pods: Iterable[PodFact], prometheus: PrometheusSpec | None) -> Samples:
        """Asks all sources at once."""
        _, _, agents = await asyncio.gather(
            self._read_gateway(), self._read_prometheus(prometheus), self._read_agents(pods)
        )
        return Samples(
            stats=self._stats,
            stats_age=None if self._stats_at is None else self.clock.monotonic() - self._stats_at,
            gateway_error=self._gateway_error,
            engines=self._engines,
            engines_age=self._engines_age(),
            prometheus_error=self._prometheus_error,
            agents=agents,
        )

    async def in_flight(self, uid: str) -> int | None:
        """Requests of one worker by a fresh read of the gateway; None where it does not know the worker."""
        stats = await self.gateway.stats(self.rollout)
        return next((each.in_flight for each in stats.workers if each.uid == uid), None)

    def _engines_age(self) -> float | None:
        newest = self._engines.newest_at if self._engines is not None else None
        return None if newest is None else max(self.clock.now() - newest, 0.0)

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
            self._engines, self._prometheus_error = None, None
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

    async def _read_agents(self, pods: Iterable[PodFact]) -> dict[str, WorkerState]:
        asked = [pod for pod in pods if in_transition(pod)][:_MAX_SCRAPES]
        answers = await asyncio.gather(
            *(self.agents.state(self.rollout, pod.address) for pod in asked), return_exceptions=True
        )
        states: dict[str, WorkerState] = {}
        for pod, answer in zip(asked, answers, strict=True):
            if isinstance(answer, BaseException):
                if not isinstance(answer, OperatorError):
                    raise answer
                continue  # unknown: the pod's own conditions decide
            states[pod.address.uid] = answer
        return states


def in_transition(pod: PodFact) -> bool:
    """Whether the pod's conditions alone do not say what its engine does."""
    reachable = pod.running and not pod.deleting and pod.address.ip is not None
    settled = pod.ready and pod.activity == Activity.ACTIVE and pod.zone != Zone.BORROWED
    return reachable and not settled
