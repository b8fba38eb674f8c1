"""The operator's side of the loan bench, a process of its own: core, planner and loan service as in production.

Its API server is in memory and takes `API_SECONDS` for a write; its kubelet passes borrower pods on to the process that
plays them. Agents are called over real HTTP.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import aiohttp
from fake_cluster import FakePrometheus, quiet_stats
from fastapi import FastAPI
from loan_cluster import KEY, SPEC, WATCHED, Keys, trainer_pod

from pearl_api import names
from pearl_api.rollout import PearlRolloutSpec
from pearl_dev.virtual.kube import FakeKube
from pearl_operator import kinds
from pearl_operator.agents import AgentClient
from pearl_operator.calls import Calls
from pearl_operator.clock import SystemClock
from pearl_operator.core import Ports, assemble_core
from pearl_operator.http_json import HttpJson
from pearl_operator.index import Index, key_of
from pearl_operator.loans import LoanService
from pearl_operator.main import forget_what_stays
from pearl_operator.resync import Resync
from pearl_operator.settings import Settings
from pearl_operator.web import server_of

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from pearl_api.wire.gateway import GatewayStats
    from pearl_operator.kinds import Kind
    from pearl_operator.ports import PodAddress, RolloutKey

Object = dict[str, Any]
API_SECONDS = 0.005
"""Of a write to the API server; it has etcd to wait for."""


class SlowKube(FakeKube):
    """Writes take as long as on a cluster."""

    async def create(self, kind: Kind, body: Object) -> Object:
        await asyncio.sleep(API_SECONDS)
        return await super().create(kind, body)

    async def apply(self, kind: Kind, body: Object, *, manager: str, force: bool = True) -> Object:
        await asyncio.sleep(API_SECONDS)
        return await super().apply(kind, body, manager=manager, force=force)

    async def apply_status(self, kind: Kind, body: Object, *, manager: str) -> Object:
        await asyncio.sleep(API_SECONDS)
        return await super().apply_status(kind, body, manager=manager)


class PathResolver:
    """All agents answer at one port, told apart by the path."""

    def __init__(self, agents_port: int) -> None:
        self._base = f"http://127.0.0.1:{agents_port}"

    def agent(self, pod: PodAddress) -> str | None:
        return f"{self._base}/{pod.name}" if pod.ip else None

    def gateway(self, rollout: RolloutKey) -> str:
        return f"http://{rollout.name}-gateway"


class QuietGateway:
    """Nothing is asked for: every loan is taken, because the first loans measure what they cost."""

    async def stats(self, rollout: RolloutKey) -> GatewayStats:
        return quiet_stats(rollout.name)


class Kubelet:
    """Tells the other process of borrower pods, and the API server of what becomes of them."""

    def __init__(self, kube: FakeKube, pipe: Connection) -> None:
        self.kube = kube
        self.pipe = pipe
        kube.watchers.append(self._seen)
        asyncio.get_running_loop().add_reader(pipe.fileno(), self._told)

    def _seen(self, event: str, kind: Kind, body: Object) -> None:
        if kind is kinds.POD and names.LABEL_LOAN in body["metadata"].get("labels", {}) and event == "ADDED":
            self.pipe.send(body)

    def _told(self) -> None:
        name, ready = self.pipe.recv()
        self._status(name, ready=ready)

    def _status(self, name: str, *, ready: bool) -> None:
        body = self.kube.objects.get(("pods", "ml", name))
        if body is not None:
            status = {
                "phase": "Running",
                "podIP": "127.0.0.1",
                "containerStatuses": [{"state": {"running": {}}}],
                "conditions": [{"type": "Ready", "status": str(ready)}],
            }
            self.kube.store(kinds.POD, {**body, "status": status})


def review(kube: FakeKube, spec: Object) -> Object:
    """TokenReview: a token names its pod."""
    meta = kube.objects["pods", "ml", str(spec["token"])]["metadata"]
    values = {"pod-name": meta["name"], "pod-uid": meta["uid"], "node-name": "node-1"}
    extra = {f"authentication.kubernetes.io/{name}": [value] for name, value in values.items()}
    user = {"username": "system:serviceaccount:ml:default", "extra": extra}
    return {"authenticated": True, "audiences": ["pearl"], "user": user}


async def serve(pipe: Connection, sets: int, port: int, agents_port: int) -> None:
    """Until the other process says that it is over; then sends the CPU seconds it took."""
    clock = SystemClock()
    kube = SlowKube(clock)  # type: ignore[arg-type]
    kube.review = lambda spec: review(kube, spec)
    spec = {**SPEC, "capacity": {**SPEC["capacity"], "reserved": {"gpus": 1}}}
    spec["capacity"]["borrowed"] = {**SPEC["capacity"]["borrowed"], "maxGpus": sets}
    stored = PearlRolloutSpec.model_validate(spec).model_dump(mode="json", by_alias=True, exclude_none=True)
    kube.store(kinds.ROLLOUT, {"metadata": {"name": KEY.name, "namespace": KEY.namespace}, "spec": stored})
    for number in range(sets):
        kube.store(kinds.POD, trainer_pod(f"trainer-{number}", gpus=1))
    settings = Settings(namespace="pearl", gateway_image="i", trainer_namespaces=("ml",))
    index, resolver, keys = Index(clock=clock), PathResolver(agents_port), Keys()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        agents = AgentClient(HttpJson(session, 2.0, Calls(clock)), keys, resolver)
        service = LoanService(
            kube=kube, index=index, agents=agents, keys=keys, clock=clock, resolver=resolver, settings=settings
        )
        ports = Ports(kube, QuietGateway(), FakePrometheus(), agents, clock, resolver, keys)  # type: ignore[arg-type]
        core = assemble_core(ports, index, service, settings)

        def watch(event: str, kind: Kind, body: Object) -> None:
            if kind not in WATCHED:
                return
            if event == "DELETED":
                index.forget(kind, key_of(kind, body["metadata"]), body["metadata"]["uid"])
            else:
                index.put(kind, body)

        kube.watchers.append(watch)
        await Resync(kube, index, clock, settings).once()
        Kubelet(kube, pipe)
        app = FastAPI()
        app.include_router(service.router())

        @app.post("/over")
        async def over() -> dict[str, float]:
            server.should_exit = True
            return {"cpu_seconds": time.process_time()}

        server = server_of(app, port)
        forget_what_stays()
        works = [asyncio.create_task(work) for work in (core.supervisor.run(), service.run())]
        await server.serve()
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)


def run(pipe: Connection, sets: int, port: int, agents_port: int) -> None:
    """Entry of the process."""
    asyncio.run(serve(pipe, sets, port, agents_port))
