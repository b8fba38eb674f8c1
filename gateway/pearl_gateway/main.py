"""`pearl-gateway`: the process. In a cluster it follows pods; with `--workers FILE` a static list."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import sys
import time
import uuid
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import uvicorn

from pearl_api.names import PORT_GATEWAY
from pearl_gateway.app import create_app
from pearl_gateway.cluster import PodMembership, RolloutWatch
from pearl_gateway.connections import allow_open_files, listener, server_config
from pearl_gateway.gateway import Gateway
from pearl_gateway.membership import FileMembership
from pearl_gateway.settings import Settings, read_settings
from pearl_gateway.storage import Storage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

_POLL_SECONDS = 1.0
_EXPIRE_SECONDS = 1.0
_LOOK_SECONDS = 0.1
_GRACE_SECONDS = 5
_IDLE_SECONDS = 2.0
"""Idle connections are closed before engines do it (uvicorn, after 5 s): a request that meets the closing end of one
would look like a dead engine."""
_LOG = logging.getLogger(__name__)


@asynccontextmanager
async def running_gateway(settings: Settings) -> AsyncIterator[Gateway]:
    """A gateway with its clients and its storage, closed in the end; nothing feeds its fleet yet."""
    storage = Storage(settings.storage, time.monotonic) if settings.storage is not None else None
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_SECONDS)
    timeout = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=settings.limits.connect_seconds)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        gateway = Gateway(
            settings=settings,
            session=session,
            clock=time.monotonic,
            wall=time.time,
            new_id=lambda: uuid.uuid4().hex,
            storage=storage,
        )
        try:
            yield gateway
        finally:
            await gateway.close()


async def poll_agents(gateway: Gateway) -> None:
    """Learn weight versions from the worker agents, every second."""
    while True:
        workers = [one for one in gateway.fleet.workers.values() if one.facts.agent_url]
        states = await asyncio.gather(*(gateway.engine.agent_state(str(one.facts.agent_url)) for one in workers))
        for worker, state in zip(workers, states, strict=True):
            if state is not None:
                worker.weight_version, worker.wanted_version = state.get("weightVersion"), state.get("wantedVersion")
        await asyncio.sleep(_POLL_SECONDS)


async def expire(gateway: Gateway) -> None:
    """End what was left behind or has become too stale, every second."""
    while True:
        await asyncio.sleep(_EXPIRE_SECONDS)
        gateway.expire()


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


async def _dismiss(gateway: Gateway, server: uvicorn.Server) -> None:
    """When the process is told to stop, tell clients to come back: they would hold the old process up otherwise."""
    while not server.should_exit:  # noqa: ASYNC110 - uvicorn's signal handler tells nobody
        await asyncio.sleep(_LOOK_SECONDS)
    await gateway.dismiss()
    await asyncio.sleep(2 * _GRACE_SECONDS)


async def serve(settings: Settings, *, workers: Path | None, host: str, port: int) -> None:
    """Run until a signal; a source or the poller that dies takes the process with it, so that it is restarted."""
    async with running_gateway(settings) as gateway:

        def known() -> None:
            gateway.membership_known = True

        if workers is not None:
            sources: list[Coroutine[Any, Any, None]] = [FileMembership(workers).run(gateway.fleet, known)]
        else:
            sources = await _cluster_sources(gateway)
        config = server_config(
            create_app(gateway),
            settings.limits,
            host=host,
            port=port,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
        server = uvicorn.Server(config)
        loops = (*sources, poll_agents(gateway), expire(gateway), _dismiss(gateway, server))
        tasks = [asyncio.ensure_future(one) for one in loops]
        serving = asyncio.ensure_future(server.serve([listener(config, settings.limits.client_stall_seconds)]))
        done, _ = await asyncio.wait({serving, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        for task in tasks:
            task.cancel()
        await asyncio.gather(serving, *tasks, return_exceptions=True)
        for one in done:
            one.result()


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="pearl-gateway", description="Rollout gateway of one PearlRollout.")
    parser.add_argument("--workers", type=Path, help="JSON file with workers, instead of watching pods")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on")  # noqa: S104 - a pod's own address
    parser.add_argument("--port", type=int, default=PORT_GATEWAY, help="port to listen on")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        settings = read_settings(os.environ)
    except ValueError as error:
        sys.stderr.write(f"pearl-gateway: {error}\n")
        return 2
    if options.workers is not None and "PEARL_STORAGE" not in os.environ:
        settings = replace(settings, storage=None)
    allow_open_files()
    with contextlib.suppress(ImportError):
        import uvloop  # noqa: PLC0415 - optional, not on every platform

        uvloop.install()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(settings, workers=options.workers, host=options.host, port=options.port))
    return 0


if __name__ == "__main__":
    sys.exit(main())
