"""PEARL as a trainer meets it: an operator and borrower agents behind one in-memory transport, on virtual time."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from pearl_trainer.async_client import AsyncPearlClient
from pearl_trainer.gpus import MemoryProbe
from pearl_trainer.settings import Settings
from pearl_worker.fence import Fence, FencedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

OPERATOR = "http://operator:8090"
TTL_SECONDS = 8.0
RECLAIM_SECONDS = 10.0

Answer = tuple[int, Any]


class LostError(Exception):
    """The request was handled, and its answer never arrives."""


@dataclass
class Agent:
    """A borrower's agent with the real fence; vacating the GPU takes `vacate_seconds`."""

    number: int
    vacate_seconds: float = 0.3
    reachable: bool = True
    memory_comes_back: bool = True
    fence: Fence = field(default_factory=Fence)
    heartbeats: list[float] = field(default_factory=list)
    has_address: bool = True
    tries: int = 0
    """Calls while it could not be reached."""

    @property
    def host(self) -> str:
        return f"agent-{self.number}"

    def endpoint(self) -> dict[str, str | None]:
        return {
            "pod": f"trainer-0-borrower-{self.number}",
            "uid": f"uid-{self.number}",
            "url": f"http://{self.host}:8001" if self.has_address else None,
        }

    def now_fence(self) -> Fence:
        self.fence = self.fence.expire(now())
        return self.fence

    def restart(self) -> None:
        """A new process knows the last epoch from disk and no grant."""
        self.fence = Fence(epoch=self.fence.epoch)

    async def handle(self, path: str, body: Any) -> Answer:
        epoch = body["epoch"]
        try:
            if path == "/v1/loan/heartbeat":
                self.fence = self.now_fence().renew(epoch, now())
                self.heartbeats.append(now())
                return 200, {"epoch": epoch, "fenced": False, "granted": True}
            self.fence = self.now_fence().reclaim(epoch)
        except FencedError as error:
            return 409, {"error": "Fenced", "message": str(error)}
        took = min(self.vacate_seconds, body["withinSeconds"])
        await asyncio.sleep(took)
        free = self.memory_comes_back and took == self.vacate_seconds
        return 200, {
            "epoch": epoch,
            "free": free,
            "killed": False,
            "drainSeconds": 0.0,
            "sleepSeconds": took,
            "totalSeconds": took,
            "message": "" if free else "1073741824 bytes of the device are in use",
        }


