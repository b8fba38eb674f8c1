"""`pearl-gateway`: the command. In a cluster it follows pods; with `--workers FILE` a static list.

With `PEARL_PROCESSES` above 1 it starts so many processes of itself and keeps them, see `pearl_gateway.processes`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from pearl_api.names import PORT_GATEWAY
from pearl_gateway.app import create_app
from pearl_gateway.connections import allow_open_files, listener, server_config, shared_listener
from pearl_gateway.processes.assembly import Place, serve_process
from pearl_gateway.processes.layout import prepare
from pearl_gateway.processes.supervisor import supervise
from pearl_gateway.serving import GRACE_SECONDS, dismiss, expire, poll_agents, running_gateway, sources_of
from pearl_gateway.settings import Settings, read_settings

if TYPE_CHECKING:
    from collections.abc import Coroutine

_COLLECT_EVERY = 20_000
"""Objects between two rounds of the garbage collector: most of a turn is gone by then without it."""


async def serve(settings: Settings, *, workers: Path | None, host: str, port: int) -> None:
    """Run until a signal; a source or the poller that dies takes the process with it, so that it is restarted."""
    async with running_gateway(settings) as gateway:
        sources = await sources_of(gateway, workers)
        config = server_config(
            create_app(gateway),
            settings.limits,
            host=host,
            port=port,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        server = uvicorn.Server(config)
        loops = (*sources, poll_agents(gateway), expire(gateway), dismiss(gateway, server))
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
    options = _parser().parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        settings = read_settings(os.environ)
        if options.workers is not None and "PEARL_STORAGE" not in os.environ:
            settings = replace(settings, storage=None)
        work = _work(options, settings)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"pearl-gateway: {error}\n")
        return 2
    allow_open_files()
    with contextlib.suppress(ImportError):
        import uvloop  # noqa: PLC0415 - optional, not on every platform

        uvloop.install()
    # What is loaded stays: the collector need not look through it again and again.
    gc.freeze()
    gc.set_threshold(_COLLECT_EVERY)
    with contextlib.suppress(KeyboardInterrupt):
        return asyncio.run(work) or 0
    return 0


def _work(options: argparse.Namespace, settings: Settings) -> Coroutine[None, None, int | None]:
    """What this process is to do: everything, to keep others that do it, or its part.

    Raises:
        ValueError: the settings cannot be meant.
        OSError: the storage cannot be used.
    """
    if options.process is not None:
        place = Place(options.process, options.folder, options.life, options.host, options.port)
        return serve_process(settings, workers=options.workers, place=place)
    if settings.processes == 1:
        if settings.storage is not None:
            settings = replace(settings, storage=prepare(settings.storage, 1)[0])
        return serve(settings, workers=options.workers, host=options.host, port=options.port)
    if settings.storage is None:
        raise ValueError("PEARL_PROCESSES is above 1: set PEARL_STORAGE to a directory for their trajectories")
    prepare(settings.storage, settings.processes)
    command = ["pearl_gateway.main", "--host", options.host, "--port", str(options.port)]
    if options.workers is not None:
        command += ["--workers", str(options.workers)]
    # It listens to nobody, and nobody else can take the port while a process is started again.
    reserved = shared_listener(options.host, options.port, settings.limits.client_stall_seconds)
    return supervise(command=command, reserved=reserved, processes=settings.processes)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pearl-gateway", description="Rollout gateway of one PearlRollout.")
    parser.add_argument("--workers", type=Path, help="JSON file with workers, instead of watching pods")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on")  # noqa: S104 - a pod's own address
    parser.add_argument("--port", type=int, default=PORT_GATEWAY, help="port to listen on")
    for name, kind in (("process", int), ("folder", Path), ("life", int)):
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)  # from the supervisor, see assembly.Place
    return parser


if __name__ == "__main__":
    sys.exit(main())
