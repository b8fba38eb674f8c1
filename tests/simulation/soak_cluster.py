"""The cluster of the soak: API server, scheduler, kubelets and one operator process, for weeks of virtual time.

Every elastic node holds one worker of one rollout. Nodes come and go by a capacity trace (`soak_nodes`), borrower pods
run `Borrower` agents, and the operator is the real one behind its ports: index, loops, planner, actor, status, loans,
resync.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pearl_api import names
from pearl_api.wire.worker import LoanState, WorkerPhase, WorkerState
from pearl_dev.virtual.borrower import Borrower
from pearl_dev.virtual.clock import VirtualClock
from pearl_dev.virtual.kube import FakeKube, Killed
from pearl_dev.virtual.operator import assembled
from pearl_operator import kinds
from pearl_operator.clock import to_rfc3339
from pearl_operator.errors import OperatorError, Unavailable
from pearl_operator.settings import Settings

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from pearl_api.wire.worker import ActivityRequest, GrantRequest
    from pearl_dev.virtual.operator import Operator
    from pearl_operator.core import Core
    from pearl_operator.kinds import Kind
    from pearl_operator.loans import LoanService
    from pearl_operator.ports import Gateway, PodAddress, Prometheus, RolloutKey
    from pearl_operator.resync import Resync

Object = dict[str, Any]
NAMESPACE, TRAINERS = "rl", "ml"
EVENT_SECONDS = 3600.0
"""Life of an Event; the default of an API server."""
NO_GPUS = "0/9 nodes are available: 9 Insufficient nvidia.com/gpu."
RUNNING = {"name": "worker", "restartCount": 0, "state": {"running": {}}}
CREATING = {"name": "worker", "restartCount": 0, "state": {"waiting": {"reason": "ContainerCreating"}}}


class JumpingClock(VirtualClock):
    """The operator machine's clock: somebody sets it, while monotonic time goes on."""

    offset = 0.0

    def now(self) -> float:
        return super().now() + self.offset


class SoakKube(FakeKube):
    """An API server for weeks: Events expire, and of the writes only the last are remembered."""

    def __post_init__(self) -> None:
        self.writes = deque(maxlen=20)  # type: ignore[assignment]

    async def create(self, kind: Kind, body: Object) -> Object:
        stored = await super().create(kind, body)
        if kind is kinds.EVENT:
            key = (kind.plural, stored["metadata"]["namespace"], stored["metadata"]["name"])
            asyncio.get_running_loop().call_later(EVENT_SECONDS, self.objects.pop, key, None)
        return stored


@dataclass
class Node:
    """A machine with the GPUs of one elastic worker."""

    name: str
    pool: str
    """The rollout whose workers it holds."""
    pod: str | None = None
    leaving: bool = False


