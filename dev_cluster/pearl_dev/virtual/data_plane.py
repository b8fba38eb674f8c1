"""Simulated workers behind the operator's ports, on the time of its event loop.

A pod that the operator creates becomes a simulated worker, labels that it writes reach the simulated gateway
`flip_seconds` later, the routing parameters of its status apply there, and what the simulator says of pods and nodes is
written to the API server as scheduler, kubelets and cloud would. The simulator's clock is brought up to the loop's time
whenever somebody asks, and with every `advance`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pearl_api import names
from pearl_api.wire.worker import WorkerPhase
from pearl_dev.virtual.borrower import Borrower
from pearl_dev.virtual.gateway import SimulatedGateway
from pearl_operator import kinds
from pearl_operator.clock import to_rfc3339
from pearl_operator.facts import PodFact, pod_fact
from pearl_planner.types import Activity, Role, SetActivity, SetRole, Slot, WorkerState, Zone
from pearl_simulator.cluster.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from pearl_dev.virtual.kube import FakeKube, Object
    from pearl_dev.virtual.kubelet import FakeKubelet
    from pearl_operator.kinds import Kind
    from pearl_simulator.cluster.pods import Pod
    from pearl_simulator.types import Scenario

NO_GPUS = "0/16 nodes are available: 16 Insufficient nvidia.com/gpu."
END = "karpenter.sh/nodeclaim-termination-timestamp"
"""Annotation of a node with the time of its end."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a user would see of the rollout at some time."""

    seconds: float
    reason: str
    shape: str
    """That the operator has decided for."""
    pods: tuple[tuple[str, str], ...]
    """(UID, role label) of worker pods that are not being deleted, in the order of their names."""


