"""An in-memory cluster on virtual time: API server, kubelet, gateway and agents behind the operator's ports.

The API server knows resourceVersion, UID preconditions, generation, field ownership (enough for server-side apply of
labels) and owner references; events reach the operator's index a moment later, as through a watch.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import operator
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pearl_api import names
from pearl_api.rollout import PearlRolloutSpec
from pearl_api.wire.gateway import BatchProgress, Counters, GatewayStats, LiveStates, WorkerView
from pearl_api.wire.worker import LoanState, WorkerPhase, WorkerState
from pearl_operator import kinds
from pearl_operator.clock import to_rfc3339
from pearl_operator.core import Core, Ports, assemble_core
from pearl_operator.errors import AlreadyExists, Conflict, NotFound, Refused, Unavailable
from pearl_operator.index import Index, key_of
from pearl_operator.keys import SecretKeys
from pearl_operator.ports import EngineSamples, PodAddress, RolloutKey
from pearl_operator.resync import Resync
from pearl_operator.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pearl_api.rollout import PrometheusSpec
    from pearl_api.wire.worker import ActivityRequest, GrantRequest
    from pearl_operator.dcgm import GpuSample
    from pearl_operator.facts import RolloutFact
    from pearl_operator.kinds import Kind
    from pearl_operator.look import Look
    from pearl_operator.loop import RolloutLoop
    from pearl_planner.types import AnswerLoan, Loan

Object = dict[str, Any]

EPOCH = 1_800_000_000.0
WATCH_SECONDS = 0.02
START_SECONDS = 5.0
STOP_SECONDS = 1.0
GC_SECONDS = 3.0


class Killed(BaseException):
    """The operator process dies here."""


class VirtualClock:
    """The event loop's own time, which looptime fast-forwards."""

    def now(self) -> float:
        return EPOCH + asyncio.get_running_loop().time()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def clone(body: Any) -> Any:
    """A copy as it comes over the wire: whatever is no JSON fails here."""
    return json.loads(json.dumps(body))


