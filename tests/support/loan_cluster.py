"""Trainers and an operator with its loan service over the in-memory cluster, with real SDKs and real worker agents.

Faked are the API server, the kubelet (a pod runs at once) and the engines behind the agents' ports; requests travel
through ASGI. Who decides on offers is the test's choice: a function of its own, or the operator's planner.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx2
from fake_borrower import ROOT_KEY, BorrowerPod
from fake_cluster import FakeGateway, FakePrometheus
from fastapi import FastAPI

from pearl_api import names, tokens
from pearl_api.rollout import PearlRolloutSpec
from pearl_api.wire.worker import LoanState, WorkerState
from pearl_dev.virtual.clock import VirtualClock
from pearl_dev.virtual.kube import FakeKube
from pearl_dev.virtual.kubelet import FakeKubelet
from pearl_operator import kinds
from pearl_operator.core import Ports, assemble_core
from pearl_operator.errors import Refused, Unavailable
from pearl_operator.index import Index, key_of
from pearl_operator.loans import LoanService
from pearl_operator.ports import PodAddress, RolloutKey
from pearl_operator.resync import Resync
from pearl_operator.settings import Settings
from pearl_planner.types import AnswerLoan
from pearl_trainer.async_client import AsyncPearlClient
from pearl_trainer.gpus import MemoryProbe
from pearl_trainer.settings import Settings as TrainerSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pearl_api.wire.worker import ActivityRequest, GrantRequest
    from pearl_operator.kinds import Kind

Object = dict[str, Any]
KEY = RolloutKey("pearl", "swe")
WATCHED = (kinds.POD, kinds.ROLLOUT, kinds.LOAN)
SPEC: Object = {
    "model": {"name": "tiny", "uri": "/models/tiny"},
    "engine": {"image": "example/worker:1", "tensorParallel": 1},
    "capacity": {"reserved": {"gpus": 1}, "borrowed": {"maxGpus": 8, "trainerSelector": {"role": "trainer"}}},
}


def trainer_pod(name: str = "trainer-0", *, gpus: int = 2, node: str = "node-1", **labels: str) -> Object:
    limits = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    return {
        "metadata": {"name": name, "namespace": "ml", "uid": f"{name}-uid", "labels": {"role": "trainer", **labels}},
        "spec": {"nodeName": node, "containers": [{"name": "train", "resources": limits}]},
        "status": {"phase": "Running"},
    }


@dataclass
class Network(httpx2.AsyncBaseTransport):
    """Routes by host name to the ASGI applications; what is down refuses connections.

    The host of an agent is its pod's name, and its UID as trainers have it: a pod made anew has another address.
    """

    operator: FastAPI
    pods: dict[str, BorrowerPod]
    operator_up: bool = False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        host, _, uid = request.url.host.partition(".")
        pod = self.pods.get(host)
        if pod is not None:
            up = pod.reachable and uid in ("", pod.settings.pod_uid)
        else:
            up = host == "operator" and self.operator_up
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
        headers = {"Authorization": f"Bearer {tokens.of_borrower(tokens.derive(ROOT_KEY, 'agent'), pod.lender)}"}
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

    async def keep(self) -> None:
        pass


class Resolver:
    def agent(self, pod: PodAddress) -> str | None:
        return f"http://{pod.name}.{pod.uid}" if pod.ip else None

    def gateway(self, rollout: RolloutKey) -> str:
        return f"http://{rollout.name}-gateway:8080"


class ReservedKubelet(FakeKubelet):
    """Runs the rollout's own workers; trainers run already, and borrowers have real agents."""

    def _seen(self, event: str, kind: Kind, body: Object) -> None:
        labels = body["metadata"].get("labels", {})
        if names.LABEL_ROLLOUT in labels and names.LABEL_LOAN not in labels:
            super()._seen(event, kind, body)