@dataclass
class DataPlane:
    """The simulated world of one rollout, `rl/swe`."""

    scenario: Scenario
    seed: int
    kube: FakeKube
    kubelet: FakeKubelet
    world: World = field(init=False)
    gateway: SimulatedGateway = field(init=False)
    history: list[Seen] = field(default_factory=list)
    """Every change of it."""
    borrowers: dict[str, Borrower] = field(default_factory=dict)
    """Their agents by pod name."""
    pods: dict[str, Pod] = field(default_factory=dict)
    """By UID of the Kubernetes pod."""
    lost_nodes: int = 0
    """Elastic workers that ended with their node."""
    _told: dict[str, tuple[WorkerState, bool]] = field(default_factory=dict)
    """What the API server knows of each: its state, and whether its end is announced."""
    _began: float = 0.0

    def __post_init__(self) -> None:
        self.world = World(self.scenario, self.seed)
        self.gateway = SimulatedGateway(self)
        self.kube.watchers.append(self._changed)

    def start(self) -> None:
        """Time begins now."""
        self._began = asyncio.get_running_loop().time()
        self.world.start(lambda: None)
        self.world.feed.pump()

    @property
    def over(self) -> bool:
        """The scenario is at its end."""
        return self.world.clock.stopped or self.world.clock.now >= self.scenario.horizon_seconds

    def advance(self) -> None:
        """Let everything happen that is due, and tell the API server of pods."""
        self.world.clock.run(asyncio.get_running_loop().time() - self._began)
        for uid, pod in list(self.pods.items()):
            if pod.zone is not Zone.BORROWED:
                self._tell(uid, pod)

    # ---- what the cluster does with the operator's objects

    def _changed(self, event: str, kind: Kind, body: Object) -> None:
        if kind is kinds.POD:
            fact = pod_fact(body)
            if fact is not None and fact.component == names.COMPONENT_WORKER and fact.slot is not None:
                self.advance()
                self._pod_changed(event, fact, Zone(str(fact.zone)), Role(str(fact.role)))
        elif kind is kinds.ROLLOUT:
            self._routing_changed((body.get("status") or {}).get("routing") or {})
        self._see()

    def _pod_changed(self, event: str, fact: PodFact, zone: Zone, role: Role) -> None:
        uid, pods = fact.address.uid, self.world.pods
        if event == "ADDED" and zone is Zone.BORROWED:
            self._borrower_added(fact, role)
            return
        if event == "ADDED":
            slot = Slot(fact.slot or 0, zone, role, fact.incarnation)
            pods.create(slot, fact.role_epoch)
            self.pods[uid] = next(reversed(pods.by_name.values()))
            return
        pod = self.pods.get(uid)
        if pod is None or pods.by_name.get(pod.name) is not pod:
            return
        if fact.deleting or event == "DELETED":
            self._pod_deleted(uid, pod)
        elif (role, fact.role_epoch) != (pod.role, pod.role_epoch):
            pods.set_role(SetRole(uid, pod.name, role, fact.role_epoch))
        elif fact.activity != pod.activity:
            pods.set_activity(SetActivity(uid, pod.name, Activity(fact.activity)))

    def _pod_deleted(self, uid: str, pod: Pod) -> None:
        del self.pods[uid]
        if pod.zone is Zone.BORROWED:
            self.borrowers = {name: one for name, one in self.borrowers.items() if one.uid != uid}
        else:
            self.world.pods.delete(pod.name)

    def _routing_changed(self, routing: dict[str, Any]) -> None:
        self.world.router.local_append_tokens = routing.get("localAppendTokens", 0)
        if self.scenario.router.window is None and self.world.feed.window != routing.get("inFlightWindow"):
            self.world.feed.window = routing.get("inFlightWindow")
            self.world.feed.pump()

    # ---- what scheduler, kubelets and cloud say

    def _tell(self, uid: str, pod: Pod) -> None:
        """The pod's status, and its node's end."""
        gone = self.world.pods.by_name.get(pod.name) is not pod
        known = (pod.state, pod.gone_at is not None)
        if self._told.get(uid) == known and not gone:
            return
        stored = next((one for one in self.kube.of(kinds.POD) if one["metadata"]["uid"] == uid), None)
        if stored is None:
            return
        self._told[uid] = known
        if gone:
            self._lost(uid, stored)
        elif pod.state is WorkerState.PENDING:
            scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NO_GPUS}
            self.kube.store(kinds.POD, {**stored, "status": {"phase": "Pending", "conditions": [scheduled]}})
        elif pod.state is WorkerState.FAILED:
            self.kube.store(kinds.POD, {**stored, "status": {**stored["status"], "phase": "Failed"}})
        else:
            self._runs(stored, pod)

    def _runs(self, stored: Object, pod: Pod) -> None:
        bound = self.kubelet.set_status(stored, ready=pod.state is WorkerState.READY)
        if pod.zone is Zone.ELASTIC:
            self._write_node(bound["spec"]["nodeName"], pod.gone_at)

    def _write_node(self, name: str, gone_at: float | None) -> None:
        """With its end where that is announced."""
        clock = self.world.clock
        end = {} if gone_at is None else {END: to_rfc3339(self.kube.clock.now() + gone_at - clock.now)}
        known = self.kube.objects.get((kinds.NODE.plural, None, name))
        if known is None or (known["metadata"].get("annotations") or {}) != end:
            body = {"metadata": {"name": name, "annotations": end}, "status": {"conditions": []}}
            self.kube.store(kinds.NODE, body)

    def _lost(self, uid: str, stored: Object) -> None:
        """It is gone with its node."""
        self.lost_nodes += 1
        node = stored["spec"].get("nodeName")
        if node is not None:
            self.kube.vanish(kinds.NODE, node, None)
        self.kube.remove(kinds.POD, stored["metadata"]["name"], stored["metadata"]["namespace"])
        del self.pods[uid]

    # ---- borrowers: the simulator has them all the time, cold, numbered as the operator numbers them

    def _borrower_added(self, fact: PodFact, role: Role) -> None:
        uid, name = fact.address.uid, fact.address.name
        pod = next(
            one for one in self.world.pods.by_name.values() if one.zone is Zone.BORROWED and one.slot == fact.slot
        )
        pod.role = pod.acked_role = role
        pod.role_epoch = pod.acked_epoch = fact.role_epoch
        pod.activity = pod.acked_activity = Activity(fact.activity)
        costs = self.scenario.costs
        self.pods[uid] = pod
        self.borrowers[name] = Borrower(
            name,
            uid,
            seconds=lambda: costs.wake_seconds,
            sleep_seconds=lambda: costs.sleep_seconds,
            granting=self._at(uid, self._borrower_granted),
            changed=self._at(uid, self._borrower_changed),
            freed=self._at(uid, self._borrower_freed),
        )
        self._set_status(uid, ready=False)

    def _at(self, uid: str, then: Callable[[Borrower, Pod], None]) -> Callable[[Borrower], None]:
        """With the simulated pod, at the present time."""

        def call(borrower: Borrower) -> None:
            pod = self.pods.get(uid)
            if pod is not None:
                self.advance()
                then(borrower, pod)

        return call

    def _borrower_granted(self, _: Borrower, pod: Pod) -> None:
        pod.state = WorkerState.STARTING
        self.world.pods.hold(pod)

    def _borrower_changed(self, borrower: Borrower, pod: Pod) -> None:
        pods = self.world.pods
        if borrower.phase is WorkerPhase.READY:
            pods.serve(pod)
        else:
            pods.withdraw([pod], WorkerState.ASLEEP)
            pods.stop_engine(pod)
        self._set_status(borrower.uid, ready=borrower.phase is WorkerPhase.READY)

    def _borrower_freed(self, _: Borrower, pod: Pod) -> None:
        self.world.pods.free(pod)
        pod.state = WorkerState.COLD

    def _set_status(self, uid: str, *, ready: bool) -> None:
        stored = next((one for one in self.kube.of(kinds.POD) if one["metadata"]["uid"] == uid), None)
        if stored is not None:
            self.kubelet.set_status(stored, ready=ready)

    def _see(self) -> None:
        bodies = [one for one in self.kube.of(kinds.POD) if "deletionTimestamp" not in one["metadata"]]
        status = self.kube.objects["pearlrollouts", "rl", "swe"].get("status") or {}
        decision = status.get("lastDecision") or {"reason": "", "shape": ""}
        workers = [one for one in bodies if names.LABEL_ROLE in one["metadata"].get("labels", {})]
        roles = tuple((one["metadata"]["uid"], one["metadata"]["labels"][names.LABEL_ROLE]) for one in workers)
        seen = Seen(self.world.clock.now, decision["reason"], decision["shape"], roles)
        last = self.history[-1] if self.history else None
        if last is None or (last.reason, last.shape, last.pods) != (seen.reason, seen.shape, seen.pods):
            self.history.append(seen)
