"""One trainer pod, the real loan API, real worker agents and the real SDK, over an in-memory cluster on virtual time.

Faked are the API server, the kubelet (a pod runs at once) and the engine behind the agent's ports; requests travel
through ASGI. The planner is a function of the test's choice.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from fastapi import FastAPI

from pearl_api import names, tokens
from pearl_api.rollout import PearlRolloutSpec
from pearl_api.wire.worker import LoanState, WorkerState
from pearl_operator import kinds
from pearl_operator.errors import AlreadyExists, Conflict, NotFound, Refused, Unavailable
from pearl_operator.index import Index
from pearl_operator.loans import LoanService
from pearl_operator.ports import PodAddress, RolloutKey
from pearl_operator.settings import Settings
from pearl_planner.types import AnswerLoan
from pearl_trainer.async_client import AsyncPearlClient
from pearl_trainer.gpus import MemoryProbe
from pearl_trainer.settings import Settings as TrainerSettings
from pearl_worker import api as worker_api
from pearl_worker.engine import Engine
from pearl_worker.loan import Loan
from pearl_worker.ports import GateState
from pearl_worker.settings import from_env as worker_settings
from pearl_worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from pearl_api.wire.weights import WeightsManifest
    from pearl_api.wire.worker import ActivityRequest, GrantRequest
    from pearl_operator.kinds import Kind

Object = dict[str, Any]
KEY = RolloutKey("pearl", "swe")
ROOT_KEY = "f" * 64
GIB = 1 << 30


class VirtualClock:
    """The event loop's own time, which looptime fast-forwards."""

    def now(self) -> float:
        return 1_800_000_000.0 + asyncio.get_running_loop().time()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class FakeKube:
    """Objects by kind, namespace and name; knows TokenReviews of the one token."""

    def __init__(self, changed: Callable[[str, Kind, Object], None]) -> None:
        self.objects: dict[tuple[str, str | None, str], Object] = {}
        self.changed = changed
        self.down = False
        self.refuse: str | None = None
        self.statuses: list[Object] = []
        """Every GPULoan status written."""
        self._numbers = itertools.count(1)

    def _up(self) -> None:
        if self.down:
            raise Unavailable("the API server does not answer")

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object | None:
        self._up()
        return copy.deepcopy(self.objects.get((kind.plural, namespace, name)))

    async def list(
        self,
        kind: Kind,
        namespace: str | None = None,
        labels: Mapping[str, str] | None = None,
        *,
        fields: Mapping[str, str] | None = None,
    ) -> list[Object]:
        self._up()
        assert namespace is None
        assert labels is None
        del fields  # the bench has one node
        return [copy.deepcopy(body) for (plural, _, _), body in self.objects.items() if plural == kind.plural]

    async def create(self, kind: Kind, body: Object) -> Object:
        self._up()
        meta = body["metadata"]
        if kind is kinds.TOKEN_REVIEW:
            return {"status": self._review(body["spec"])}
        if kind is kinds.POD and self.refuse:
            raise Refused(self.refuse)
        if (kind.plural, meta["namespace"], meta["name"]) in self.objects:
            raise AlreadyExists(meta["name"])
        return self.store(kind, body)

    def _review(self, spec: Object) -> Object:
        if spec != {"token": "projected-token", "audiences": ["pearl"]}:
            return {"authenticated": False, "error": "token is expired"}
        extra = {"pod-name": "trainer-0", "pod-uid": "trainer-uid", "node-name": "node-1"}
        return {
            "authenticated": True,
            "audiences": ["pearl"],
            "user": {
                "username": "system:serviceaccount:ml:default",
                "extra": {f"authentication.kubernetes.io/{name}": [value] for name, value in extra.items()},
            },
        }

    def store(self, kind: Kind, body: Object) -> Object:
        stored = copy.deepcopy(body)
        meta = stored["metadata"]
        number = next(self._numbers)
        meta.setdefault("uid", f"uid-{number}")
        meta["resourceVersion"] = str(number)
        self.objects[kind.plural, meta.get("namespace"), meta["name"]] = stored
        self.changed("ADDED", kind, stored)
        return copy.deepcopy(stored)

    async def dry_run_create(self, kind: Kind, body: Object) -> None:
        raise NotImplementedError

    async def apply(self, kind: Kind, body: Object, *, manager: str, force: bool = True) -> Object:
        del manager, force
        self._up()
        return self.store(kind, body)

    async def apply_status(self, kind: Kind, body: Object, *, manager: str) -> Object:
        del manager
        self._up()
        meta = body["metadata"]
        known = self.objects.get((kind.plural, meta["namespace"], meta["name"]))
        if known is None:
            raise NotFound(meta["name"])
        self.statuses.append(copy.deepcopy(body["status"]))
        return self.store(kind, {**known, "status": body["status"]})

    async def delete(
        self,
        kind: Kind,
        name: str,
        namespace: str | None,
        *,
        uid: str | None = None,
        grace_seconds: int | None = None,
    ) -> None:
        del grace_seconds
        self._up()
        known = self.objects.get((kind.plural, namespace, name))
        if known is None:
            return
        if uid not in (None, known["metadata"]["uid"]):
            raise Conflict(name)
        del self.objects[kind.plural, namespace, name]
        self.changed("DELETED", kind, known)


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
            agent=tokens.derive(ROOT_KEY, "agent"),
            loan=tokens.loan_token(ROOT_KEY, loan.namespace, loan.name, owner),
        )
        self.device = Device()
        self.engine = FakeEngine(self.device)
        self.reachable = True
        self._start()

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


