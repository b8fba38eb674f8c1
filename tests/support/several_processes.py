"""Gateways of several processes: all of them in this one, where a test chooses which it talks to, and real ones."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import httpx

from pearl_gateway.processes.assembly import (
    Parts,
    Server,
    internal_config,
    member_parts,
    owner_parts,
    public_config,
    unix_socket,
)
from pearl_gateway.processes.homes import OWNER, home_of
from pearl_gateway.processes.layout import folders, prepare
from pearl_gateway.processes.peers import Peers
from pearl_gateway.processes.status import Status, read_status, socket_of
from pearl_gateway.settings import Limits, Settings, Tokens

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    import uvicorn

    from pearl_gateway.fleet import WorkerFacts

RIGHTS = {"Authorization": "Bearer secret"}
_START_SECONDS = 600.0
"""A busy machine takes its time to import everything three times."""


async def until(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    """Wait for something that tells nobody."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.01)


def name_at(home: int, processes: int, prefix: str = "t") -> str:
    """A trajectory that lives in process `home`."""
    return next(name for at in range(10_000) if home_of(name := f"{prefix}{at}", processes) == home)


class Together:
    """Processes of one gateway in one event loop; `clients[k]` talks to process k."""

    def __init__(self, folder: Path, storage: Path, count: int, settings: dict[str, Any]) -> None:
        self.folder = folder
        self.count = count
        limits = Limits(queue_seconds=5.0, handoff_seconds=1.0, stall_seconds=5.0, prefill_seconds=5.0)
        self._settings = Settings(rollout="r", tokens=Tokens(client="secret"), limits=limits, **settings)
        self._storage = folders(storage, count)
        self._stacks: dict[int, AsyncExitStack] = {}
        self._facts: dict[str, WorkerFacts] = {}
        self.parts: dict[int, Parts] = {}
        self.peers: dict[int, Peers] = {}
        self.urls: dict[int, str] = {}
        self.clients: dict[int, httpx.AsyncClient] = {}
        prepare(storage, count)
        Status(time.monotonic(), time.time(), (0,) * count, (0,) * count).write(folder)

    def gateway(self, process: int) -> Any:
        return self.parts[process].gateway

    def see(self, facts: WorkerFacts, processes: Sequence[int] | None = None) -> None:
        """Some of the processes, or all, see a worker as `facts` say."""
        if processes is None:
            self._facts[facts.uid] = facts
        for process in self.parts if processes is None else processes:
            self.gateway(process).fleet.upsert(facts)

    async def start(self, process: int) -> None:
        from dataclasses import replace

        stack = AsyncExitStack()
        peers = Peers(self.folder, process, self.count)
        stack.push_async_callback(peers.close)
        self.peers[process] = peers
        make = owner_parts if process == OWNER else member_parts
        settings = replace(self._settings, storage=self._storage[process])
        parts = await stack.enter_async_context(make(settings, peers, self.folder))
        for facts in self._facts.values():
            parts.gateway.fleet.upsert(facts)
        parts.gateway.membership_known = True
        await parts.join()
        await stack.enter_async_context(_served(internal_config(parts), unix_socket(socket_of(self.folder, process))))
        for loop in parts.loops:
            task = asyncio.ensure_future(loop)
            stack.push_async_callback(_cancel, task)
        listener = socket.create_server(("127.0.0.1", 0))
        self.urls[process] = f"http://127.0.0.1:{listener.getsockname()[1]}"
        await stack.enter_async_context(_served(public_config(parts, peers), listener))
        client = httpx.AsyncClient(base_url=self.urls[process], headers=RIGHTS, timeout=20)
        self.clients[process] = await stack.enter_async_context(client)
        self._stacks[process], self.parts[process] = stack, parts

    async def stop(self, process: int) -> None:
        """It is gone; what it did not tell anybody is lost."""
        del self.parts[process]
        await self._stacks.pop(process).aclose()

    async def stop_all(self) -> None:
        for process in sorted(self._stacks, reverse=True):
            await self.stop(process)


@asynccontextmanager
async def together(count: int, storage: Path, **settings: Any) -> AsyncIterator[Together]:
    """Processes that all know each other."""
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    made = Together(folder, storage, count, settings)
    try:
        for process in range(count):
            await made.start(process)
        yield made
    finally:
        await made.stop_all()
        shutil.rmtree(folder)


@asynccontextmanager
async def _served(config: uvicorn.Config, listener: socket.socket) -> AsyncIterator[None]:
    server = Server(config)
    task = asyncio.ensure_future(server.serve([listener]))
    try:
        while not server.started:  # noqa: ASYNC110 - uvicorn tells nobody
            await asyncio.sleep(0.005)
        yield
    finally:
        server.should_exit = server.force_exit = True
        await task


async def _cancel(task: asyncio.Future[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class Apart:
    """A real gateway: a supervisor and its processes, at one address; one process is the gateway itself."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.count = count
        self.workers = folder / "workers.json"
        self.log = folder / "log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def place(self, workers: Sequence[dict[str, Any]]) -> None:
        draft = self.workers.with_suffix(".tmp")
        draft.write_text(json.dumps(workers))
        draft.replace(self.workers)

    def start(self) -> None:
        environment = {
            **os.environ,
            "PEARL_ROLLOUT": "r",
            "PEARL_AUTH": "None",
            "PEARL_STORAGE": str(self.folder / "storage"),
            "PEARL_PROCESSES": str(self.count),
            "TMPDIR": str(self.folder),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        command = [sys.executable, "-m", "pearl_gateway.main", "--workers", str(self.workers)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--port", str(self.port)],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    async def ready(self) -> None:
        async with aiohttp.ClientSession() as session, asyncio.timeout(_START_SECONDS):
            while not await _ready(session, self.url):
                assert self._process is not None
                assert self._process.poll() is None, self.log.read_text()
                await asyncio.sleep(0.05)

    def status(self) -> Status:
        return read_status(next(self.folder.glob("pearl-gateway-*")))

    def signal(self, process: int, number: signal.Signals) -> None:
        pid = self.status().pids[process]
        assert pid is not None
        os.kill(pid, number)

    async def stop(self) -> int:
        """The exit status after SIGTERM."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self._process.wait, 300)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@asynccontextmanager
async def apart(count: int, workers: Sequence[dict[str, Any]]) -> AsyncIterator[Apart]:
    """A running gateway of `count` processes before these workers."""
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    made = Apart(folder, count)
    made.place(workers)
    made.start()
    try:
        await made.ready()
        yield made
    finally:
        made.kill()
        shutil.rmtree(folder, ignore_errors=True)


async def _ready(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url + "/ready", timeout=aiohttp.ClientTimeout(total=5)) as response:
            return response.ok
    except (aiohttp.ClientError, OSError, TimeoutError):
        return False


def lines(folder: Path, stem: str) -> Iterator[dict[str, Any]]:
    """Everything in one kind of log."""
    for path in sorted(folder.glob(f"{stem}-*.jsonl")):
        yield from map(json.loads, path.read_text().splitlines())
