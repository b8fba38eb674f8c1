"""Puts the parts of one operator process together; the only place that knows all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp

from pearl_operator.agents import AgentClient
from pearl_operator.calls import Calls
from pearl_operator.clock import SystemClock
from pearl_operator.core import Ports, assemble_core
from pearl_operator.fence import FencedKube
from pearl_operator.gateway_client import GatewayClient
from pearl_operator.health import Health
from pearl_operator.http_json import HttpJson
from pearl_operator.index import Index
from pearl_operator.keys import SecretKeys
from pearl_operator.kube import KubeClient, load_client
from pearl_operator.lease import Lease
from pearl_operator.loans import LoanService
from pearl_operator.prometheus import PrometheusClient
from pearl_operator.resync import Resync
from pearl_operator.web import WebParts, build_app

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from fastapi import FastAPI

    from pearl_operator.ports import Resolver
    from pearl_operator.settings import Settings
    from pearl_operator.supervisor import Supervisor

_HTTP_SECONDS = 2.0
"""Of calls to gateway, agents and Prometheus: a look must not wait for the dead."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator process."""

    index: Index
    supervisor: Supervisor
    resync: Resync
    loans: LoanService
    lease: Lease
    app: FastAPI
    calls: Calls


async def assemble(settings: Settings, stack: AsyncExitStack, resolver: Resolver) -> Operator:
    """The whole process over a real cluster; `stack` closes its connections."""
    clock = SystemClock()
    calls = Calls(clock)
    api = await stack.enter_async_context(await load_client())
    session = await stack.enter_async_context(aiohttp.ClientSession())
    raw = KubeClient(api, calls, timeout_seconds=settings.call_timeout_seconds)
    lease = Lease(raw, clock, settings.namespace, settings.lease_name, settings.identity, settings.lease_seconds)
    kube = FencedKube(raw, lease, settings.call_timeout_seconds)
    index = Index(clock=clock)
    keys = SecretKeys(kube, settings.namespace, index.uid_of)
    http = HttpJson(session, _HTTP_SECONDS, calls)
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
    loans = LoanService(
        kube=kube, index=index, agents=agents, keys=keys, clock=clock, resolver=resolver, settings=settings
    )
    core = assemble_core(ports, index, loans, settings)
    for registry in (loans.metrics, calls.registry):
        core.metrics.registry.register(registry)
    resync = Resync(kube, core.index, clock, settings)
    health = Health(clock, core.index, core.supervisor, lease, resync)
    app = build_app(WebParts(health, core.metrics, core.ring, settings.namespace, loans.router()))
    return Operator(core.index, core.supervisor, resync, loans, lease, app, calls)
