"""An emulated engine as an HTTP server of this process: for tests, benchmarks and the command line.

    async with EmulatedEngine(EngineConfig(), peers=LocalPeers()) as engine:
        ... engine.url ...

Many fit into one process. `kill()` is what `kill -9` is to a real engine.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import time
import uuid
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import uvicorn

from pearl_simulator.emulator.app import EmulatorApp
from pearl_simulator.emulator.clock import Clock, LoopClock
from pearl_simulator.emulator.engine import Engine
from pearl_simulator.emulator.peers import LocalPeers, Peers, TcpPeers, serve_side_channel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from pearl_simulator.emulator.config import EngineConfig
    from pearl_simulator.emulator.perturb import Perturbation

_START_SECONDS = 30.0


class EmulatedEngine:
    """One engine on `http://host:port`; port 0 takes a free one."""

    def __init__(  # noqa: PLR0913 - keyword-only, each with a default
        self,
        config: EngineConfig,
        *,
        port: int = 0,
        peers: Peers | None = None,
        clock: Clock | None = None,
        perturbation: Perturbation | None = None,
        seed: int = 0,
        new_id: Callable[[], str] | None = None,
        wrap: Callable[[Any], Any] | None = None,
    ) -> None:
        """`peers` None = over side channels, so that engines of other processes are reached; `wrap` = middleware."""
        self.port = port
        self.url = ""
        self.died = asyncio.Event()
        self._config = config
        self._peers = peers
        self._clock = clock or LoopClock()
        self._perturbation = perturbation
        self._seed = seed
        self._new_id = new_id or (lambda: uuid.uuid4().hex[:16])
        self._wrap = wrap
        self._side: asyncio.Server | None = None
        self._heirs: list[Callable[[], None]] = []
        self._server: Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self.engine: Engine

    async def start(self) -> Self:
        """Serve, after `start_seconds` if the perturbation has some."""
        side_socket_port = await self._open_side_channel()
        self.engine = Engine(
            replace(self._config, side_port=side_socket_port),
            engine_id=str(uuid.uuid5(uuid.NAMESPACE_OID, self._new_id())),
            clock=self._clock,
            peers=self._peers or TcpPeers(),
            draw=random.Random(self._seed),  # noqa: S311 - no secret
            perturbation=self._perturbation,
            on_death=self._on_death,
        )
        if isinstance(self._peers, LocalPeers):
            self._peers.engines[self.engine.engine_id] = self.engine
        await self._clock.sleep(self.engine.perturbation.start_seconds)
        self.engine.start()
        await self._listen()
        return self

    async def _open_side_channel(self) -> int:
        if self._peers is not None or not self._config.kv_transfer:
            return self._config.side_port
        self._side = await serve_side_channel(lambda: self.engine, self._config.host, self._config.side_port)
        port: int = self._side.sockets[0].getsockname()[1]
        return port

    async def _listen(self) -> None:
        app: Any = EmulatorApp(self.engine, self._new_id, time.time)
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # a broken connection is a feature here
        listener = socket.create_server((self._config.host, self.port), backlog=2048)
        # As in vLLM, whose loop sets it: else a second event waits 40 ms for the acknowledgement of the first.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port = listener.getsockname()[1]
        self.url = f"http://{self._config.host}:{self.port}"
        served = uvicorn.Config(
            self._wrap(app) if self._wrap else app,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_keep_alive=120,
        )
        self._server = Server(served)
        self._serving = asyncio.ensure_future(self._server.serve(sockets=[listener]))
        async with asyncio.timeout(_START_SECONDS):
            while not self._server.started:  # noqa: ASYNC110 - uvicorn tells nobody
                await asyncio.sleep(0.002)

    def when_dead(self, call: Callable[[], None]) -> None:
        """Call this once the engine has died."""
        self._heirs.append(call)

    def _on_death(self) -> None:
        self.died.set()
        for call in self._heirs:
            call()
        if self._server is not None:
            # As vLLM: whoever is inside still gets the error, then nothing listens any more.
            self._server.end()

    async def kill(self) -> None:
        """Break every connection and listen no more; nobody inside gets an answer."""
        if self._server is not None:
            for connection in list(self._server.server_state.connections):
                connection.transport.abort()
        await self.stop()

    async def stop(self) -> None:
        """End; connections are closed."""
        if self._server is not None and self._serving is not None:
            self._server.end()
            if self.engine.dead:  # it died by itself: whoever is inside still gets the error
                await asyncio.wait([self._serving], timeout=1.0)
            self._server.force_exit = True
            for connection in list(self._server.server_state.connections):
                connection.transport.abort()
            # Not awaited itself: whoever is cancelled here must not cancel what others wait for too.
            await asyncio.wait([self._serving])
            self._server = None
        self.engine.dead = True
        await self.engine.stop()
        if self._side is not None:
            self._side.close()
        if isinstance(self._peers, LocalPeers):
            self._peers.engines.pop(self.engine.engine_id, None)
        self.died.set()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_error: object) -> None:
        await self.stop()


async def accept_no_more(servers: Iterable[asyncio.Server]) -> None:
    """Let whoever is being accepted come in, and nobody else: asyncio leaves their socket open if it closes first."""
    for server in servers:
        for listener in server.sockets:
            asyncio.get_running_loop().remove_reader(listener.fileno())
    await asyncio.sleep(0)


class Server(uvicorn.Server):
    """A server among others in one process: signals are not its business."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Accept no more, and return from `serve` when those inside have left."""
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        """Wait for the end; uvicorn's own loop wakes ten times a second, which a hundred servers would feel."""
        self.server_state.default_headers = self.config.encoded_headers
        await self._ending.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End, with nobody left half accepted."""
        await accept_no_more(self.servers)
        await super().shutdown(sockets)

    def capture_signals(self) -> Any:
        """Leave the process's handlers alone."""
        return nullcontext()


@asynccontextmanager
async def emulated_fleet(config: EngineConfig, count: int, **more: Any) -> AsyncIterator[list[EmulatedEngine]]:
    """`count` engines of this process that hand KV to each other."""
    peers = LocalPeers()
    engines = [EmulatedEngine(config, peers=peers, seed=number, **more) for number in range(count)]
    try:
        yield list(await asyncio.gather(*(one.start() for one in engines)))
    finally:
        await asyncio.gather(*(one.stop() for one in engines))
