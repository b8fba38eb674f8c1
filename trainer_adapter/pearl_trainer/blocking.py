"""The blocking driver: runs the core's flows on the calling thread, and what must go on beside it on threads."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import httpx2

from pearl_trainer import transport
from pearl_trainer.sansio import Flow, Invoke, Outcome, Request, Send, Sleep, Spawn, Step, Together

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
_THREADS = 64


class _StoppedError(Exception):
    """A background flow was told to end while it slept."""


class Background:
    """A flow that runs beside the caller until it is stopped."""

    def __init__(self, run: Callable[[Callable[[float], None]], object]) -> None:
        self._stopped = threading.Event()
        # A daemon, so that a trainer that forgets to close its loan still exits; the lease then ends by itself.
        self._thread = threading.Thread(target=self._loop, args=(run,), name="pearl-loan", daemon=True)
        self._thread.start()

    def _loop(self, run: Callable[[Callable[[float], None]], object]) -> None:
        try:
            run(self._wait)
        except _StoppedError:
            return

    def _wait(self, seconds: float) -> None:
        if self._stopped.wait(seconds):
            raise _StoppedError

    def stop(self, timeout_seconds: float = 10.0) -> None:
        """Ends it, after the request that it is waiting for."""
        self._stopped.set()
        self._thread.join(timeout_seconds)


class Driver:
    """Runs flows with a thread-safe HTTP client. Close it when done."""

    def __init__(self, transport_: httpx2.BaseTransport | None = None) -> None:
        """`transport_` replaces the network in tests."""
        self._loans = httpx2.Client(transport=transport_, **transport.LOANS)
        self._bulk = httpx2.Client(transport=transport_, **transport.BULK)
        self._running: list[Background] = []
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="pearl")

    def run(self, flow: Flow[T], wait: Callable[[float], None] = time.sleep) -> T:
        """Runs one flow to its end on this thread; raises what it raises."""
        value: Any = None
        try:
            while True:
                value = self._do(flow.send(value), wait)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            flow.close()

    def start(self, flow: Flow[object]) -> Background:
        """Runs one flow beside the caller."""
        background = Background(lambda wait: self.run(flow, wait))
        self._running.append(background)
        return background

    def close(self) -> None:
        """Ends what still runs, waits for what was spawned, and closes all connections."""
        for background in self._running:
            background.stop()
        self._pool.shutdown(wait=True)
        self._loans.close()
        self._bulk.close()

    def _do(self, step: Step, wait: Callable[[float], None]) -> Any:
        if isinstance(step, Send):
            return self._send(step.request)
        if isinstance(step, Sleep):
            return wait(step.seconds)
        if isinstance(step, Invoke):
            return step.function()
        if isinstance(step, Spawn):
            self._pool.submit(self.run, step.flow)
            return None
        return self._together(step, wait)

    def _together(self, step: Together, wait: Callable[[float], None]) -> list[Any]:
        if len(step.flows) == 1:
            return [self.run(step.flows[0], wait)]
        futures = [self._pool.submit(self.run, flow) for flow in step.flows]
        return [future.result() for future in futures]

    def _send(self, request: Request) -> Outcome:
        try:
            client = self._bulk if request.bulk else self._loans
            return transport.reply(client.request(**transport.arguments(request)))
        except transport.NO_REPLY as error:
            return transport.no_reply(error)