@dataclass
class Cluster:
    """Machines and pods. `random` decides how long things take."""

    kube: SoakKube
    random: random.Random
    nodes: dict[str, Node] = field(default_factory=dict)
    borrowers: dict[str, Borrower] = field(default_factory=dict)
    """By pod name."""
    workers: dict[str, dict[str, Object]] = field(default_factory=dict)
    """By rollout and UID: worker pods as the last event told, for the gateway."""
    draining_since: dict[str, float] = field(default_factory=dict)
    asleep: set[str] = field(default_factory=set)
    """UIDs of pods whose engine sleeps."""
    start_seconds: tuple[float, float] = (40.0, 90.0)
    stuck: bool = False
    """Containers of new pods are not created."""
    failing: bool = False
    """New pods fail at once."""
    _waiting: dict[str, str] = field(default_factory=dict)
    """Elastic pods without a node: name → pool, oldest first."""
    _stuck: dict[str, str] = field(default_factory=dict)
    """Name → UID."""

    def __post_init__(self) -> None:
        self.kube.watchers.append(self._seen)

    # --- nodes

    def add_node(self, node: Node) -> None:
        self.nodes[node.name] = node
        self.kube.store(kinds.NODE, {"metadata": {"name": node.name}, "status": {"conditions": []}})
        self._place(node.pool)

    def remove_node(self, name: str) -> None:
        """The machine is gone, and its pod with it."""
        node = self.nodes.pop(name)
        self.kube.vanish(kinds.NODE, name, None)
        if node.pod is not None and ("pods", NAMESPACE, node.pod) in self.kube.objects:
            self.kube.vanish(kinds.POD, node.pod, NAMESPACE)

    def capacity(self, pool: str) -> int:
        """Nodes that are there."""
        return sum(1 for node in self.nodes.values() if node.pool == pool)

    # --- pods

    def _seen(self, event: str, kind: Kind, body: Object) -> None:
        labels = body["metadata"].get("labels") or {}
        if kind is not kinds.POD or labels.get(names.LABEL_COMPONENT) != names.COMPONENT_WORKER:
            return
        meta = body["metadata"]
        rollout, uid = labels[names.LABEL_ROLLOUT], meta["uid"]
        if event == "DELETED":
            self.workers[rollout].pop(uid, None)
            self.draining_since.pop(uid, None)
            self.asleep.discard(uid)
            self._gone(meta)
            return
        self.workers.setdefault(rollout, {})[uid] = body
        if labels[names.LABEL_ACTIVITY] != names.Activity.DRAINING:
            self.draining_since.pop(uid, None)
        else:
            self.draining_since.setdefault(uid, self.kube.clock.monotonic())
        if event == "ADDED":
            self._added(body)

    def _gone(self, meta: Object) -> None:
        name = meta["name"]
        self._waiting.pop(name, None)
        self._stuck.pop(name, None)
        known = self.borrowers.get(name)
        if known is not None and known.uid == meta["uid"]:
            del self.borrowers[name]
        for node in self.nodes.values():
            if node.pod == name:
                node.pod = None
                self._place(node.pool)

    def _added(self, body: Object) -> None:
        meta = body["metadata"]
        labels, name = meta["labels"], meta["name"]
        if names.LABEL_LOAN in labels:
            self.borrowers[name] = Borrower(name, meta["uid"], self._wake_seconds, changed=self._tell_borrower)
            self._tell(body, ready=False)
        elif labels[names.LABEL_ZONE] == names.Zone.ELASTIC:
            self._waiting[name] = labels[names.LABEL_ROLLOUT]
            self._place(labels[names.LABEL_ROLLOUT])
            if name in self._waiting:
                condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NO_GPUS}
                self._write(body, {"phase": "Pending", "conditions": [condition]})
        else:
            self._start(body, f"reserved-{name}")

    def _place(self, pool: str) -> None:
        free = [node for node in self.nodes.values() if node.pool == pool and node.pod is None and not node.leaving]
        waiting = [name for name, wanted in self._waiting.items() if wanted == pool]
        for name, node in zip(waiting, free, strict=False):
            del self._waiting[name]
            body = self.kube.objects.get(("pods", NAMESPACE, name))
            if body is not None and "deletionTimestamp" not in body["metadata"]:
                node.pod = name
                self._start(body, node.name)

    def _start(self, body: Object, node: str) -> None:
        meta = body["metadata"]
        body = self.kube.objects.get(("pods", meta["namespace"], meta["name"]), body)
        bound = self.kube.store(kinds.POD, {**body, "spec": {**body["spec"], "nodeName": node}})
        if self.failing:
            self._write(bound, {"phase": "Failed", "reason": "UnexpectedAdmissionError"})
            return
        if self.stuck:
            conditions = [{"type": "PodScheduled", "status": "True"}]
            self._write(bound, {"phase": "Pending", "containerStatuses": [CREATING], "conditions": conditions})
            self._stuck[body["metadata"]["name"]] = body["metadata"]["uid"]
            return
        self._run(bound["metadata"]["name"], bound["metadata"]["uid"])

    def unstick(self) -> None:
        """Containers are created again."""
        self.stuck = False
        stuck, self._stuck = self._stuck, {}
        for name, uid in stuck.items():
            self._run(name, uid)

    def _run(self, name: str, uid: str) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(2.0, self._status, name, uid, False)  # noqa: FBT003 - ready or not
        loop.call_later(self.random.uniform(*self.start_seconds), self._status, name, uid, True)  # noqa: FBT003

    def _status(self, name: str, uid: str, ready: bool) -> None:
        body = self.kube.objects.get(("pods", NAMESPACE, name))
        if body is not None and body["metadata"]["uid"] == uid and (body.get("status") or {}).get("phase") != "Failed":
            self._tell(body, ready=ready)

    def _tell(self, body: Object, *, ready: bool) -> None:
        number = 1 + int(str(body["metadata"]["uid"]).rpartition("-")[2]) % 250
        conditions = [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": str(ready), "lastTransitionTime": to_rfc3339(self.kube.clock.now())},
        ]
        status = {"phase": "Running", "podIP": f"10.0.0.{number}", "containerStatuses": [RUNNING]}
        self._write(body, {**status, "conditions": conditions})

    def _write(self, body: Object, status: Object) -> None:
        meta = body["metadata"]
        known = self.kube.objects.get(("pods", meta["namespace"], meta["name"]))
        if known is not None and known["metadata"]["uid"] == meta["uid"]:
            self.kube.store(kinds.POD, {**known, "status": status})

    def fail(self, body: Object) -> None:
        """Its engine dies for good."""
        self._write(body, {**body.get("status", {}), "phase": "Failed", "conditions": []})

    def _wake_seconds(self) -> float:
        return self.random.uniform(5.0, 40.0)

    def _tell_borrower(self, borrower: Borrower) -> None:
        body = self.kube.objects.get(("pods", TRAINERS, borrower.pod))
        if body is not None and body["metadata"]["uid"] == borrower.uid:
            self._tell(body, ready=borrower.phase is WorkerPhase.READY)


