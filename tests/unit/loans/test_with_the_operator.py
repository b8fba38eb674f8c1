"""The operator's own loop and planner with the loan service, real worker agents and the SDK: who decides what."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fastapi import FastAPI
from loans_bench import SPEC, BorrowerPod, Network, Resolver, WireAgents, trainer_pod

from pearl_api import names
from pearl_api.rollout import PearlRolloutSpec
from pearl_operator import kinds
from pearl_operator.core import Ports, assemble_core
from pearl_operator.index import Index, key_of
from pearl_operator.loans import LoanService
from pearl_operator.resync import Resync
from pearl_operator.settings import Settings
from pearl_trainer.async_client import AsyncPearlClient
from pearl_trainer.gpus import MemoryProbe
from pearl_trainer.settings import Settings as TrainerSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from pearl_operator.ports import RolloutKey

pytestmark = pytest.mark.looptime


def _operator_world() -> Any:
    """The in-memory cluster of the operator's own tests."""
    name = "operator_world"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / "operator" / "conftest.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


world = _operator_world()


class FixedKeys:
    async def root_key(self, rollout: RolloutKey) -> str:
        del rollout
        return "f" * 64

    def forget(self, rollout: RolloutKey) -> None:
        del rollout


class Cluster:
    """One rollout with one reserved worker, one trainer, and at most one operator."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = world.VirtualClock()
        self.kube = world.FakeKube(self.clock)
        self._create, self.kube.create = self.kube.create, self._reviewing_create
        self.kubelet = world.FakeKubelet(self.kube)
        self.kube.watchers.append(self._run_borrower)
        self.pods: dict[str, BorrowerPod] = {}
        self.network = Network(FastAPI(), self.pods)
        self._tasks: list[asyncio.Task[None]] = []

    async def _reviewing_create(self, kind: Any, body: Any) -> Any:
        if kind is not kinds.TOKEN_REVIEW:
            return await self._create(kind, body)
        trainer = self.kube.objects["pods", "ml", "trainer-0"]["metadata"]
        values = {"pod-name": "trainer-0", "pod-uid": trainer["uid"], "node-name": "node-1"}
        extra = {f"authentication.kubernetes.io/{name}": [value] for name, value in values.items()}
        user = {"username": "system:serviceaccount:ml:default", "extra": extra}
        return {"status": {"authenticated": True, "audiences": ["pearl"], "user": user}}

    def _run_borrower(self, event: str, kind: Any, body: Any) -> None:
        meta = body["metadata"]
        if kind is kinds.POD and names.LABEL_LOAN in meta.get("labels", {}) and event == "ADDED":
            self.pods[meta["name"]] = BorrowerPod(body, self.root / meta["name"])

    async def start(self) -> None:
        """Starts an operator process; the fake kubelet's pods are served by real agents."""
        settings = Settings(namespace="rl", gateway_image="i", trainer_namespaces=("ml",))
        agents = WireAgents(self.network)
        index = Index(clock=self.clock)
        self.loans = LoanService(
            kube=self.kube,
            index=index,
            agents=agents,
            keys=FixedKeys(),
            clock=self.clock,
            resolver=Resolver(),
            settings=settings,
        )
        self.network.operator = FastAPI()
        self.network.operator.include_router(self.loans.router())
        ports = Ports(
            kube=self.kube,
            gateway=world.FakeGateway(self.kube),
            prometheus=world.FakePrometheus(),
            agents=agents,
            clock=self.clock,
            resolver=Resolver(),
            keys=FixedKeys(),  # type: ignore[arg-type]
        )
        core = assemble_core(ports, index, self.loans, settings)

        def watch(event: str, kind: Any, body: Any) -> None:
            if kind not in (kinds.POD, kinds.ROLLOUT, kinds.LOAN):
                return
            if event == "DELETED":
                index.forget(kind, key_of(kind, body["metadata"]), body["metadata"]["uid"])
            else:
                index.put(kind, body)

        self.kube.watchers.append(watch)
        self._watch = watch
        await Resync(self.kube, index, self.clock, settings).once()
        self.network.operator_up = True
        works = (core.supervisor.run(), self.loans.run(), self._readiness())
        self._tasks = [asyncio.create_task(work) for work in works]

    async def _readiness(self) -> None:
        """The kubelet's probes of the borrowers."""
        while True:
            for body in self.kube.of(kinds.POD):
                pod = self.pods.get(body["metadata"]["name"])
                conditions = body.get("status", {}).get("conditions", [])
                ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
                if pod is not None and conditions and ready != pod.worker.ready:
                    self.kubelet.set_status(body, ready=pod.worker.ready)
            await asyncio.sleep(0.5)

    async def kill(self) -> None:
        """SIGKILL of the operator."""
        self.network.operator_up = False
        self.kube.watchers.remove(self._watch)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def loan(self) -> Any:
        return self.kube.objects.get(("gpuloans", "ml", "trainer-0"), {}).get("status", {})

    def rollout(self) -> Any:
        return self.kube.objects["pearlrollouts", "rl", "swe"].get("status", {})

    async def until(self, condition: Callable[[], bool], seconds: float = 120) -> None:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - virtual time, and conditions of any kind
                await asyncio.sleep(0.05)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path)
    spec = PearlRolloutSpec.model_validate(SPEC).model_dump(mode="json", by_alias=True, exclude_none=True)
    made.kube.store(kinds.ROLLOUT, {"metadata": {"name": "swe", "namespace": "rl"}, "spec": spec})
    made.kube.store(kinds.POD, trainer_pod())
    yield made  # tests start the operator: virtual time begins with them, not with fixtures
    await made.kill()
    await asyncio.gather(*(pod.stop() for pod in made.pods.values()))


