"""A borrower pod on this side of the network: the real worker agent over an engine and a device that are not there."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pearl_api import tokens
from pearl_worker import api as worker_api
from pearl_worker.engine import Engine
from pearl_worker.loan import Loan
from pearl_worker.ports import GateState
from pearl_worker.settings import from_env as worker_settings
from pearl_worker.worker import Worker

if TYPE_CHECKING:
    from pathlib import Path

    from pearl_api.wire.weights import WeightsManifest

Object = dict[str, Any]
ROOT_KEY = "f" * 64
GIB = 1 << 30


class Device:
    """The memory of the borrowed GPU."""

    def __init__(self) -> None:
        self.used: int | None = 0
        self.problem = ""

    def used_bytes(self) -> tuple[int, ...] | None:
        return None if self.used is None else (self.used,)


class FakeEngine:
    """Process, launcher and HTTP client of one engine; its memory is on the device while it is awake."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.pid = 4711
        self.client = self
        self.running = False
        self.sleeps = True
        self.start_seconds = 5.0
        self.in_flight = 0
        self.pinned_seconds = 0.0
        self.launches = 0
        self.kills = 0
        self._up_at = 0.0
        self._gone = asyncio.Event()
        self._open = False

    async def launch(self) -> FakeEngine:
        self.launches += 1
        self.running = True
        self._gone.clear()
        self._up_at = asyncio.get_running_loop().time() + self.start_seconds
        self.device.used = (self.device.used or 0) + 20 * GIB
        return self

    async def wait(self) -> int:
        await self._gone.wait()
        return -9

    def terminate(self) -> None:
        self._end()

    async def kill(self) -> None:
        self.kills += 1
        self._end()

    def _end(self) -> None:
        if self.running:
            self.running = False
            self.device.used = 0
            self._gone.set()

    async def healthy(self) -> bool:
        return asyncio.get_running_loop().time() >= self._up_at

    async def canary(self) -> str:
        return "0"

    async def gate(self, *, open_: bool | None = None, version: int | None = None) -> GateState:
        del version
        self._open = self._open if open_ is None else open_
        return GateState(open=self._open, in_flight=self.in_flight, pinned_seconds=self.pinned_seconds)

    async def abort_all(self) -> int:
        aborted, self.in_flight = self.in_flight, 0
        return aborted

    async def reset_prefix_cache(self) -> bool:
        return True

    async def sleep(self, level: int) -> None:
        del level
        if self.sleeps:
            self.device.used = 0
        else:
            await asyncio.sleep(3600)

    async def wake(self, tags: str | None = None) -> None:
        if tags != "kv_cache":
            self.device.used = 20 * GIB

    async def pause(self, mode: str) -> None: ...
    async def resume(self) -> None: ...
    async def prepare_weight_updates(self) -> None: ...
    async def start_weight_update(self) -> None: ...
    async def load_weight_files(self, paths: object) -> None: ...
    async def finish_weight_update(self, version: int) -> None: ...
    async def label_weights(self, version: int) -> None: ...


class NoWeights:
    """Version 0 only."""

    async def manifest(self) -> WeightsManifest | None:
        return None

    async def fetch(self, manifest: WeightsManifest) -> list[Path]:
        raise NotImplementedError

    async def base(self) -> list[Path]:
        return []


class BorrowerPod:
    """The agent of one borrower pod: a real `Worker` behind its real API. `restart` is a container restart."""

    def __init__(self, body: Object, state: Path) -> None:
        container = body["spec"]["containers"][0]
        environment = {item["name"]: item.get("value", "") for item in container["env"]}
        environment |= {"PEARL_STATE_DIR": str(state), "PEARL_POD_UID": body["metadata"]["uid"]}
        self.settings = worker_settings(environment | {"PEARL_ENGINE_DEVICE": "gpu"})
        loan = self.settings.loan
        assert loan is not None
        owner = body["metadata"]["ownerReferences"][0]["uid"]
        self.tokens = worker_api.Tokens(
            agent=tokens.of_borrower(tokens.derive(ROOT_KEY, "agent"), tokens.lender(loan.namespace, loan.name, owner)),
            loan=tokens.loan_token(ROOT_KEY, loan.namespace, loan.name, owner),
        )
        self.device = Device()
        self.engine = self.make_engine()
        self.reachable = True
        self._start()

    def make_engine(self) -> FakeEngine:
        return FakeEngine(self.device)

    def _start(self) -> None:
        self.settings.state_directory.mkdir(parents=True, exist_ok=True)
        loan = Loan(self.device, self.settings.state_directory / "loan.json", self.settings.memory_allowance_bytes)
        self.worker = Worker(self.settings, Engine(self.settings, self.engine), NoWeights(), loan)
        clock = asyncio.get_running_loop().time
        self.app = worker_api.build_api(self.worker, self.tokens, clock)
        self._task = asyncio.create_task(self.worker.run())

    async def restart(self) -> None:
        """PID 1 dies, and with it everything in the container; the kubelet starts it anew on the same volume."""
        await self.stop()
        self._start()

    async def stop(self) -> None:
        while not self._task.done():  # it may be about to await something that swallows one cancellation
            self._task.cancel()
            await asyncio.sleep(0)
        self.engine._end()