class LoanCluster:
    """One rollout `pearl/swe`, trainer pods in namespace `ml`, and at most one operator."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = VirtualClock()
        self.kube = FakeKube(self.clock, review=self._review)
        ReservedKubelet(self.kube)
        self.kube.watchers.append(self._kubelet)
        self.pods: dict[str, BorrowerPod] = {}
        """Borrowers that run, by name."""
        self.network = Network(FastAPI(), self.pods)
        self.statuses: list[Object] = []
        """Every GPULoan as it was stored."""
        self.starts_pods = True
        self.planner: Callable[[], tuple[bool, str] | None] = lambda: (True, "Applied")
        """What is answered to an offer; None = nothing."""
        self.answers = 0
        self.index = Index(clock=self.clock)
        self.service: LoanService
        self._woken = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping: list[asyncio.Future[None]] = []
        spec = PearlRolloutSpec.model_validate(SPEC).model_dump(mode="json", by_alias=True, exclude_none=True)
        self.rollout_body = {"metadata": {"name": KEY.name, "namespace": KEY.namespace}, "spec": spec}

    async def begin(self, *, planner: bool = False) -> AsyncPearlClient:
        """The rollout, a trainer pod, an operator; the SDK. Not for fixtures: virtual time begins with the test."""
        self.kube.store(kinds.ROLLOUT, self.rollout_body)
        settings = self.add_trainer()
        await self.start(planner=planner)
        await asyncio.sleep(0.1)
        return self.client(settings)

    # --- trainers

    def add_trainer(self, name: str = "trainer-0", **options: Any) -> TrainerSettings:
        """A trainer pod with its projected token; the settings of an SDK in it."""
        self.kube.store(kinds.POD, trainer_pod(name, **options))
        token = self.root / f"token-{name}"
        token.write_text(f"token of {name}")
        gpus = range(options.get("gpus", 2))
        devices = ",".join(f"GPU-{name}-{number}" for number in gpus)
        return TrainerSettings("http://operator", str(token), visible_devices=devices or None)

    def client(self, settings: TrainerSettings, read: Callable[[], Any] = lambda: None) -> AsyncPearlClient:
        """An SDK in that pod; `read` gives the used bytes of its GPUs."""
        clock = asyncio.get_running_loop().time
        return AsyncPearlClient(settings, transport=self.network, probe=MemoryProbe(read), clock=clock)

    def _review(self, spec: Object) -> Object:
        """TokenReview."""
        pod = self.kube.objects.get(("pods", "ml", str(spec["token"]).removeprefix("token of ")))
        if pod is None or spec["audiences"] != ["pearl"]:
            return {"authenticated": False, "error": "token is expired"}
        meta = pod["metadata"]
        values = {"pod-name": meta["name"], "pod-uid": meta["uid"], "node-name": pod["spec"]["nodeName"]}
        extra = {f"authentication.kubernetes.io/{name}": [value] for name, value in values.items()}
        user = {"username": "system:serviceaccount:ml:default", "extra": extra}
        return {"authenticated": True, "audiences": ["pearl"], "user": user}

    def loan(self, name: str = "trainer-0") -> Object:
        """Status of a GPULoan."""
        status: Object = self.kube.objects.get(("gpuloans", "ml", name), {}).get("status") or {}
        return status

    def rollout(self) -> Object:
        """Status of the rollout."""
        status: Object = self.kube.objects["pearlrollouts", KEY.namespace, KEY.name].get("status") or {}
        return status

    # --- the operator

    async def start(self, *, planner: bool = False) -> None:
        """Starts an operator process: with the real core and planner, or asking `self.planner`."""
        settings = Settings(namespace="pearl", gateway_image="i", trainer_namespaces=("ml",))
        agents, index = WireAgents(self.network), Index(clock=self.clock)
        self.index = index
        self.service = LoanService(
            kube=self.kube,
            index=index,
            agents=agents,
            keys=Keys(),
            clock=self.clock,
            resolver=Resolver(),
            settings=settings,
        )
        self.network.operator = FastAPI()
        self.network.operator.include_router(self.service.router())
        works = [self.service.run(), self._readiness()]
        if planner:
            ports = Ports(
                kube=self.kube,
                gateway=FakeGateway(self.kube),
                prometheus=FakePrometheus(),
                agents=agents,
                clock=self.clock,
                resolver=Resolver(),
                keys=Keys(),  # type: ignore[arg-type]
            )
            works.append(assemble_core(ports, index, self.service, settings).supervisor.run())
        else:
            index.wake = lambda _key: self._woken.set()
            works.append(self._decide())
        self.kube.watchers.append(self._watch)
        await Resync(self.kube, index, self.clock, settings).once()
        self.network.operator_up = True
        self._tasks = [asyncio.create_task(work) for work in works]

    async def kill(self) -> None:
        """SIGKILL of the operator."""
        self.network.operator_up = False
        if self._watch in self.kube.watchers:
            self.kube.watchers.remove(self._watch)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close(self) -> None:
        """Ends everything."""
        await self.kill()
        await asyncio.gather(*self._stopping, *(pod.stop() for pod in self.pods.values()), return_exceptions=True)

    def _watch(self, event: str, kind: Kind, body: Object) -> None:
        if kind not in WATCHED:
            return
        if event == "DELETED":
            self.index.forget(kind, key_of(kind, body["metadata"]), body["metadata"]["uid"])
        else:
            self.index.put(kind, body)

    async def _decide(self) -> None:
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

    # --- the rest of the cluster

    def _kubelet(self, event: str, kind: Kind, body: Object) -> None:
        """Borrowers run a moment after they are made, and end when they are gone."""
        if kind is kinds.LOAN:
            self.statuses.append(body.get("status") or {})
        meta = body["metadata"]
        if kind is not kinds.POD or names.LABEL_LOAN not in meta.get("labels", {}):
            return
        if event == "DELETED":
            gone = self.pods.pop(meta["name"], None)
            if gone is not None:
                self._stopping.append(asyncio.ensure_future(gone.stop()))
        elif event == "ADDED" and self.starts_pods:
            self.pods[meta["name"]] = BorrowerPod(body, self.root / meta["uid"])
            self._tell(body, ready=False)

    def _tell(self, body: Object, *, ready: bool) -> None:
        status = {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "containerStatuses": [{"state": {"running": {}}}],
            "conditions": [{"type": "Ready", "status": str(ready)}],
        }
        self.kube.store(kinds.POD, {**body, "status": status})

    async def _readiness(self) -> None:
        """The kubelet's probes of the borrowers."""
        while True:
            for name, pod in list(self.pods.items()):
                body = self.kube.objects.get(("pods", "ml", name))
                if body is None or "deletionTimestamp" in body["metadata"]:
                    continue
                told = body["status"]["conditions"][0]["status"] == "True"
                if told != pod.worker.ready:
                    self._tell(body, ready=pod.worker.ready)
            await asyncio.sleep(0.5)

    async def borrowers_run(self, count: int = 2) -> None:
        """Waits until the operator sees so many borrower pods running."""
        await self.until(lambda: sum(pod.running for pod in self.index.pods.values() if pod.loan) == count)

    async def until(self, condition: Callable[[], bool], seconds: float = 120) -> None:
        """Lets (virtual) time pass until the condition holds."""
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - virtual time, and conditions of any kind
                await asyncio.sleep(0.02)
