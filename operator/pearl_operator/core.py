"""The deciding part of an operator over its ports: index, loops, ring and metrics. No watch, no Lease, no server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pearl_operator.act import Actor
from pearl_operator.children import Children
from pearl_operator.loop import Parts, RolloutLoop
from pearl_operator.metrics import Metrics
from pearl_operator.preflight import Preflight
from pearl_operator.reaction import Reaction, TimedKube
from pearl_operator.report import Reporter
from pearl_operator.ring import Ring
from pearl_operator.sources import Sources
from pearl_operator.supervisor import Supervisor

if TYPE_CHECKING:
    from pearl_operator.act import Loans
    from pearl_operator.index import Index
    from pearl_operator.keys import SecretKeys
    from pearl_operator.ports import Agents, Clock, Gateway, Kube, Prometheus, Resolver, RolloutKey
    from pearl_operator.settings import Settings


@dataclass(frozen=True, slots=True)
class Ports:
    """The outside of one operator; tests and the simulator put fakes here."""

    kube: Kube
    gateway: Gateway
    prometheus: Prometheus
    agents: Agents
    clock: Clock
    resolver: Resolver
    keys: SecretKeys


@dataclass(frozen=True, slots=True)
class Core:
    """Index and loops over the ports."""

    index: Index
    supervisor: Supervisor
    ring: Ring
    metrics: Metrics


def assemble_core(ports: Ports, index: Index, loans: Loans, settings: Settings) -> Core:
    """The deciding part, without watches, Lease and web server."""
    ring, metrics = Ring(settings.debug_ring), Metrics()

    def new_loop(key: RolloutKey) -> RolloutLoop:
        metrics.began(key)
        sources = Sources(key, ports.gateway, ports.prometheus, ports.agents, ports.clock)
        reaction = Reaction(ports.clock, lambda seconds: metrics.reacted(key, seconds))
        kube = TimedKube(ports.kube, reaction)
        return RolloutLoop(
            key,
            Parts(
                index=index,
                sources=sources,
                children=Children(kube, ports.keys, ports.clock, settings),
                preflight=Preflight(kube, ports.clock),
                actor=Actor(kube, ports.agents, loans, index, sources),
                reporter=Reporter(kube, index, ports.clock, settings.identity),
                ring=ring,
                resolver=ports.resolver,
                clock=ports.clock,
                settings=settings,
                metrics=metrics,
                reaction=reaction,
            ),
        )

    def gone(key: RolloutKey) -> None:
        ring.forget(key)
        metrics.forget(key)

    supervisor = Supervisor(index, new_loop, gone)
    index.wake = supervisor.wake
    return Core(index, supervisor, ring, metrics)
