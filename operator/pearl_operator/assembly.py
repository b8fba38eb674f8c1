"""Puts the parts of one operator process together; the only place that knows all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp

from pearl_operator.act import Actor
from pearl_operator.agents import AgentClient, ClusterResolver
from pearl_operator.children import Children
from pearl_operator.clock import SystemClock
from pearl_operator.fence import FencedKube
from pearl_operator.gateway_client import GatewayClient
from pearl_operator.health import Health
from pearl_operator.http_json import HttpJson
from pearl_operator.index import Index
from pearl_operator.keys import SecretKeys
from pearl_operator.kube import KubeClient, load_client
from pearl_operator.lease import Lease
from pearl_operator.loans import LoanService
from pearl_operator.loop import Parts, RolloutLoop
from pearl_operator.metrics import Metrics
from pearl_operator.preflight import Preflight
from pearl_operator.prometheus import PrometheusClient
from pearl_operator.report import Reporter
from pearl_operator.resync import Resync
from pearl_operator.ring import Ring
from pearl_operator.sources import Sources
from pearl_operator.supervisor import Supervisor
from pearl_operator.web import WebParts, build_app

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from fastapi import FastAPI

    from pearl_operator.act import Loans
    from pearl_operator.ports import Agents, Clock, Gateway, Kube, Prometheus, Resolver, RolloutKey
    from pearl_operator.settings import Settings

_HTTP_SECONDS = 2.0
"""Of calls to gateway, agents and Prometheus: a look must not wait for the dead."""


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


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator process."""

    index: Index
    supervisor: Supervisor
    resync: Resync
    lease: Lease
    app: FastAPI


def assemble_core(ports: Ports, loans: Loans, settings: Settings) -> Core:
    """The deciding part, without watches, Lease and web server."""
    index = Index(clock=ports.clock, wake=lambda key: supervisor.wake(key))  # noqa: PLW0108 - made below
    ring, metrics = Ring(settings.debug_ring), Metrics()

    def new_loop(key: RolloutKey) -> RolloutLoop:
        sources = Sources(key, ports.gateway, ports.prometheus, ports.agents, ports.clock)
        return RolloutLoop(
            key,
            Parts(
                index=index,
                sources=sources,
                children=Children(ports.kube, ports.keys, ports.clock, settings),
                preflight=Preflight(ports.kube, ports.clock),
                actor=Actor(ports.kube, ports.agents, loans, index, sources),
                reporter=Reporter(ports.kube, index, ports.clock, settings.identity),
                ring=ring,
                resolver=ports.resolver,
                clock=ports.clock,
                settings=settings,
                metrics=metrics,
            ),
        )

    def gone(key: RolloutKey) -> None:
        ports.keys.forget(key)
        ring.forget(key)
        metrics.forget(key)

    supervisor = Supervisor(index, new_loop, gone)
    return Core(index, supervisor, ring, metrics)


async def assemble(settings: Settings, stack: AsyncExitStack) -> Operator:
    """The whole process over a real cluster; `stack` closes its connections."""
    clock = SystemClock()
    api = await stack.enter_async_context(await load_client())
    session = await stack.enter_async_context(aiohttp.ClientSession())
    raw = KubeClient(api, timeout_seconds=settings.call_timeout_seconds)
    lease = Lease(raw, clock, settings.namespace, settings.lease_name, settings.identity, settings.lease_seconds)
    kube = FencedKube(raw, lease, settings.call_timeout_seconds)
    http, keys, resolver = HttpJson(session, _HTTP_SECONDS), SecretKeys(kube), ClusterResolver()
    agents = AgentClient(http, keys, resolver)
    ports = Ports(
        kube=kube,
        gateway=GatewayClient(http, keys, resolver),
        prometheus=PrometheusClient(http),
        agents=agents,
        clock=clock,
        resolver=resolver,
        keys=keys,
    )
    loans = LoanService(kube=kube, agents=agents, clock=clock, settings=settings)
    core = assemble_core(ports, loans, settings)
    resync = Resync(kube, core.index, clock, settings)
    health = Health(clock, core.index, core.supervisor, lease, resync)
    app = build_app(WebParts(health, core.metrics, core.ring, settings.namespace, loans.router()))
    return Operator(core.index, core.supervisor, resync, lease, app)