@dataclass
class Network(httpx2.AsyncBaseTransport):
    """Routes by host name to the ASGI applications; what is down refuses connections."""

    operator: FastAPI
    pods: dict[str, BorrowerPod]
    operator_up: bool = True

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        host = request.url.host
        pod = self.pods.get(host)
        up = pod.reachable if pod is not None else host == "operator" and self.operator_up
        if not up:
            raise httpx2.ConnectError("connection refused", request=request)
        app = pod.app if pod is not None else self.operator
        timeout = request.extensions["timeout"]["read"]
        try:
            async with asyncio.timeout(timeout):
                return await httpx2.ASGITransport(app=app).handle_async_request(request)
        except TimeoutError:
            raise httpx2.ReadTimeout("no answer", request=request) from None


class WireAgents:
    """`ports.Agents` over the network, with the agent token."""

    def __init__(self, network: Network) -> None:
        self.network = network

    async def _call(self, method: str, pod: PodAddress, path: str, body: Any = None) -> bytes:
        headers = {"Authorization": f"Bearer {tokens.derive(ROOT_KEY, 'agent')}"}
        content = body.model_dump(mode="json", by_alias=True) if body is not None else None
        async with httpx2.AsyncClient(transport=self.network, trust_env=False, verify=False) as client:
            try:
                answer = await client.request(method, f"http://{pod.name}{path}", headers=headers, json=content)
            except httpx2.TransportError as error:
                raise Unavailable(str(error)) from error
        if answer.status_code >= 500:
            raise Unavailable(answer.text)
        if answer.status_code >= 400:
            raise Refused(answer.text)
        return answer.content

    async def state(self, rollout: RolloutKey, pod: PodAddress) -> WorkerState:
        del rollout
        return WorkerState.model_validate_json(await self._call("GET", pod, "/v1/state"))

    async def set_activity(self, rollout: RolloutKey, pod: PodAddress, request: ActivityRequest) -> WorkerState:
        del rollout
        return WorkerState.model_validate_json(await self._call("POST", pod, "/v1/activity", request))

    async def grant(self, rollout: RolloutKey, pod: PodAddress, request: GrantRequest) -> LoanState:
        del rollout
        return LoanState.model_validate_json(await self._call("POST", pod, "/v1/loan/grant", request))


class Keys:
    async def root_key(self, rollout: RolloutKey) -> str:
        del rollout
        return ROOT_KEY


class Resolver:
    def agent(self, pod: PodAddress) -> str | None:
        return f"http://{pod.name}" if pod.ip else None

    def gateway(self, rollout: RolloutKey) -> str:
        return f"http://{rollout.name}-gateway:8080"


SPEC: Object = {
    "model": {"name": "tiny", "uri": "/models/tiny"},
    "engine": {"image": "example/worker:1", "tensorParallel": 1},
    "capacity": {"reserved": {"gpus": 1}, "borrowed": {"maxGpus": 4, "trainerSelector": {"role": "trainer"}}},
}


def trainer_pod(**labels: str) -> Object:
    gpus = {"limits": {"nvidia.com/gpu": "2"}}
    return {
        "metadata": {
            "name": "trainer-0",
            "namespace": "ml",
            "uid": "trainer-uid",
            "labels": {"role": "trainer", **labels},
        },
        "spec": {"nodeName": "node-1", "containers": [{"name": "train", "resources": gpus}]},
        "status": {"phase": "Running"},
    }


