"""Engines for the worker agent to start: emulated ones in this process, or real vLLM in processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pearl_simulator.emulator import EmulatedEngine, EngineConfig, Perturbation
from pearl_simulator.emulator.clock import LoopClock
from pearl_simulator.emulator.peers import LocalPeers
from pearl_worker.engine_command import engine_command
from pearl_worker.engine_http import HttpEngineClient

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import aiohttp

    from gateway_chaos.link import Link
    from pearl_simulator.emulator.peers import Offer
    from pearl_worker.ports import EngineClient, EngineProcess
    from pearl_worker.settings import Settings

# The engine's plugins are a distribution of their own; the guard needs nothing but the standard library.
sys.path.insert(0, str(Path(__file__).parents[3] / "worker_image" / "engine_plugins"))

START_SECONDS = 0.1
_GONE_SECONDS = 0.02


class Launcher(Protocol):
    """A worker's `EngineLauncher`, with ways to break what it started."""

    async def launch(self) -> EngineProcess: ...

    async def murder(self) -> None:
        """`kill -9` of the engine that runs, if one does."""

    async def split(self, seconds: float) -> None:
        """Other engines do not get KV from it for so long, although it looks healthy."""

    def tear_next_load(self) -> None:
        """The next weights do not load, where that can be played."""


class CuttablePeers(LocalPeers):
    """Engines of this process; what comes from a split one takes until it is whole again."""

    def __init__(self) -> None:
        super().__init__()
        self._split: dict[str, asyncio.Event] = {}

    async def claim(self, params: dict[str, Any]) -> Offer | None:
        healed = self._split.get(str(params.get("remote_engine_id")))
        if healed is not None:
            await healed.wait()
        return await super().claim(params)

    async def split(self, engine_id: str, seconds: float) -> None:
        healed = self._split[engine_id] = asyncio.Event()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._split.pop(engine_id, None)
            healed.set()


@dataclass
class EmulatedLauncher:
    """Starts emulated engines behind the real guard."""

    settings: Settings
    config: EngineConfig
    link: Link
    peers: CuttablePeers
    session: aiohttp.ClientSession
    wrap: Callable[[Any], Any]
    """Around the engine, inside the guard: what breaks answers on purpose."""
    engine: EmulatedEngine | None = None
    _torn: bool = False

    async def launch(self) -> EngineProcess:
        from pearl_engine_plugins.guard import EngineGuard

        token = secrets.token_hex(8)
        guard = {
            "PEARL_ENGINE_TOKEN_FILE": str(self.settings.tokens_directory / "engine"),
            "PEARL_ENGINE_ADMIN_TOKEN": token,
            "PEARL_KV_LEASE_SECONDS": str(self.settings.lease_seconds),
        }
        engine = EmulatedEngine(
            replace(self.config, lease_seconds=self.settings.lease_seconds),
            peers=self.peers,
            clock=LoopClock(),
            perturbation=Perturbation(start_seconds=START_SECONDS, fail_weight_load=self._torn),
            wrap=lambda app: EngineGuard(self.wrap(app), guard),
        )
        self._torn = False
        await engine.start()
        self.engine, self.link.target = engine, engine.port
        client = HttpEngineClient(self.session, engine.url, self.settings.model_name, token)
        return _EmulatedProcess(engine, client)

    async def murder(self) -> None:
        if self.engine is not None:
            await self.engine.kill()

    async def split(self, seconds: float) -> None:
        if self.engine is not None:
            await self.peers.split(self.engine.engine.engine_id, seconds)

    def tear_next_load(self) -> None:
        self._torn = True
        if self.engine is not None:
            self.engine.engine.perturbation.fail_weight_load = True


@dataclass
class _EmulatedProcess:
    engine: EmulatedEngine
    client: EngineClient
    pid: int = 0
    _ending: set[asyncio.Task[None]] = field(default_factory=set)

    async def wait(self) -> int:
        await self.engine.died.wait()
        return -signal.SIGKILL

    def terminate(self) -> None:
        self._ending.add(asyncio.ensure_future(self.engine.stop()))

    async def kill(self) -> None:
        await self.engine.kill()


@dataclass
class RealLauncher:
    """Starts vLLM as the worker agent does in a pod."""

    settings: Settings
    link: Link
    session: aiohttp.ClientSession
    log: Path
    environment: Mapping[str, str]
    pid: int | None = None

    async def launch(self) -> EngineProcess:
        token = secrets.token_hex(8)
        command = engine_command(self.settings, os.environ, token)
        environment = {**command.environment, **self.environment}
        with self.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command.argv, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        self.pid, self.link.target = process.pid, self.settings.engine_port
        url = f"http://127.0.0.1:{self.settings.engine_port}"
        return _RealProcess(process, HttpEngineClient(self.session, url, self.settings.model_name, token))

    async def murder(self) -> None:
        self._signal(signal.SIGKILL)

    async def split(self, seconds: float) -> None:
        """It stands still, health checks too: there is no other way to stop its transfers alone."""
        self._signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        self._signal(signal.SIGCONT)

    def tear_next_load(self) -> None:
        """Not played: what a torn load does to vLLM is tested in `tests/contract`."""

    def _signal(self, number: signal.Signals) -> None:
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)


@dataclass
class _RealProcess:
    process: asyncio.subprocess.Process
    client: EngineClient

    @property
    def pid(self) -> int:
        return self.process.pid

    async def wait(self) -> int:
        return await self.process.wait()

    def terminate(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            while True:
                os.killpg(self.process.pid, signal.SIGKILL)
                await asyncio.sleep(_GONE_SECONDS)
        await self.process.wait()
