"""The real operator over a simulated data plane, both on the time of one virtual event loop.

The operator sees what it always sees: an API server, a gateway, Prometheus and worker agents (`fake_cluster`). Behind
them are the simulator's engines, router, feed and trainer: a pod that the operator creates becomes a simulated worker,
labels that it writes reach the simulated gateway `flip_seconds` later, the routing parameters of its status apply
there, and the gateway's statistics and the engines' series are made from the simulated world. The simulator's clock is
brought up to the loop's time whenever somebody asks, and twice a second.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import looptime
from fake_cluster import FakeAgents, World

from pearl_api import names
from pearl_api.wire.gateway import (
    BatchProgress,
    ConsumerView,
    Counters,
    GatewayStats,
    LiveStates,
    TrajectoryProgress,
    WorkerView,
)
from pearl_dev.virtual.clock import VirtualClock
from pearl_dev.virtual.kube import FakeKube
from pearl_dev.virtual.kubelet import FakeKubelet
from pearl_operator import kinds
from pearl_operator.facts import PodFact, pod_fact
from pearl_operator.ports import EngineSamples
from pearl_operator.settings import Settings
from pearl_planner.types import Activity, Role, SetActivity, SetRole, Slot, WorkerState, Zone
from pearl_simulator.cluster.jobs import Stage
from pearl_simulator.cluster.view import View, has_begun
from pearl_simulator.cluster.world import World as Simulated
from pearl_simulator.types import Feeding

if TYPE_CHECKING:
    from pearl_api.rollout import PrometheusSpec
    from pearl_operator.kinds import Kind
    from pearl_operator.ports import Object, RolloutKey
    from pearl_simulator.cluster.pods import Pod
    from pearl_simulator.types import Scenario

TICK_SECONDS = 0.5
LOOK_SECONDS = 5.0
TABLE = "Qwen/Qwen3-8B/H100-TP2"
NO_GPUS = "0/16 nodes are available: 16 Insufficient nvidia.com/gpu."
STAGES = {
    Stage.AWAY: "environment",
    Stage.HOMELESS: "queued",
    Stage.QUEUED: "queued",
    Stage.PREFILLING: "prefilling",
    Stage.LANDING: "prefilling",
    Stage.MOVING: "prefilling",
    Stage.DECODING: "decoding",
}


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
    """Simulated workers behind the operator's ports."""

    scenario: Scenario
    seed: int
    kube: FakeKube
    kubelet: FakeKubelet
    world: Simulated = field(init=False)
    history: list[Seen] = field(default_factory=list)
    """Every change of it."""
    _pods: dict[str, Pod] = field(default_factory=dict)
    """By UID of the Kubernetes pod."""
    _told: dict[str, WorkerState] = field(default_factory=dict)
    """What the API server knows of each."""
    _began: float = 0.0

    def __post_init__(self) -> None:
        self.world = Simulated(self.scenario, self.seed)
        self._view = View(self.scenario, self.world)
        self.kube.watchers.append(self._changed)

    def start(self) -> None:
        """Time begins now."""
        self._began = asyncio.get_running_loop().time()
        self.world.start(lambda: None)
        self.world.feed.pump()

    @property
    def over(self) -> bool:
        return self.world.clock.stopped or self.world.clock.now >= self.scenario.horizon_seconds

    def advance(self) -> None:
        """Let everything happen that is due, and tell the API server of pods."""
        self.world.clock.run(asyncio.get_running_loop().time() - self._began)
        for uid, pod in list(self._pods.items()):
            self._tell(uid, pod)

    # ---- what the cluster does with the operator's objects

    def _changed(self, event: str, kind: Kind, body: Object) -> None:
        if kind is kinds.POD:
            fact = pod_fact(body)
            if fact is not None and fact.component == names.COMPONENT_WORKER and fact.slot is not None:
                self.advance()
                self._pod_changed(event, fact)
        elif kind is kinds.ROLLOUT:
            self._routing_changed((body.get("status") or {}).get("routing") or {})
        self._see()

    def _pod_changed(self, event: str, fact: PodFact) -> None:
        uid, pods = fact.address.uid, self.world.pods
        if event == "ADDED":
            slot = Slot(fact.slot or 0, Zone(fact.zone), Role(fact.role), fact.incarnation)
            pods.create(slot, fact.role_epoch)
            self._pods[uid] = next(reversed(pods.by_name.values()))
            return
        pod = self._pods.get(uid)
        if pod is None or pods.by_name.get(pod.name) is not pod:
            return
        if fact.deleting or event == "DELETED":
            pods.delete(pod.name)
            del self._pods[uid]
        elif (fact.role, fact.role_epoch) != (pod.role, pod.role_epoch):
            pods.set_role(SetRole(uid, pod.name, Role(fact.role), fact.role_epoch))
        elif fact.activity != pod.activity:
            pods.set_activity(SetActivity(uid, pod.name, Activity(fact.activity)))

    def _routing_changed(self, routing: dict[str, Any]) -> None:
        self.world.router.local_append_tokens = routing.get("localAppendTokens", 0)
        if self.scenario.router.window is None and self.world.feed.window != routing.get("inFlightWindow"):
            self.world.feed.window = routing.get("inFlightWindow")
            self.world.feed.pump()

    def _tell(self, uid: str, pod: Pod) -> None:
        """The pod's status, as the scheduler and the kubelet would write it."""
        gone = self.world.pods.by_name.get(pod.name) is not pod
        if self._told.get(uid) is pod.state and not gone:
            return
        stored = next((one for one in self.kube.of(kinds.POD) if one["metadata"]["uid"] == uid), None)
        if stored is None:
            return
        self._told[uid] = pod.state
        if gone:  # with its node
            self.kube.remove(kinds.POD, stored["metadata"]["name"], stored["metadata"]["namespace"])
            del self._pods[uid]
        elif pod.state is WorkerState.PENDING:
            scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NO_GPUS}
            self.kube.store(kinds.POD, {**stored, "status": {"phase": "Pending", "conditions": [scheduled]}})
        elif pod.state is WorkerState.FAILED:
            self.kube.store(kinds.POD, {**stored, "status": {**stored["status"], "phase": "Failed"}})
        else:
            self.kubelet.set_status(stored, ready=pod.state is WorkerState.READY)

    def _see(self) -> None:
        bodies = [one for one in self.kube.of(kinds.POD) if "deletionTimestamp" not in one["metadata"]]
        status = self.kube.objects["pearlrollouts", "rl", "swe"].get("status") or {}
        decision = status.get("lastDecision") or {"reason": "", "shape": ""}
        workers = [one for one in bodies if names.LABEL_ROLE in one["metadata"]["labels"]]
        roles = tuple((one["metadata"]["uid"], one["metadata"]["labels"][names.LABEL_ROLE]) for one in workers)
        seen = Seen(self.world.clock.now, decision["reason"], decision["shape"], roles)
        last = self.history[-1] if self.history else None
        if last is None or (last.reason, last.shape, last.pods) != (seen.reason, seen.shape, seen.pods):
            self.history.append(seen)

    # ---- what the gateway and the engines tell

    async def stats(self, rollout: RolloutKey) -> GatewayStats:
        """The gateway's view; the batch is what the trainer waits for."""
        self.advance()
        world, view = self.world, self._view
        profile, batch = world.records.profile(), view._batch()
        versions = [engine.version for engine in world.pods.engines()]
        begun = [job for job in world.feed.live.values() if has_begun(job)]
        trainer = view._trainer()
        return GatewayStats(
            rollout=rollout.name,
            uptime_seconds=world.clock.now,
            profile=None if profile is None else profile.to_dict(),
            profile_age_seconds=None,
            batch=None
            if batch is None
            else BatchProgress(
                step=batch.step,
                groups=batch.groups,
                group_size=batch.group_size,
                need_groups=batch.need_groups,
                min_version=max(world.trainer.version - self.scenario.training.max_staleness, 0),
                started=batch.started,
                finished=batch.finished,
                aborted=0,
                complete_groups=batch.complete_groups,
                open_seconds=batch.elapsed_seconds,
                closed=False,
            ),
            unfinished=[]
            if batch is None
            else [
                TrajectoryProgress(
                    group=one.group,
                    turns_done=one.turns_done,
                    context_tokens=one.context_tokens,
                    idle_seconds=one.idle_seconds,
                )
                for one in batch.unfinished
            ],
            live=LiveStates(**Counter(STAGES[job.stage] for job in begun)),
            workers=self._workers(),
            counters=Counters(),
            window=world.feed.window,
            local_append_tokens=world.router.local_append_tokens,
            weights_wanted=world.trainer.version,
            weights_min=min(versions, default=None),
            weights_max=max(versions, default=None),
            refill=self.scenario.training.feeding is Feeding.REFILL if world.trainer.step else None,
            consumer=ConsumerView(
                update_seconds=trainer.update_seconds,
                waiting_seconds=trainer.waiting_seconds,
                ready_trajectories=trainer.ready_trajectories,
            ),
        )

    def _workers(self) -> list[WorkerView]:
        resident, in_flight = self._view._contexts()
        return [
            WorkerView(
                uid=uid,
                pod=pod.name,
                role=names.Role(pod.acked_role.value),
                acked_epoch=pod.acked_epoch,
                activity=names.Activity(pod.acked_activity.value),
                ready=pod.state is WorkerState.READY,
                in_flight=in_flight.get(pod.engine, 0) if pod.engine else 0,
                resident_tokens=resident.get(pod.engine, 0) if pod.engine else 0,
                weight_version=pod.engine.version if pod.engine else None,
            )
            for uid, pod in self._pods.items()
        ]

    async def engines(self, rollout: RolloutKey, spec: PrometheusSpec) -> EngineSamples:
        """The engines' series since the last time."""
        del rollout, spec
        self.advance()
        by_name = self._view._measurements().engines
        uids = {pod.uid: uid for uid, pod in self._pods.items()}
        pods = {one["metadata"]["uid"]: one["metadata"] for one in self.kube.of(kinds.POD)}
        found = {uids[key]: metrics for key, metrics in by_name.items() if key in uids}
        named = {uid: f"rl/{meta['name']}" for uid, meta in pods.items()}
        samples = {named[uid]: metrics for uid, metrics in found.items() if uid in named}
        scraped = [named[uid] for uid, pod in self._pods.items() if pod.engine and uid in named]
        return EngineSamples(samples, dict.fromkeys(scraped, self.kube.clock.now()))


