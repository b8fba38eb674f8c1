"""The process: kopf, the web server, the Lease and the loops in one asyncio loop. Any of them ending ends it.

Exit status 0 after SIGTERM or SIGINT, 1 when something crashed or the Lease was lost, 2 when a setting is wrong.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import kopf

from pearl_operator import logs, settings
from pearl_operator.agents import ClusterResolver
from pearl_operator.assembly import Operator, assemble
from pearl_operator.errors import RetryAfter
from pearl_operator.watch import build_registry, kopf_settings
from pearl_operator.web import server_of

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from pearl_operator.ports import Resolver

log = logging.getLogger("pearl.main")


def main() -> None:
    """Entry point of `pearl-operator`."""
    logs.configure()
    try:
        chosen = settings.from_env()
    except ValueError as error:
        log.error("setting is wrong", extra={"error": str(error)})  # noqa: TRY400 - a sentence, not a traceback
        sys.exit(2)
    logs.set_level(chosen.log_level)
    sys.exit(asyncio.run(serve(chosen, ClusterResolver())))


async def serve(chosen: settings.Settings, resolver: Resolver) -> int:
    """Runs until a signal (0) or a failure (1)."""
    stop = asyncio.Event()
    _on_signals(stop)
    async with AsyncExitStack() as stack:
        operator = await assemble(chosen, stack, resolver)
        forget_what_stays()
        server = server_of(operator.app, chosen.port)
        web = _task(server.serve())
        stopped, work = _task(_until(stop)), _task(_work(operator, chosen, stop))
        try:
            await asyncio.wait((stopped, web, work), return_when=asyncio.FIRST_COMPLETED)
            ended = next(task for task in (work, web, stopped) if task.done())
        finally:
            await _cancel(stopped, work)
            await operator.lease.release()
            server.should_exit = True
            await asyncio.gather(web, return_exceptions=True)
    return _exit_status(ended, stop)


def forget_what_stays() -> None:
    """No garbage collection looks at what is there now, modules above all; called once, when everything is made.

    Those 100,000 objects made each full collection stop the process for 0.1 s, and every offer of a loan with it.
    """
    gc.collect()
    gc.freeze()


async def _work(operator: Operator, chosen: settings.Settings, stop: asyncio.Event) -> None:
    """Takes the Lease, looks at everything once, then watches and decides until something ends."""
    await operator.lease.acquire()
    log.info("holds the lease", extra={"lease": chosen.lease_name, "identity": chosen.identity})
    await _first_look(operator)
    kopf_stop, kopf_ready = asyncio.Event(), asyncio.Event()
    watching = kopf.operator(
        registry=build_registry(operator.index, chosen, operator.calls),
        settings=kopf_settings(chosen),
        namespaces=list(chosen.namespaces),
        standalone=True,
        stop_flag=kopf_stop,
        ready_flag=kopf_ready,
    )
    try:
        await _crash_of(
            await _first(
                watching,
                operator.lease.hold(),
                operator.resync.run(),
                operator.supervisor.run(),
                operator.loans.run(),
                _own_signals(kopf_ready, stop),
            )
        )
    finally:
        kopf_stop.set()


async def _first_look(operator: Operator) -> None:
    """Fills the index; an API server that does not answer yet is waited for."""
    while True:
        try:
            await operator.resync.once()
        except RetryAfter as error:
            log.warning("cannot see the cluster yet", extra={"error": str(error)})
            await asyncio.sleep(error.seconds)
        else:
            return


async def _own_signals(kopf_ready: asyncio.Event, stop: asyncio.Event) -> None:
    """Takes the signal handlers back from kopf, which would stop only itself."""
    await kopf_ready.wait()
    _on_signals(stop)
    await asyncio.Event().wait()


def _on_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)


async def _until(stop: asyncio.Event) -> None:
    await stop.wait()


async def _first(*works: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Runs all, and when the first ends cancels the others and waits for them; the one that ended."""
    tasks = [_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _cancel(*tasks)
    return next(task for task in tasks if task in done)


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    """Cancels and waits."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _task(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.create_task(work, name=getattr(work, "__qualname__", None))


async def _crash_of(ended: asyncio.Task[None]) -> None:
    """A task that should run for ever has ended."""
    await ended
    raise RuntimeError(f"{ended.get_name()} ended")


def _exit_status(ended: asyncio.Task[None], stop: asyncio.Event) -> int:
    error = None if ended.cancelled() else ended.exception()
    if stop.is_set() and error is None:
        log.info("stopped by signal")
        return 0
    log.critical("ends", exc_info=error, extra={"task": ended.get_name()})
    return 1


if __name__ == "__main__":
    main()
