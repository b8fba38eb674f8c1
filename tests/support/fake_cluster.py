"""A whole cluster on virtual time with one rollout: gateway, Prometheus and agents around `pearl_dev.virtual`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pearl_api import names
from pearl_api.rollout import PearlRolloutSpec
from pearl_api.wire.gateway import BatchProgress, Counters, GatewayStats, LiveStates, WorkerView
from pearl_api.wire.worker import LoanState, WorkerPhase, WorkerState
from pearl_dev.virtual.kube import FakeKube, clone, deep_merge
from pearl_operator import kinds
from pearl_operator.core import Core, Ports, assemble_core
from pearl_operator.errors import Unavailable
from pearl_operator.index import Index, key_of
from pearl_operator.keys import SecretKeys
from pearl_operator.ports import EngineSamples, PodAddress, RolloutKey
from pearl_operator.resync import Resync
from pearl_operator.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from pearl_api.rollout import PrometheusSpec
    from pearl_api.wire.worker import ActivityRequest, GrantRequest
    from pearl_dev.virtual.kubelet import FakeKubelet
    from pearl_operator.dcgm import GpuSample
    from pearl_operator.facts import RolloutFact
    from pearl_operator.kinds import Kind
    from pearl_operator.look import Look
    from pearl_operator.loop import RolloutLoop
    from pearl_planner.types import AnswerLoan, Loan

Object = dict[str, Any]


def quiet_stats(rollout: str, **known: Any) -> GatewayStats:
    """Of a gateway that has seen nothing but what is `known`."""
    nothing: dict[str, Any] = {
        "uptime_seconds": 1.0,
        "profile": None,
        "profile_age_seconds": None,
        "batch": None,
        "unfinished": [],
        "live": LiveStates(),
        "workers": [],
        "counters": Counters(),
        "window": None,
        "local_append_tokens": 0,
        "weights_wanted": None,
        "weights_min": None,
        "weights_max": None,
    }
    return GatewayStats(rollout=rollout, **nothing | known)


@dataclass
class FakeGateway:
    kube: FakeKube
    down: bool = False
    ack_seconds: float = 0.2
    in_flight: dict[str, int] = field(default_factory=dict)
    """By pod name."""
    profile: Object | None = None
    batch: BatchProgress | None = None
    live: LiveStates = field(default_factory=LiveStates)
    asked_at: float | None = None
    """Monotonic time of the last turn."""
    reads: int = 0
    """Of its statistics."""
    _acked: dict[str, tuple[int, str, float]] = field(default_factory=dict)

    async def stats(self, rollout: RolloutKey) -> GatewayStats:
        self.reads += 1
        if self.down:
            raise Unavailable("the gateway does not answer")
        pods = await self.kube.list(kinds.POD, None, {names.LABEL_ROLLOUT: rollout.name})
        return quiet_stats(
            rollout.name,
            profile=self.profile,
            batch=self.batch,
            live=self.live,
            asked_seconds=None if self.asked_at is None else self.kube.clock.monotonic() - self.asked_at,
            workers=[self._view(pod) for pod in pods if names.LABEL_ROLE in pod["metadata"].get("labels", {})],
        )

    def _view(self, pod: Object) -> WorkerView:
        meta, now = pod["metadata"], self.kube.clock.monotonic()
        labels, uid = meta["labels"], meta["uid"]
        epoch, activity = int(labels[names.LABEL_ROLE_EPOCH]), labels[names.LABEL_ACTIVITY]
        known = self._acked.get(uid)
        if known is None or ((epoch, activity) != known[:2] and now - known[2] >= self.ack_seconds):
            known = self._acked[uid] = (epoch, activity, now)
        return WorkerView(
            uid=uid,
            pod=meta["name"],
            role=names.Role(labels[names.LABEL_ROLE]),
            acked_epoch=known[0],
            activity=names.Activity(known[1]),
            ready=True,
            in_flight=self.in_flight.get(meta["name"], 0),
            resident_tokens=0,
        )


@dataclass
class FakePrometheus:
    samples: EngineSamples = field(default_factory=lambda: EngineSamples({}, {}))
    gpu_samples: list[GpuSample] | None = field(default_factory=list)
    """None = these queries fail."""
    down: bool = False

    async def engines(self, rollout: RolloutKey, spec: PrometheusSpec) -> EngineSamples:
        del rollout, spec
        if self.down:
            raise Unavailable("Prometheus does not answer")
        return self.samples

    async def gpus(self, rollout: RolloutKey, spec: PrometheusSpec) -> list[GpuSample]:
        del rollout, spec
        if self.down or self.gpu_samples is None:
            raise Unavailable("Prometheus does not answer")
        return self.gpu_samples


@dataclass
class FakeAgents:
    kube: FakeKube
    asked: list[tuple[str, str]] = field(default_factory=list)

    async def state(self, rollout: RolloutKey, pod: PodAddress) -> WorkerState:
        del rollout
        stored = await self.kube.get(kinds.POD, pod.name, pod.namespace)
        if stored is None:
            raise Unavailable("gone")
        ready = any(each["type"] == "Ready" and each["status"] == "True" for each in stored["status"]["conditions"])
        return WorkerState(
            pod_uid=pod.uid,
            phase=WorkerPhase.READY if ready else WorkerPhase.STARTING,
            activity=names.Activity.ACTIVE,
            engine_starts=1,
        )

    async def set_activity(self, rollout: RolloutKey, pod: PodAddress, request: ActivityRequest) -> WorkerState:
        self.asked.append((pod.name, request.activity.value))
        return await self.state(rollout, pod)

    async def grant(self, rollout: RolloutKey, pod: PodAddress, request: GrantRequest) -> LoanState:
        raise NotImplementedError


class FakeLoans:
    """No trainer has enrolled."""

    async def answer(self, action: AnswerLoan, rollout: RolloutFact) -> None:
        raise NotImplementedError

    async def sync(self, rollout: RolloutFact) -> None:
        pass

    def decided(self, look: Look) -> None:
        pass

    def planner_loans(self, rollout: RolloutKey) -> tuple[Loan, ...]:
        del rollout
        return ()


class FakeResolver:
    def agent(self, pod: PodAddress) -> str | None:
        return pod.ip

    def gateway(self, rollout: RolloutKey) -> str:
        return f"http://{rollout.name}-gateway"


SPEC: Object = {
    "model": {"name": "Qwen/Qwen3-8B", "uri": "/models/qwen3-8b"},
    "engine": {"image": "example/worker:1", "tensorParallel": 1},
    "capacity": {"reserved": {"gpus": 3}},
    "policy": {"deadlines": {"drainSeconds": 20}, "hysteresis": {"minDwellSeconds": 0}},
}


SETTINGS = Settings(namespace="rl", gateway_image="example/operator:1", cluster_scoped=False)


@dataclass
class World:
    """One cluster, one rollout named `swe`, and at most one operator."""

    kube: FakeKube
    kubelet: FakeKubelet
    gateway: FakeGateway
    prometheus: FakePrometheus
    agents: FakeAgents
    settings: Settings = SETTINGS
    core: Core | None = None
    _task: asyncio.Task[None] | None = None

    def apply(self, **changes: Any) -> None:
        """`kubectl apply` of the rollout, with the top-level spec fields replaced."""
        known = self.kube.objects.get(("pearlrollouts", "rl", "swe"))
        spec = PearlRolloutSpec.model_validate(deep_merge((known or {"spec": SPEC})["spec"], changes))
        body = {"metadata": {"name": "swe", "namespace": "rl"}, **clone(known or {})}
        body["spec"] = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
        self.kube.store(kinds.ROLLOUT, body)

    async def start(self) -> None:
        """Starts an operator process."""
        self.kube.dead = False
        index = Index(self.kube.clock)
        ports = Ports(
            kube=self.kube,
            gateway=self.gateway,
            prometheus=self.prometheus,
            agents=self.agents,
            clock=self.kube.clock,
            resolver=FakeResolver(),
            keys=SecretKeys(self.kube, self.settings.namespace, index.uid_of),
        )
        self.core = core = assemble_core(ports, index, FakeLoans(), self.settings)

        def watch(event: str, kind: Kind, body: Object) -> None:
            if kind not in (kinds.POD, kinds.ROLLOUT, kinds.LOAN, kinds.NODE) or self.core is not core:
                return
            if event == "DELETED":
                core.index.forget(kind, key_of(kind, body["metadata"]), body["metadata"].get("uid"))
            else:
                core.index.put(kind, body)

        self.kube.watchers.append(watch)
        await Resync(self.kube, core.index, self.kube.clock, self.settings).once()
        self._task = asyncio.create_task(core.supervisor.run())

    async def stop(self) -> None:
        """SIGKILL: nothing is cleaned up."""
        task, self._task, self.core = self._task, None, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def decided(self) -> tuple[RolloutLoop, Look]:
        """Three ready workers and one more look at them; the loop is stopped and its index grows stale."""
        self.apply()
        await self.start()
        await self.until(self.is_ready)
        assert self.core is not None
        loop = next(iter(self.core.supervisor.loops.values()))
        rollout = self.core.index.rollouts[loop.key]
        assert rollout.spec is not None
        look = await loop._decide(rollout, rollout.spec)
        await self.stop()
        return loop, look

    async def until(self, condition: Callable[[], bool], seconds: float = 120.0) -> None:
        """Lets (virtual) time pass until the condition holds; a dead operator raises what killed it."""
        async with asyncio.timeout(seconds):
            while not condition():
                if self._task is not None and self._task.done():
                    self._task.result()
                await asyncio.sleep(0.05)

    async def rest(self, seconds: float = 10.0) -> None:
        """Lets time pass."""
        await asyncio.sleep(seconds)

    @property
    def pods(self) -> dict[str, Object]:
        return {pod["metadata"]["name"]: pod for pod in self.kube.of(kinds.POD)}

    @property
    def serving(self) -> int:
        """Pods that are ready and stay."""
        return sum(
            any((each["type"], each["status"]) == ("Ready", "True") for each in pod["status"]["conditions"])
            for pod in self.pods.values()
            if "deletionTimestamp" not in pod["metadata"] and "conditions" in pod.get("status", {})
        )

    @property
    def uids(self) -> dict[str, str]:
        return {name: pod["metadata"]["uid"] for name, pod in self.pods.items()}

    @property
    def roles(self) -> dict[str, str]:
        return {name: pod["metadata"]["labels"][names.LABEL_ROLE] for name, pod in self.pods.items()}

    def labels(self, name: str) -> list[str]:
        """This label of every pod, in the order of their names."""
        return [pod["metadata"]["labels"][name] for _, pod in sorted(self.pods.items())]

    @property
    def status(self) -> Object:
        status: Object = self.kube.objects["pearlrollouts", "rl", "swe"].get("status") or {}
        return status

    def condition(self, kind: str) -> tuple[str, str]:
        """Status and reason."""
        found = [each for each in self.status.get("conditions", []) if each["type"] == kind]
        return (found[0]["status"], found[0]["reason"]) if found else ("", "")

    def is_ready(self) -> bool:
        """Ready, and nothing on its way, for the present generation."""
        generation = self.kube.objects["pearlrollouts", "rl", "swe"]["metadata"]["generation"]
        observed = self.status.get("observedGeneration") == generation
        return (
            observed
            and self.condition("Ready") == ("True", "AllServing")
            and self.condition("PlanProgressing") == ("False", "AtTarget")
        )
