"""A worker whose engine, device, clock and weights are played: everything above the ports, in virtual time."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pearl_api.wire.weights import WeightsManifest
from pearl_worker.engine import Engine
from pearl_worker.loan import Loan
from pearl_worker.ports import CanaryError, EngineFaultError, GateState, NoBaseError, WeightsError
from pearl_worker.settings import LoanIdentity, Settings
from pearl_worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from pearl_api.wire.worker import WorkerPhase

# The engine's plugins are a distribution of their own; the guard needs nothing but the standard library.
sys.path.insert(0, str(Path(__file__).parents[3] / "worker_image" / "engine_plugins"))

ENGINE_BYTES = 1000
START_SECONDS = 20.0


@dataclass
class PlayedEngine:
    """One engine process and its HTTP interface. What it does not answer, it refuses as vLLM does."""

    world: World
    pid: int
    ended: asyncio.Future[int]
    gate_open: bool = False
    in_flight: int = 0
    pinned_until: float = 0.0
    pinning: int = 0
    served: int | None = None
    """Version that the gate was opened for."""
    asleep: bool = False
    whole: bool = True
    """False between the start and the end of a weight update: then a request kills it."""
    version: str = "default"
    weights: str = "model"
    calls: list[str] = field(default_factory=list)

    @property
    def client(self) -> PlayedEngine:
        return self

    async def wait(self) -> int:
        return await asyncio.shield(self.ended)

    def die(self, code: int) -> None:
        if not self.ended.done():
            self.ended.set_result(code)
        self.world.engine_bytes.pop(self.pid, None)

    def terminate(self) -> None:
        self.die(0)

    async def kill(self) -> None:
        await asyncio.sleep(self.world.kill_seconds)
        self.die(-9)

    async def _call(self, name: str) -> None:
        self.calls.append(name)
        if self.ended.done():
            raise EngineFaultError(f"{name} failed: connection refused")
        if name in self.world.hanging:
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(0.01)

    async def healthy(self) -> bool:
        if self.ended.done() or self.world.now() < self.world.up_at:
            return False
        self.world.engine_bytes.setdefault(self.pid, ENGINE_BYTES)
        return True

    async def canary(self) -> str:
        await self._call("generate")
        if not self.whole:
            self.die(0)
            raise EngineFaultError("generate failed: engine died")
        if self.weights in self.world.poisoned:
            raise CanaryError("the canary's logprobs are [nan]")
        return self.version

    async def gate(self, *, open_: bool | None = None, version: int | None = None) -> GateState:
        await self._call(f"gate {open_}")
        if open_ is not None:
            self.gate_open, self.served = open_, version
        pinned = max(0.0, self.pinned_until - self.world.now())
        return GateState(self.gate_open, self.in_flight, pinned, self.pinning)

    async def abort_all(self) -> int:
        await self._call("abort")
        aborted, self.in_flight = self.in_flight, 0
        return aborted

    async def reset_prefix_cache(self) -> bool:
        await self._call("reset")
        return self.in_flight == 0 and self.world.now() >= self.pinned_until

    async def pause(self, mode: str) -> None:
        await self._call(f"pause {mode}")
        await asyncio.sleep(max(0.0, self.pinned_until - self.world.now()))  # as vLLM blocks

    async def resume(self) -> None:
        await self._call("resume")

    async def prepare_weight_updates(self) -> None:
        await self._call("prepare")

    async def start_weight_update(self) -> None:
        await self._call("start_update")
        self.whole = False

    async def load_weight_files(self, paths: Sequence[Path]) -> None:
        await self._call("load")
        if any(path.name in self.world.breaking for path in paths):
            raise EngineFaultError("POST /update_weights answered 500")
        self.weights = paths[0].name

    async def finish_weight_update(self, version: int) -> None:
        await self._call("finish_update")
        self.whole, self.version = True, str(version)

    async def label_weights(self, version: int) -> None:
        self.version = str(version)

    async def sleep(self, level: int) -> None:
        await self._call(f"sleep {level}")
        self.asleep = True
        self.world.engine_bytes[self.pid] = self.world.asleep_bytes

    async def wake(self, tags: str | None = None) -> None:
        # It is under way in the engine whether or not the caller still waits for it.
        asyncio.get_running_loop().call_later(self.world.wake_seconds, self._take_memory)
        await self._call(f"wake {tags}")
        await asyncio.sleep(self.world.wake_seconds)
        self.asleep = False

    def _take_memory(self) -> None:
        if not self.ended.done():
            self.world.engine_bytes[self.pid] = ENGINE_BYTES


@dataclass
class World:
    """Everything around the worker, and handles to disturb it."""

    settings: Settings
    engines: list[PlayedEngine] = field(default_factory=list)
    engine_bytes: dict[int, int] = field(default_factory=dict)
    trainer_bytes: int = 0
    device_readable: bool = True
    up_at: float = 0.0
    start_seconds: float = START_SECONDS
    kill_seconds: float = 0.1
    hanging: set[str] = field(default_factory=set)
    breaking: set[str] = field(default_factory=set)
    poisoned: set[str] = field(default_factory=set)
    """Weights that load and compute nonsense."""
    asleep_bytes: int = 0
    wake_seconds: float = 0.0
    problem: str = ""
    base_is_local: bool = True
    manifest_now: WeightsManifest | None = None
    unfetchable: str = ""
    fetch_seconds: float = 0.0
    worker: Worker = field(init=False)

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def engine(self) -> PlayedEngine:
        return self.engines[-1]

    # ports

    async def launch(self) -> PlayedEngine:
        self.up_at = self.now() + self.start_seconds
        self.engines.append(PlayedEngine(self, 100 + len(self.engines), asyncio.get_running_loop().create_future()))
        return self.engine

    def used_bytes(self) -> tuple[int, ...] | None:
        return (self.trainer_bytes + sum(self.engine_bytes.values()),) if self.device_readable else None

    async def manifest(self) -> WeightsManifest | None:
        return self.manifest_now

    async def fetch(self, manifest: WeightsManifest) -> Sequence[Path]:
        if self.unfetchable:
            raise WeightsError(self.unfetchable)
        await asyncio.sleep(self.fetch_seconds)
        return [Path(manifest.uri)]

    async def base(self) -> Sequence[Path]:
        if not self.base_is_local:
            raise NoBaseError("model holds no *.safetensors file")
        return [Path("model")]

    # handles

    def publish(self, version: int) -> None:
        self.manifest_now = WeightsManifest(version=version, uri=f"v{version}", sha256="0" * 64)

    def new_worker(self) -> Worker:
        """A worker as a newly started agent makes it (again); the loan file is the same."""
        loan = Loan(self, self.settings.state_directory / "loan.json", 0) if self.settings.loan else None
        self.worker = Worker(self.settings, Engine(self.settings, self), self, loan)
        return self.worker

    def phase(self) -> WorkerPhase:
        return self.worker.state().phase

    async def until(self, phase: WorkerPhase, seconds: float = 120.0) -> float:
        """Wait for `phase`; how long it took."""
        began = self.now()
        await self.wait_for(lambda: self.phase() is phase, seconds)
        return self.now() - began

    async def wait_for(self, condition: Callable[[], bool], seconds: float = 120.0, step: float = 0.05) -> None:
        """Wait in small steps of virtual time."""
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - virtual time costs nothing
                await asyncio.sleep(step)


@pytest.fixture
def make_world(tmp_path: Path) -> Callable[..., World]:
    """Makes a world; `borrowed=True` for a borrower."""

    def make(*, borrowed: bool = False, **changes: object) -> World:
        settings = Settings(
            model="model",
            model_name="m",
            lease_seconds=3.0 if borrowed else 10.0,
            loan=LoanIdentity(namespace="train", name="job-0") if borrowed else None,
            state_directory=tmp_path,
            **changes,  # type: ignore[arg-type]
        )
        world = World(settings)
        world.new_worker()
        return world

    return make


@pytest.fixture
async def run() -> AsyncIterator[Callable[[Worker], asyncio.Task[None]]]:
    """Runs workers until the test ends."""
    tasks: list[asyncio.Task[None]] = []

    def start(worker: Worker) -> asyncio.Task[None]:
        tasks.append(asyncio.create_task(worker.run()))
        return tasks[-1]

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