@dataclass
class SoakAgents:
    """Agents of all workers."""

    cluster: Cluster

    async def state(self, rollout: RolloutKey, pod: PodAddress) -> WorkerState:
        del rollout
        borrower = self.cluster.borrowers.get(pod.name)
        if borrower is not None and borrower.uid == pod.uid:
            return borrower.state()
        body = self.cluster.kube.objects.get(("pods", pod.namespace, pod.name))
        if body is None or body["metadata"]["uid"] != pod.uid:
            raise Unavailable("gone")
        phase = WorkerPhase.READY if is_ready(body) else WorkerPhase.STARTING
        activity = names.Activity.ACTIVE
        if pod.uid in self.cluster.asleep:
            phase, activity = WorkerPhase.ASLEEP, names.Activity.ASLEEP
        return WorkerState(pod_uid=pod.uid, phase=phase, activity=activity, engine_starts=1)

    async def set_activity(self, rollout: RolloutKey, pod: PodAddress, request: ActivityRequest) -> WorkerState:
        if request.activity is names.Activity.ASLEEP:
            self.cluster.asleep.add(pod.uid)
        else:
            self.cluster.asleep.discard(pod.uid)
        return await self.state(rollout, pod)

    async def grant(self, rollout: RolloutKey, pod: PodAddress, request: GrantRequest) -> LoanState:
        state = await self.state(rollout, pod)
        if state.loan is None:
            raise Unavailable("no borrower")
        self.cluster.borrowers[pod.name].grant(request.epoch)
        granted = self.cluster.borrowers[pod.name].state().loan
        assert granted is not None
        return granted


def is_ready(body: Object) -> bool:
    conditions = (body.get("status") or {}).get("conditions") or []
    return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)


SETTINGS = Settings(
    namespace=NAMESPACE, gateway_image="example/operator:1", trainer_namespaces=(TRAINERS,), look_seconds=60.0
)


@dataclass
class Process:
    """At most one operator process; one that dies is started again after `restart_seconds`."""

    kube: SoakKube
    gateway: Gateway
    prometheus: Prometheus
    agents: SoakAgents
    clock: JumpingClock
    restart_seconds: float = 10.0
    deaf: bool = False
    """The watches are silent."""
    core: Core | None = None
    service: LoanService | None = None
    resync: Resync | None = None
    up_since: float | None = None
    starts: int = 0
    errors: list[BaseException] = field(default_factory=list)
    """What ended processes, other than being killed."""
    died: Callable[[], None] = lambda: None
    started: Callable[[], None] = lambda: None
    _operator: Operator | None = None
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def run(self) -> None:
        """For ever."""
        while True:
            try:
                await self._start()
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            except (OperatorError, Killed):
                pass
            finally:
                await self._end()
            await asyncio.sleep(self.restart_seconds)

    def kill(self) -> None:
        """SIGKILL."""
        self.kube.dead = True
        for task in self._tasks:
            task.cancel()

    async def _start(self) -> None:
        self.kube.dead, self.kube.kill_after = False, None
        operator = assembled(
            kube=self.kube,
            gateway=self.gateway,
            prometheus=self.prometheus,
            agents=self.agents,
            clock=self.clock,
            settings=SETTINGS,
        )
        core, service, resync = operator.core, operator.service, operator.resync
        self._operator, self.core = operator, core  # its watches deliver from here on
        self.kube.watchers.append(self._watch)
        await resync.once()
        self.service, self.resync = service, resync
        self.up_since, self.starts = self.clock.monotonic(), self.starts + 1
        works = {"supervisor": core.supervisor.run(), "loans": service.run(), "resync": resync.run()}
        self._tasks = [asyncio.create_task(work, name=name) for name, work in works.items()]
        self.started()

    def _watch(self, event: str, kind: Kind, body: Object) -> None:
        if self._operator is not None and not self.deaf:
            self._operator.watch(event, kind, body)

    async def _end(self) -> None:
        if self._watch in self.kube.watchers:
            self.kube.watchers.remove(self._watch)
        self._operator = self.core = self.service = self.resync = self.up_since = None
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, BaseException) and not _is_kill(result):
                self.errors.append(result)
        self.died()


def _is_kill(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_is_kill(one) for one in error.exceptions)
    return isinstance(error, Killed | asyncio.CancelledError)
