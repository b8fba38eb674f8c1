"""What a gateway process runs beside its application: clients, storage, sources of its fleet, loops, the server."""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import aiohttp

from pearl_gateway.calls import IDLE_SECONDS
from pearl_gateway.cluster import PodMembership, RolloutWatch
from pearl_gateway.gateway import Gateway
from pearl_gateway.membership import FileMembership
from pearl_gateway.storage import MOST_EXPORT_BYTES, Storage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine
    from pathlib import Path

    import uvicorn

    from pearl_gateway.books import Shared
    from pearl_gateway.settings import Settings

_POLL_SECONDS = 1.0
_EXPIRE_SECONDS = 1.0
_LOOK_SECONDS = 0.1
GRACE_SECONDS = 5


@asynccontextmanager
async def running_gateway(
    settings: Settings, shared: Shared | None = None, most_export_bytes: int = MOST_EXPORT_BYTES
) -> AsyncIterator[Gateway]:
    """A gateway with its clients and its storage, closed in the end; nothing feeds its fleet yet."""
    storage = None
    if settings.storage is not None:
        storage = Storage(settings.storage, time.monotonic, most_export_bytes=most_export_bytes)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS)
    timeout = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=settings.limits.connect_seconds)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        gateway = Gateway(
            settings=settings,
            session=session,
            clock=time.monotonic,
            wall=time.time,
            new_id=lambda: uuid.uuid4().hex,
            storage=storage,
            shared=shared,
        )
        try:
            yield gateway
        finally:
            await gateway.close()


async def poll_agents(gateway: Gateway) -> None:
    """Learn weight versions from the worker agents, every second."""
    while True:
        await ask_agents(gateway)
        await asyncio.sleep(_POLL_SECONDS)


async def ask_agents(gateway: Gateway) -> None:
    """Learn weight versions from the worker agents, once."""
    workers = [one for one in gateway.fleet.workers.values() if one.facts.agent_url]
    states = await asyncio.gather(*(gateway.engine.agent_state(str(one.facts.agent_url)) for one in workers))
    for worker, state in zip(workers, states, strict=True):
        if state is not None:
            worker.weight_version, worker.wanted_version = state.get("weightVersion"), state.get("wantedVersion")


async def expire(gateway: Gateway) -> None:
    """End what was left behind or has become too stale, every second."""
    while True:
        await asyncio.sleep(_EXPIRE_SECONDS)
        gateway.expire()


async def sources_of(gateway: Gateway, workers: Path | None) -> list[Coroutine[Any, Any, None]]:
    """What feeds the fleet: a file of workers, or what the cluster says."""
    if workers is None:
        return await _cluster_sources(gateway)

    def known() -> None:
        gateway.membership_known = True

    return [FileMembership(workers).run(gateway.fleet, known)]


async def _cluster_sources(gateway: Gateway) -> list[Coroutine[Any, Any, None]]:
    from kubernetes.aio import client, config  # noqa: PLC0415 - seconds of imports that a laptop does not need

    try:
        config.load_incluster_config()  # type: ignore[no-untyped-call]
    except config.ConfigException:
        await config.load_kube_config()  # type: ignore[no-untyped-call]
    core, custom = client.CoreV1Api(), client.CustomObjectsApi()
    settings = gateway.settings
    namespaces = dict.fromkeys([settings.namespace, *settings.trainer_namespaces])
    waiting = set(namespaces)

    def known(namespace: str) -> None:
        waiting.discard(namespace)
        gateway.membership_known = not waiting

    sources: list[Coroutine[Any, Any, None]] = [
        PodMembership(core, settings.rollout, namespace, settings.namespace).run(
            gateway.fleet, partial(known, namespace)
        )
        for namespace in namespaces
    ]
    sources.append(RolloutWatch(custom, settings.rollout, settings.namespace, gateway.routing).run())
    return sources


async def dismiss(gateway: Gateway, server: uvicorn.Server) -> None:
    """When the process is told to stop, tell clients to come back: they would hold the old process up otherwise."""
    while not server.should_exit:  # noqa: ASYNC110 - uvicorn's signal handler tells nobody
        await asyncio.sleep(_LOOK_SECONDS)
    await gateway.dismiss()
    await asyncio.sleep(2 * GRACE_SECONDS)