def deep_merge(base: Object, overlay: Object) -> Object:
    merged = dict(base)
    for key, value in overlay.items():
        known = merged.get(key)
        merged[key] = deep_merge(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return merged


def without_leaves(base: Object, leaves: Object) -> Object:
    """`base` without the leaf paths of `leaves`."""
    left = dict(base)
    for key, value in leaves.items():
        if isinstance(value, dict) and isinstance(left.get(key), dict):
            left[key] = without_leaves(left[key], value)
        else:
            left.pop(key, None)
    return left


@dataclass
class FakeKube:
    clock: VirtualClock
    objects: dict[tuple[str, str | None, str], Object] = field(default_factory=dict)
    watchers: list[Callable[[str, Kind, Object], None]] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    """`verb kind name` of every write that had an effect."""
    kill_after: int | None = None
    """The process dies right after this many further writes."""
    refuse: Callable[[Kind, Object], str | None] = lambda _kind, _body: None
    refuse_apply: Callable[[Kind, Object], str | None] = lambda _kind, _body: None
    forbidden: set[str] = field(default_factory=set)
    """Plurals that may not be listed."""
    status_conflicts: int = 0
    """So many further status writes meet a newer object."""
    down: bool = False
    dead: bool = False
    """The operator was killed; nothing that it still tries to do happens."""
    review: Callable[[Object], Object] | None = None
    """TokenReview: from its spec to its status."""
    _owned: dict[tuple[Any, ...], Object] = field(default_factory=dict)
    _events: deque[tuple[Callable[[str, Kind, Object], None], str, Kind, Object]] = field(default_factory=deque)
    _numbers: Any = field(default_factory=lambda: itertools.count(1))

    # --- what the operator calls

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object | None:
        self._check_up()
        found = self.objects.get((kind.plural, namespace, name))
        return clone(found)

    async def list(
        self,
        kind: Kind,
        namespace: str | None = None,
        labels: Mapping[str, str] | None = None,
        *,
        fields: Mapping[str, str] | None = None,
    ) -> list[Object]:
        self._check_up()
        assert not fields, "this fake knows no field selectors"
        if kind.plural in self.forbidden:
            raise Refused(f"{kind.plural} is forbidden")
        return [
            clone(each)
            for each in self.of(kind)
            if namespace in (None, each["metadata"].get("namespace"))
            and all(
                key in each["metadata"].get("labels", {}) and value in ("", each["metadata"]["labels"][key])
                for key, value in (labels or {}).items()
            )
        ]

    async def dry_run_create(self, kind: Kind, body: Object) -> None:
        self._check_up()
        sentence = self.refuse(kind, body)
        if sentence is not None:
            raise Refused(sentence)

    async def create(self, kind: Kind, body: Object) -> Object:
        await self.dry_run_create(kind, body)
        if kind is kinds.TOKEN_REVIEW and self.review is not None:
            return {"status": self.review(body["spec"])}
        meta = body["metadata"]
        key = (kind.plural, meta.get("namespace"), meta["name"])
        if key in self.objects:
            raise AlreadyExists(f"{kind.plural} {meta['name']} already exists")
        stored = self.store(kind, body)
        self._wrote("create", kind, meta["name"])
        return clone(stored)

    async def apply(self, kind: Kind, body: Object, *, manager: str, force: bool = True) -> Object:
        del force
        self._check_up()
        sentence = self.refuse_apply(kind, body)
        if sentence is not None:
            raise Refused(sentence)
        meta = body["metadata"]
        key = (kind.plural, meta.get("namespace"), meta["name"])
        known = self.objects.get(key)
        if "uid" in meta and (known is None or known["metadata"]["uid"] != meta["uid"]):
            raise Conflict("Precondition failed: UID in precondition differs")
        if known is None and kind is kinds.POD:
            raise Refused("spec.containers: Required value")
        version = meta.get("resourceVersion")
        if known is not None and version is not None and version != known["metadata"]["resourceVersion"]:
            raise Conflict("the object has been modified")
        content = {
            name: value for name, value in body.items() if name in ("spec", "data", "type", "immutable", "status")
        }
        content["metadata"] = {
            name: value for name, value in meta.items() if name in ("labels", "annotations", "ownerReferences")
        }
        if known is None:
            stored = self.store(kind, {**content, "metadata": {**content["metadata"], **_names(meta)}})
        else:
            before = self._only_of(key, manager)
            changed = deep_merge(without_leaves(known, before), content)
            changed["metadata"] = {**known["metadata"], **changed["metadata"]}
            if "labels" in known["metadata"] or "labels" in content["metadata"]:
                labels = without_leaves(
                    known["metadata"].get("labels", {}), before.get("metadata", {}).get("labels", {})
                )
                changed["metadata"]["labels"] = labels | content["metadata"].get("labels", {})
            if changed == known:
                return clone(known)
            fields = [entry for entry in known["metadata"].get("managedFields", []) if entry["manager"] != manager]
            changed["metadata"]["managedFields"] = [
                *fields,
                {"manager": manager, "time": to_rfc3339(self.clock.now(), digits="seconds")},
            ]
            stored = self.store(kind, changed)
        self._owned[*key, manager] = content
        self._wrote("apply", kind, meta["name"])
        return clone(stored)

    async def apply_status(self, kind: Kind, body: Object, *, manager: str) -> Object:
        del manager
        self._check_up()
        meta = body["metadata"]
        known = self.objects.get((kind.plural, meta.get("namespace"), meta["name"]))
        if known is None:
            raise NotFound(meta["name"])
        if self.status_conflicts:
            self.status_conflicts -= 1
            raise Conflict("the object has been modified")
        if meta.get("resourceVersion") not in (None, known["metadata"]["resourceVersion"]):
            raise Conflict("the object has been modified")
        stored = self.store(kind, {**known, "status": body["status"]})
        self._wrote("status", kind, meta["name"])
        return clone(stored)

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
        self._check_up()
        known = self.objects.get((kind.plural, namespace, name))
        if known is None:
            return
        if uid not in (None, known["metadata"]["uid"]):
            raise Conflict("Precondition failed: UID")
        self.remove(kind, name, namespace)
        self._wrote("delete", kind, name)

    # --- what the test and the rest of the cluster do

    def store(self, kind: Kind, body: Object) -> Object:
        """Writes as if somebody else did, without counting; sets uid, versions and generation."""
        meta = body["metadata"]
        key = (kind.plural, meta.get("namespace"), meta["name"])
        known = self.objects.get(key)
        number = str(next(self._numbers))
        stored = clone(body)
        generation = 1 if known is None else known["metadata"]["generation"]
        if known is not None and known.get("spec") != stored.get("spec"):
            generation += 1
        stored["metadata"] |= {
            "uid": known["metadata"]["uid"] if known else f"uid-{number}",
            "resourceVersion": number,
            "generation": generation,
            "creationTimestamp": known["metadata"]["creationTimestamp"] if known else to_rfc3339(self.clock.now()),
        }
        self.objects[key] = stored
        self._emit("MODIFIED" if known else "ADDED", kind, stored)
        return stored

    def remove(self, kind: Kind, name: str, namespace: str | None) -> None:
        """A pod first terminates; everything else is gone at once, with what it owns."""
        known = self.objects[kind.plural, namespace, name]
        if kind is kinds.POD:
            if "deletionTimestamp" not in known["metadata"]:
                meta = {**known["metadata"], "deletionTimestamp": to_rfc3339(self.clock.now())}
                self.store(kind, {**known, "metadata": meta})
                asyncio.get_running_loop().call_later(STOP_SECONDS, self._vanish, kind, name, namespace)
            return
        self._vanish(kind, name, namespace)

    def patch(self, kind: Kind, name: str, namespace: str | None, change: Object) -> None:
        """A merge patch by somebody else."""
        self.store(kind, deep_merge(self.objects[kind.plural, namespace, name], change))

    def scale(self, name: str, namespace: str, replicas: int, *, manager: str) -> None:
        """What an autoscaler or `kubectl scale` does to a Deployment."""
        key = (kinds.DEPLOYMENT.plural, namespace, name)
        change: Object = {"spec": {"replicas": replicas}}
        known = self.objects[key]["metadata"].get("managedFields", [])
        fields = {"manager": manager, "subresource": "scale", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
        kept = [entry for entry in known if entry["manager"] != manager]
        self._owned[*key, manager] = change
        self.patch(kinds.DEPLOYMENT, name, namespace, {**change, "metadata": {"managedFields": [*kept, fields]}})

    def _only_of(self, key: tuple[str, str | None, str], manager: str) -> Object:
        """What this manager owns and no other does; giving that up removes it."""
        alone = self._owned.get((*key, manager), {})
        for (*owned, other), fields in self._owned.items():
            if tuple(owned) == key and other != manager:
                alone = without_leaves(alone, fields)
        return alone

    def of(self, kind: Kind) -> list[Object]:
        found = [(str(key), each) for key, each in self.objects.items() if key[0] == kind.plural]
        return [each for _, each in sorted(found, key=operator.itemgetter(0))]

    def _vanish(self, kind: Kind, name: str, namespace: str | None) -> None:
        known = self.objects.pop((kind.plural, namespace, name), None)
        if known is None:
            return
        for owned in [each for each in self._owned if each[:3] == (kind.plural, namespace, name)]:
            del self._owned[owned]
        self._emit("DELETED", kind, known)
        asyncio.get_running_loop().call_later(GC_SECONDS, self._collect, known["metadata"]["uid"])

    def _collect(self, owner: str) -> None:
        """The garbage collector."""
        for plural, where, child in list(self.objects):
            body = self.objects.get((plural, where, child))
            owners = (body or {}).get("metadata", {}).get("ownerReferences", [])
            if owner in {each["uid"] for each in owners}:
                self.remove(KIND_OF[plural], child, where)

    def _wrote(self, verb: str, kind: Kind, name: str) -> None:
        self.writes.append(f"{verb} {kind.kind} {name}")
        if self.kill_after is not None:
            self.kill_after -= 1
            if self.kill_after <= 0:
                self.kill_after, self.dead = None, True
                raise Killed(self.writes[-1])

    def _emit(self, event: str, kind: Kind, body: Object) -> None:
        for watcher in self.watchers:
            self._events.append((watcher, event, kind, clone(body)))
            asyncio.get_running_loop().call_later(WATCH_SECONDS, self._deliver)

    def _deliver(self) -> None:
        """In the order of the writes, also where several fall on the same instant."""
        watcher, event, kind, body = self._events.popleft()
        watcher(event, kind, body)

    def _check_up(self) -> None:
        if self.dead:
            raise Killed
        if self.down:
            raise Unavailable("the API server is down")


def _names(meta: Object) -> Object:
    return {name: meta[name] for name in ("name", "namespace") if name in meta}


KIND_OF = {
    kind.plural: kind
    for kind in (
        kinds.POD,
        kinds.NODE,
        kinds.SECRET,
        kinds.SERVICE,
        kinds.EVENT,
        kinds.DEPLOYMENT,
        kinds.AUTOSCALER,
        kinds.DISRUPTION_BUDGET,
        kinds.ROLLOUT,
        kinds.LOAN,
        kinds.LEASE,
    )
}


@dataclass
class FakeKubelet:
    """Runs worker pods: an address after a second, ready after `start_seconds`."""

    kube: FakeKube
    start_seconds: float = START_SECONDS
    schedule: bool = True
    _addresses: Any = field(default_factory=lambda: itertools.count(2))

    def __post_init__(self) -> None:
        self.kube.watchers.append(self._seen)

    def _seen(self, event: str, kind: Kind, body: Object) -> None:
        if kind is not kinds.POD or event != "ADDED" or not self.schedule:
            return
        loop, meta = asyncio.get_running_loop(), body["metadata"]
        loop.call_later(1.0, self._status, meta["name"], meta["namespace"], meta["uid"], "starting")
        loop.call_later(self.start_seconds, self._status, meta["name"], meta["namespace"], meta["uid"], "ready")

    def _status(self, name: str, namespace: str, uid: str, state: str) -> None:
        pod = self.kube.objects.get(("pods", namespace, name))
        if pod is None or pod["metadata"]["uid"] != uid:
            return
        self.set_status(pod, ready=state == "ready")

    def set_status(self, pod: Object, *, ready: bool) -> None:
        now = to_rfc3339(self.kube.clock.now())
        address = pod.get("status", {}).get("podIP") or f"10.0.0.{next(self._addresses)}"
        status = {
            "phase": "Running",
            "podIP": address,
            "containerStatuses": [{"name": "worker", "restartCount": 0, "state": {"running": {"startedAt": now}}}],
            "conditions": [
                {"type": "PodScheduled", "status": "True"},
                {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": now},
            ],
        }
        slot = pod["metadata"].get("labels", {}).get(names.LABEL_SLOT, "0")
        spec = {"nodeName": f"node-{slot}", **pod.get("spec", {})}  # every slot has a node of its own
        self.kube.store(kinds.POD, {**pod, "spec": spec, "status": status})


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
    _acked: dict[str, tuple[int, str, float]] = field(default_factory=dict)

    async def stats(self, rollout: RolloutKey) -> GatewayStats:
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
