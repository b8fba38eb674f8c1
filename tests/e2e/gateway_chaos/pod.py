"""One worker pod without a pod: the real agent with its HTTP interface, an engine, a GPU that is played, and a link."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import uvicorn

from pearl_api.names import Activity, Role
from pearl_simulator.emulator.serving import Server
from pearl_worker.api import Tokens, build_api
from pearl_worker.device import FakeDevice
from pearl_worker.engine import Engine
from pearl_worker.loan import DeviceBusyError, Loan
from pearl_worker.waiting import now
from pearl_worker.weights import CheckedSource
from pearl_worker.worker import Worker

if TYPE_CHECKING:
    from pathlib import Path

    from gateway_chaos.launch import Launcher
    from gateway_chaos.link import Link
    from pearl_worker.settings import Settings
    from pearl_worker.stores import Store

AGENT_TOKEN = "agent"  # noqa: S105 - everything is on loopback
TTL_SECONDS = 3600.0
LEND_SECONDS = 20.0
_ENGINE_BYTES = 1000


@dataclass
class PlayedDevice:
    """Holds memory while an engine is awake."""

    engine: Engine
    problem: str = ""

    def used_bytes(self) -> tuple[int, ...] | None:
        facts = self.engine.facts
        awake = facts.running and (not facts.asleep or facts.half_awake)
        return (_ENGINE_BYTES if awake else 0,)


@dataclass
class Pod:
    """`role`, `activity`, `ready` are what labels and the kubelet would say."""

    name: str
    uid: str
    settings: Settings
    launcher: Launcher
    link: Link
    agent_link: Link
    store: Store
    role: Role = Role.COLOCATED
    epoch: int = 0
    activity: Activity = Activity.ACTIVE
    borrowed: bool = False
    there: bool = True
    loan_epoch: int = 0
    worker: Worker = field(init=False)
    _server: Server = field(init=False)
    _tasks: list[asyncio.Task[Any]] = field(default_factory=list)

    async def start(self) -> Pod:
        engine = Engine(self.settings, self.launcher)
        folder = self.settings.fake_device
        device = FakeDevice(folder) if folder is not None else PlayedDevice(engine)
        loan = Loan(device, self.settings.state_directory / "loan.json", 0) if self.borrowed else None
        self.worker = Worker(self.settings, engine, CheckedSource(self.store, self.settings.model), loan)
        if loan is not None:
            self._grant()
        app = build_api(self.worker, Tokens(AGENT_TOKEN, "loan" if loan else None), asyncio.get_running_loop().time)
        self._server = Server(uvicorn.Config(app, port=0, log_config=None, access_log=False, timeout_keep_alive=75))
        self._tasks = [asyncio.ensure_future(self._server.serve()), asyncio.ensure_future(self.worker.run())]
        while not self._server.started:  # noqa: ASYNC110 - uvicorn tells nobody
            await asyncio.sleep(0.005)
        self.agent_link.target = self._server.servers[0].sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """Gone at once, as a pod is whose node died."""
        self.there = False
        self._tasks[1].cancel()
        await asyncio.gather(self._tasks[1], return_exceptions=True)
        await self.worker.engine.kill()
        self._server.force_exit = True
        self._server.end()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in (self.link, self.agent_link):
            await link.close()

    def failed(self) -> BaseException | None:
        """A bug that ended the agent."""
        run = self._tasks[1]
        return run.exception() if self.there and run.done() and not run.cancelled() else None

    def facts(self) -> dict[str, Any]:
        """Its entry in the list of workers."""
        return {
            "url": self.link.url,
            "agentUrl": self.agent_link.url,
            "pod": self.name,
            "uid": self.uid,
            "role": str(self.role),
            "roleEpoch": self.epoch,
            "activity": str(self.activity),
            "ready": self.worker.ready,
            "borrowed": self.borrowed,
        }

    def say(self, activity: Activity, deadline_seconds: float = 0.0) -> None:
        """What the operator does: the label, and a call to the agent."""
        self.activity = activity
        self.worker.set_activity(activity, deadline_seconds)

    def flip(self, role: Role) -> None:
        self.role, self.epoch = role, self.epoch + 1

    async def reclaim(self, within_seconds: float, away_seconds: float) -> str:
        """The trainer takes its GPU back, and lends it again; what did not hold, or nothing."""
        answer = await self.worker.reclaim(self.loan_epoch, within_seconds)
        await asyncio.sleep(away_seconds)
        give_up = now() + LEND_SECONDS
        while True:
            try:
                self._grant()
                break
            except DeviceBusyError as error:
                if now() > give_up:
                    return f"{self.name}: cannot be lent again after {LEND_SECONDS:g} s: {error}; {self.worker.state()}"
                await asyncio.sleep(0.05)
        return "" if answer.free else f"{self.name}: not free {within_seconds:g} s after a reclaim: {answer.message}"

    def _grant(self) -> None:
        assert self.worker.loan is not None
        self.loan_epoch += 1
        absent = not self.worker.engine.facts.running
        self.worker.loan.grant(self.loan_epoch, TTL_SECONDS, now(), engine_absent=absent)
        self.worker.loan_changed()


def write_tokens(folder: Path) -> None:
    """The mounted Secret."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("agent", "engine"):
        (folder / name).write_text(AGENT_TOKEN if name == "agent" else "engine")