@dataclass
class Operated:
    """One operator, one rollout and its simulated data plane."""

    cluster: World
    plane: DataPlane


def operated(scenario: Scenario, seed: int) -> Operated:
    """The cluster of a scenario, with the rollout applied; nothing runs yet."""
    kube = FakeKube(VirtualClock())
    kubelet = FakeKubelet(kube, schedule=False)
    plane = DataPlane(scenario, seed, kube, kubelet)
    settings = Settings(
        namespace="rl",
        gateway_image="example/operator:1",
        cluster_scoped=False,
        look_seconds=LOOK_SECONDS,
        debug_ring=100_000,
    )
    cluster = World(kube, kubelet, plane, plane, FakeAgents(kube), settings)  # type: ignore[arg-type]
    return Operated(cluster, plane)


def spec_of(scenario: Scenario) -> dict[str, Any]:
    """What a user would write for it; thresholds and deadlines are the defaults."""
    fleet, training = scenario.fleet, scenario.training
    window = scenario.router.window
    return {
        "engine": {"image": "example/worker:1", "tensorParallel": fleet.gpus_per_worker, "table": TABLE},
        "capacity": {"reserved": {"gpus": fleet.reserved_gpus}, "elastic": {"maxGpus": fleet.elastic_max_gpus}},
        "mode": "Auto",
        "workload": {"groups": scenario.workload.groups, "groupSize": scenario.workload.group_size},
        "weights": {"source": "file:///weights", "maxStaleness": training.max_staleness},
        "metrics": {"prometheus": {"url": "http://prometheus:9090"}},
        "policy": {
            "deadlines": {"drainSeconds": 60},
            "hysteresis": {"minDwellSeconds": 30},
            "inFlight": "Auto" if window is None else window,
        },
    }


async def operate(scenario: Scenario, seed: int) -> Operated:
    """Let the operator run the scenario to its end."""
    both = operated(scenario, seed)
    both.cluster.apply(**spec_of(scenario))
    both.plane.start()
    await both.cluster.start()
    try:
        while not both.plane.over:
            if both.cluster._task is not None and both.cluster._task.done():
                both.cluster._task.result()
            both.plane.advance()
            await asyncio.sleep(TICK_SECONDS)
    finally:
        core = both.cluster.core
        await both.cluster.stop()
        both.cluster.core = core  # its ring is of interest
    return both


def run_operated(scenario: Scenario, seed: int) -> Operated:
    """The same from a program."""
    with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        return runner.run(operate(scenario, seed))