@pytest.fixture
async def client(cluster: Cluster, tmp_path: Path) -> AsyncIterator[AsyncPearlClient]:
    token = tmp_path / "token"
    token.write_text("projected-token")
    settings = TrainerSettings("http://operator", str(token), visible_devices="GPU-a,GPU-b")
    clock = asyncio.get_running_loop().time
    made = AsyncPearlClient(settings, transport=cluster.network, probe=MemoryProbe(lambda: None), clock=clock)
    yield made
    await made.close()


async def test_the_planner_takes_a_loan_uses_it_and_lets_it_go(cluster: Cluster, client: AsyncPearlClient) -> None:
    await cluster.start()
    async with await client.register(rollout="swe") as loan:
        await cluster.until(lambda: loan.lent)
        await cluster.until(lambda: cluster.rollout().get("workers", {}).get("borrowed") == 2)
        await cluster.until(lambda: cluster.loan()["phase"] == "Serving")
        async with loan.training():
            await cluster.until(lambda: cluster.rollout()["workers"]["borrowed"] == 0)
            assert cluster.rollout()["ready"] == "1/1"
        await cluster.until(lambda: loan.lent and cluster.loan()["phase"] == "Serving")
    assert [past["free"] for past in cluster.loan()["history"]] == [True, True]


async def test_a_killed_operator_delays_no_reclaim_and_its_successor_goes_on(
    cluster: Cluster, client: AsyncPearlClient
) -> None:
    await cluster.start()
    loan = await client.register(rollout="swe")
    await cluster.until(lambda: cluster.loan().get("phase") == "Serving")
    await cluster.kill()
    await asyncio.sleep(60)
    assert all(pod.worker.ready for pod in cluster.pods.values())
    started = asyncio.get_running_loop().time()
    assert (await loan.reclaim()).via == "agents"
    assert asyncio.get_running_loop().time() - started < 1
    assert not (await loan.lend()).granted
    await cluster.start()
    await cluster.until(lambda: loan.lent and cluster.loan()["phase"] == "Serving")
    assert cluster.loan()["history"][0]["epoch"] == 1
    await loan.close()


async def test_a_deleted_rollout_takes_its_borrowers_along(cluster: Cluster, client: AsyncPearlClient) -> None:
    await cluster.start()
    loan = await client.register(rollout="swe")
    await cluster.until(lambda: loan.lent)
    cluster.kube.remove(kinds.ROLLOUT, "swe", "rl")
    await cluster.until(lambda: cluster.loan()["phase"] == "Deregistered")
    await cluster.until(lambda: not [body for body in cluster.kube.of(kinds.POD) if "loan" in str(body["metadata"])])
    await loan.close()


async def test_an_operator_that_has_not_looked_yet_refuses_no_trainer_for_good(
    cluster: Cluster, client: AsyncPearlClient
) -> None:
    await cluster.start()
    cluster._tasks[1].cancel()  # the loan service has not begun
    cluster.loans._open = False
    loan = await client.register(rollout="swe")
    assert loan.registration is None
    cluster._tasks.append(asyncio.create_task(cluster.loans.run()))
    await cluster.until(lambda: loan.lent)
    await loan.close()
