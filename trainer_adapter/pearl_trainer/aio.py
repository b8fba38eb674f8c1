"""The asynchronous driver: runs the core's flows as coroutines of the running loop.

What goes on beside the caller for the life of a loan (renewals and repeated offers) runs on a thread with connections
of its own, as under the blocking driver: a trainer that blocks its event loop for a training step keeps its lease.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, TypeVar

import httpx2

from pearl_trainer import blocking, transport
from pearl_trainer.sansio import Flow, Invoke, Outcome, Request, Send, Sleep, Spawn, Step

T = TypeVar("T")


class Background:
    """A flow that runs beside the caller until it is stopped: on a thread, or as a task of the loop."""

    def __init__(self, runs: blocking.Background | asyncio.Task[Any]) -> None:
        self._runs = runs

    async def stop(self) -> None:
        """Ends it; a thread after the request that it is waiting for, meanwhile the loop goes on."""
        if isinstance(self._runs, blocking.Background):
            await asyncio.get_running_loop().run_in_executor(None, self._runs.stop)
        else:
            self._runs.cancel()
            await asyncio.gather(self._runs, return_exceptions=True)


class Driver:
    """Runs flows on the event loop that it is used from. Close it when done."""

    def __init__(self, transport_: httpx2.AsyncBaseTransport | None = None) -> None:
        """`transport_` replaces the network in tests; it belongs to the loop, so background flows run there too."""
        self._threads = blocking.Driver() if transport_ is None else None
        self._loans = httpx2.AsyncClient(transport=transport_, **transport.LOANS)
        self._bulk = httpx2.AsyncClient(transport=transport_, **transport.BULK)
        self._spawned: set[asyncio.Task[Any]] = set()
        self._running: list[Background] = []

    async def run(self, flow: Flow[T]) -> T:
        """Runs one flow to its end; raises what it raises."""
        value: Any = None
        try:
            while True:
                value = await self._do(flow.send(value))
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            flow.close()

    def start(self, flow: Flow[object]) -> Background:
        """Runs one flow, which invokes nothing of the user's, beside the caller."""
        threads = self._threads
        background = Background(asyncio.ensure_future(self.run(flow)) if threads is None else threads.start(flow))
        self._running.append(background)
        return background

    async def close(self) -> None:
        """Ends what still runs, waits for what was spawned, and closes all connections."""
        for background in self._running:
            await background.stop()
        await asyncio.gather(*self._spawned, return_exceptions=True)
        if self._threads is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._threads.close)
        await self._loans.aclose()
        await self._bulk.aclose()

    async def _do(self, step: Step) -> Any:
        if isinstance(step, Send):
            return await self._send(step.request)
        if isinstance(step, Sleep):
            return await asyncio.sleep(step.seconds)
        if isinstance(step, Invoke):
            result = step.function()
            return await result if inspect.isawaitable(result) else result
        if isinstance(step, Spawn):
            task = asyncio.ensure_future(self.run(step.flow))
            self._spawned.add(task)
            task.add_done_callback(self._spawned.discard)
            return None
        return await asyncio.gather(*(self.run(flow) for flow in step.flows))

    async def _send(self, request: Request) -> Outcome:
        try:
            client = self._bulk if request.bulk else self._loans
            return transport.reply(await client.request(**transport.arguments(request)))
        except transport.NO_REPLY as error:
            return transport.no_reply(error)