@dataclass
class Bench:
    """Everything of one test."""

    kube: FakeKube
    index: Index
    service: LoanService
    network: Network
    pods: dict[str, BorrowerPod]
    settings: TrainerSettings
    planner: Callable[[], tuple[bool, str] | None] = lambda: (True, "Applied")
    """What the planner answers to an offer; None = nothing."""
    starts_pods: bool = True
    answers: int = 0
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _woken: asyncio.Event = field(default_factory=asyncio.Event)

    def status(self) -> Object:
        return self.kube.objects["gpuloans", "ml", "trainer-0"].get("status", {})

    def client(self) -> AsyncPearlClient:
        clock = asyncio.get_running_loop().time
        return AsyncPearlClient(self.settings, transport=self.network, probe=MemoryProbe(lambda: None), clock=clock)

    async def loop(self) -> None:
        """What the operator's loop does for loans."""
        while True:
            self._woken.clear()
            rollout = self.index.rollouts.get(KEY)
            if rollout is not None and self.network.operator_up:
                await self.service.sync(rollout)
                for loan in self.service.planner_loans(KEY):
                    decision = self.planner() if loan.requested else None
                    if decision is not None:
                        self.answers += 1
                        action = AnswerLoan(loan.name, loan.namespace, loan.epoch, *decision)
                        await self.service.answer(action, rollout)
            try:
                async with asyncio.timeout(2):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def until(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - virtual time, and conditions of any kind
                await asyncio.sleep(0.02)

    def write_token(self, text: str) -> None:
        """Mounts another token."""
        Path(self.settings.token_file).write_text(text)


def _run_pod(bench: Bench, body: Object, root: Path) -> None:
    """The kubelet: an address, a running container."""
    name = body["metadata"]["name"]
    pod = bench.pods[name] = BorrowerPod(body, root / name)
    running = {"phase": "Running", "podIP": "10.0.0.1", "containerStatuses": [{"state": {"running": {}}}]}
    bench.kube.store(kinds.POD, {**body, "status": running})
    del pod


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made: list[Bench] = []

    def changed(event: str, kind: Kind, body: Object) -> None:
        if kind not in (kinds.POD, kinds.LOAN, kinds.ROLLOUT) or not made:
            return
        if event == "DELETED":
            index.forget(kind, (body["metadata"]["namespace"], body["metadata"]["name"]), body["metadata"]["uid"])
            gone = made[0].pods.pop(body["metadata"]["name"], None)
            if gone is not None:
                stopping.append(asyncio.ensure_future(gone.stop()))
            return
        index.put(kind, body)
        borrower = kind is kinds.POD and names.LABEL_LOAN in body["metadata"].get("labels", {})
        if borrower and "status" not in body and made[0].starts_pods:
            asyncio.get_running_loop().call_soon(_run_pod, made[0], copy.deepcopy(body), tmp_path)

    stopping: list[asyncio.Future[None]] = []
    index = Index(clock=VirtualClock())
    kube = FakeKube(changed)
    pods: dict[str, BorrowerPod] = {}
    app = FastAPI()
    network = Network(app, pods)
    settings = Settings(namespace="pearl", gateway_image="example/operator:1", trainer_namespaces=("ml",))
    service = LoanService(
        kube=kube,
        index=index,
        agents=WireAgents(network),
        keys=Keys(),
        clock=VirtualClock(),
        resolver=Resolver(),
        settings=settings,
    )
    app.include_router(service.router())
    token = tmp_path / "token"
    token.write_text("projected-token")
    trainer = TrainerSettings("http://operator", str(token), visible_devices="GPU-a,GPU-b")
    bench = Bench(kube, index, service, network, pods, trainer)
    made.append(bench)
    index.wake = lambda _key: bench._woken.set()
    spec = PearlRolloutSpec.model_validate(SPEC).model_dump(mode="json", by_alias=True, exclude_none=True)
    kube.store(kinds.ROLLOUT, {"metadata": {"name": "swe", "namespace": "pearl", "generation": 1}, "spec": spec})
    kube.store(kinds.POD, trainer_pod())
    works = [asyncio.create_task(bench.loop()), asyncio.create_task(service.run())]
    yield bench
    for work in works:
        work.cancel()
    await asyncio.gather(*works, *stopping, *(pod.stop() for pod in pods.values()), return_exceptions=True)