@dataclass
class Pearl(httpx2.AsyncBaseTransport):
    """Operator and agents; every fault is a field."""

    agents: list[Agent]
    operator_up: bool = True
    grants: bool = True
    reason: str = "Applied"
    lose_lend_answers: bool = False
    gone: set[int] = field(default_factory=set)
    epoch: int = 0
    lends: list[dict[str, Any]] = field(default_factory=list)
    notices: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    registered: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    weights_source: str | None = None
    views: int = 0
    """Questions which borrower pods exist."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await asyncio.sleep(0.001)
        body = json.loads(request.content) if request.content else None
        try:
            status, answer = await self._answer(request, body)
        except LostError:
            raise httpx2.ReadTimeout("no answer", request=request) from None
        return httpx2.Response(status, json=answer, request=request)

    async def _answer(self, request: httpx2.Request, body: Any) -> Answer:
        for agent in self.agents:
            if request.url.host == agent.host:
                if not agent.reachable:
                    agent.tries += 1
                    raise httpx2.ConnectError("connection refused", request=request)
                assert request.headers["Authorization"] == "Bearer loan-token"
                return await agent.handle(request.url.path, body)
        if not self.operator_up:
            raise httpx2.ConnectError("connection refused", request=request)
        return self._operator(request.method, request.url.path.removeprefix("/v1/loans"), request, body)

    def _operator(self, method: str, path: str, request: httpx2.Request, body: Any) -> Answer:
        if path == "/register":
            self.registered.append((request.headers["Authorization"], body))
            return 200, self._registration()
        assert request.headers["Authorization"] == "Bearer loan-token"
        tail = path.removeprefix("/ml/trainer-0")
        if tail == "/lend":
            return self._lend(body)
        self.views += method == "GET"
        if method == "POST":
            self.notices.append((tail, body))
        if method == "DELETE":
            self.notices.append(("deregister", {}))
        return 200, {
            "namespace": "ml",
            "name": "trainer-0",
            "epoch": self.epoch,
            "phase": "Serving",
            "agents": [agent.endpoint() for agent in self.agents if agent.number not in self.gone],
        }

    def _registration(self) -> dict[str, Any]:
        return {
            "namespace": "ml",
            "name": "trainer-0",
            "token": "loan-token",
            "slots": len(self.agents),
            "agents": [agent.endpoint() for agent in self.agents],
            "gatewayUrl": "http://gateway:8080",
            "gatewayToken": "client-token",
            "weightsSource": self.weights_source,
            "reclaimSeconds": RECLAIM_SECONDS,
            "heartbeatSeconds": 1.0,
            "ttlSeconds": TTL_SECONDS,
            "epoch": self.epoch,
        }

    def _lend(self, body: dict[str, Any]) -> Answer:
        self.lends.append(body)
        if self.grants:
            self.epoch = max(self.epoch, body["afterEpoch"]) + 1
            for agent in self.agents:
                agent.fence = agent.now_fence().grant(self.epoch, TTL_SECONDS, now())
        if self.lose_lend_answers:
            raise LostError
        return 200, {
            "epoch": self.epoch,
            "granted": self.grants,
            "reason": self.reason,
            "message": "",
            "agents": [agent.endpoint() for agent in self.agents],
        }


@dataclass
class Group(httpx2.AsyncBaseTransport):
    """The operator with a group of pods, one borrower each; an agent takes no token but its own."""

    agents: list[Agent] = field(default_factory=list)
    registered: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    notices: list[dict[str, Any]] = field(default_factory=list)
    epoch: int = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await asyncio.sleep(0.001)
        body = json.loads(request.content) if request.content else None
        status, answer = await self._answer(request, body)
        return httpx2.Response(status, json=answer, request=request)

    async def _answer(self, request: httpx2.Request, body: Any) -> tuple[int, Any]:
        path = request.url.path
        for agent in self.agents:
            if request.url.host == agent.host:
                assert request.headers["Authorization"] == f"Bearer token-of-{agent.number}"
                return await agent.handle(path, body)
        if path == "/v1/loans/register":
            self.enrol(body["gpus"][0])
            return 200, self._registration(f"pod-{len(self.registered)}", "pod-token", None)
        if path == "/v1/groups/register":
            assert body == {"rollout": "swe", "group": "job-7", "members": 2, "audience": "pearl"}
            return 200, self._registration("job-7", "group-token", "/v1/groups/ml/job-7")
        if request.method == "DELETE":
            self.left.append(path)
        if path == "/v1/groups/ml/job-7/lend":
            assert request.headers["Authorization"] == "Bearer group-token"
            return 200, self._lend(body)
        if path.endswith("/reclaimed"):
            self.notices.append(body)
        return 200, {"namespace": "ml", "name": "job-7", "epoch": self.epoch, "phase": "Serving", **self._agents()}

    def enrol(self, gpu: str) -> Agent:
        self.registered.append(gpu)
        self.agents.append(Agent(len(self.agents)))
        return self.agents[-1]

    def _registration(self, name: str, token: str, path: str | None) -> dict[str, Any]:
        known = {"gatewayUrl": "http://gw", "gatewayToken": "y", "weightsSource": None, "slots": len(self.agents)}
        times = {"reclaimSeconds": 10.0, "heartbeatSeconds": 1.0, "ttlSeconds": 8.0}
        return {"namespace": "ml", "name": name, "token": token, "path": path, **known, **times, **self._agents()}

    def _lend(self, body: dict[str, Any]) -> dict[str, Any]:
        granted = len(self.registered) == body["members"] == 2
        if granted:
            self.epoch = max(self.epoch, body["afterEpoch"]) + 1
            for agent in self.agents:
                agent.fence = agent.now_fence().grant(self.epoch, 8.0, now())
        reason = "Applied" if granted else "MembersMissing"
        return {"epoch": self.epoch, "granted": granted, "reason": reason, **self._agents()}

    def _agents(self) -> dict[str, Any]:
        return {"agents": [{**agent.endpoint(), "token": f"token-of-{agent.number}"} for agent in self.agents]}


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    token = tmp_path / "token"
    token.write_text("projected-token\n")
    return Settings(operator_url=OPERATOR, token_file=str(token), visible_devices="GPU-a,GPU-b")


@pytest.fixture
def pearl() -> Pearl:
    return Pearl([Agent(0), Agent(1)])


@pytest.fixture
def group() -> Group:
    return Group()


class Device:
    """What the trainer reads of its own GPUs."""

    def __init__(self) -> None:
        self.used: tuple[int, ...] | None = None


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
async def client(pearl: Pearl, settings: Settings, device: Device) -> AsyncIterator[AsyncPearlClient]:
    made = AsyncPearlClient(settings, transport=pearl, probe=MemoryProbe(lambda: device.used), clock=now)
    yield made
    await made.close()
