"""Worker pods: GPUs, life, labels and when the gateway knows of them.

Reserved and elastic pods are made and deleted by the plan. A pod whose zone has no free GPUs is pending; one that has
them serves after `start_seconds`, with the engine of its size. Labels (role, activity) reach the gateway
`flip_seconds` after they were written; what runs on a worker finishes there. Borrowed pods exist all the time and serve
only under a loan.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pearl_planner.engine.tables import table_of_size
from pearl_planner.types import Activity, Role, WorkerState, Zone
from pearl_simulator.cluster.clock import SimulationError
from pearl_simulator.cluster.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from pearl_planner.types import SetActivity, SetRole, Slot
    from pearl_simulator.cluster.clock import Clock
    from pearl_simulator.cluster.engine import Hooks
    from pearl_simulator.cluster.router import Router
    from pearl_simulator.cluster.spot import SpotMarket
    from pearl_simulator.types import Calibration, Scenario


class Pod:
    """One worker pod."""

    __slots__ = (
        "acked_activity",
        "acked_epoch",
        "acked_role",
        "activity",
        "activity_since",
        "engine",
        "gone_at",
        "gpus",
        "held_since",
        "incarnation",
        "loan",
        "name",
        "role",
        "role_epoch",
        "slot",
        "state",
        "ticket",
        "uid",
        "zone",
    )

    def __init__(self, slot: int, incarnation: int, zone: Zone, role: Role, gpus: int) -> None:
        self.slot = slot
        self.incarnation = incarnation
        self.zone = zone
        self.role = role
        self.gpus = gpus
        self.name = f"{'borrowed' if zone is Zone.BORROWED else 'worker'}-{slot}-{incarnation}"
        self.uid = self.name
        self.role_epoch = 0
        self.acked_role = role
        self.acked_epoch = 0
        self.activity = Activity.ACTIVE
        self.acked_activity = Activity.ACTIVE
        self.activity_since = 0.0
        self.state = WorkerState.PENDING
        self.engine: Engine | None = None
        self.loan: str | None = None
        self.gone_at: float | None = None
        """Its node was given notice for this time."""
        self.held_since: float | None = None
        self.ticket = 0


class Pods:
    """All pods of the rollout by name."""

    def __init__(self, scenario: Scenario, clock: Clock, router: Router, hooks: Hooks, market: SpotMarket) -> None:
        self._scenario = scenario
        self._budget = scenario.fleet.budget()
        self._calibrations = {self._budget.gpus_per_worker: scenario.calibration}
        self._clock = clock
        self._router = router
        self._hooks = hooks
        self.market = market
        self.by_name: dict[str, Pod] = {}
        self._created = 0
        self.version = 0
        """Newest weights that new engines load."""
        self.gpu_seconds: dict[Zone, float] = dict.fromkeys(Zone, 0.0)
        self.gone_tokens = 0
        self.gone_preemptions = 0
        self.recomputed_tokens = 0
        self._retrying = False
        self.wake: Callable[[], None] = lambda: None
        """Called when something happened that a look may act on."""
        self.changed: Callable[[], None] = lambda: None
        """Called when the serving fleet changed."""

    def engines(self) -> list[Engine]:
        """Engines that live, in the order of their pods."""
        return [pod.engine for pod in self.by_name.values() if pod.engine is not None]

    def held_gpus(self, zone: Zone) -> int:
        """GPUs that pods of the zone hold."""
        return sum(pod.gpus for pod in self.by_name.values() if pod.zone is zone and pod.held_since is not None)

    # ---- actions of the plan -----

    def create(self, slot: Slot, epoch: int) -> None:
        """Make the pod of a slot."""
        pod = Pod(slot.slot, slot.incarnation, slot.zone, slot.role, self._budget.gpus_of(slot.role))
        if pod.name in self.by_name:
            raise SimulationError(f"pod {pod.name} was created while it is there")
        self._created += 1  # a pod that died before any look saw it comes back under its name
        pod.uid = f"{pod.name}-{self._created}"
        pod.role_epoch = pod.acked_epoch = epoch
        self.by_name[pod.name] = pod
        self.schedule()

    def delete(self, name: str) -> None:
        """Delete a pod; what is still inside goes on elsewhere."""
        pod = self.by_name.get(name)
        if pod is not None:
            self._end(pod)
            self.schedule()

    def set_role(self, action: SetRole) -> None:
        """Write the role label.

        Raises:
            SimulationError: the worker is of another size than the stage. Colocated it may become for a while.
        """
        pod = self.by_name.get(action.pod)
        if pod is None:
            return
        fits = pod.zone is Zone.BORROWED or pod.gpus == self._budget.gpus_of(action.role)
        if not fits and action.role is not Role.COLOCATED:
            raise SimulationError(f"{pod.name} with {pod.gpus} GPUs became a {action.role} worker")
        pod.role, pod.role_epoch = action.role, action.epoch
        self._clock.after(self._scenario.costs.flip_seconds, self._acknowledge, pod)

    def set_activity(self, action: SetActivity) -> None:
        """Write the activity label."""
        pod = self.by_name.get(action.pod)
        if pod is None:
            return
        pod.activity, pod.activity_since = action.activity, self._clock.now
        self._clock.after(self._scenario.costs.flip_seconds, self._acknowledge, pod)

    def _acknowledge(self, pod: Pod) -> None:
        """The gateway routes by the labels as they were `flip_seconds` ago, or are by now."""
        pod.acked_role, pod.acked_epoch, pod.acked_activity = pod.role, pod.role_epoch, pod.activity
        self.relist()
        self.wake()

    # ---- life -----

    def schedule(self) -> None:
        """Pending pods get GPUs that are free, the oldest first."""
        free = {Zone.RESERVED: self._scenario.fleet.reserved_gpus, Zone.ELASTIC: self.market.placeable_gpus}
        pods = [pod for pod in self.by_name.values() if pod.zone is not Zone.BORROWED]
        for pod in pods:
            if pod.held_since is not None and pod.gone_at is None:
                free[pod.zone] -= pod.gpus
        for pod in pods:
            if pod.state is WorkerState.PENDING and pod.gpus <= free[pod.zone]:
                free[pod.zone] -= pod.gpus
                pod.state = WorkerState.STARTING
                self.hold(pod)
                self._clock.after(self._scenario.costs.start_seconds, self._started, (pod, pod.ticket))

    def _started(self, start: tuple[Pod, int]) -> None:
        pod, ticket = start
        if pod.ticket == ticket and pod.name in self.by_name and pod.state is WorkerState.STARTING:
            self.serve(pod)

    def serve(self, pod: Pod) -> None:
        """Its engine is up, with the newest weights and nothing cached."""
        pod.state = WorkerState.READY
        pod.engine = Engine(pod.name, self._clock, self._calibration(pod.gpus), self._hooks, self.version)
        self.relist()
        self.wake()

    def _calibration(self, gpus: int) -> Calibration:
        """How fast an engine on so many GPUs is."""
        if gpus not in self._calibrations:
            whole = self._scenario.calibration
            table = table_of_size(whole.table, self._budget.gpus_per_worker, gpus)
            self._calibrations[gpus] = replace(whole, table=table)
        return self._calibrations[gpus]

    def fail(self, pod: Pod) -> None:
        """The engine died; the pod stays until it is deleted."""
        pod.state = WorkerState.FAILED
        self.stop_engine(pod)
        self.wake()

    def lose(self, pods: list[Pod]) -> None:
        """Their nodes are gone, all at once."""
        self.withdraw(pods, WorkerState.TERMINATING)
        for pod in pods:
            self._end(pod)
        self.schedule()
        self.wake()

    def withdraw(self, pods: list[Pod], state: WorkerState) -> None:
        """They serve no more; what leaves one of them does not go to another."""
        for pod in pods:
            pod.state = state
        self.relist()

    def hold(self, pod: Pod) -> None:
        """Its GPUs are taken from now on.

        Raises:
            SimulationError: the zone has no more of them.
        """
        pod.held_since = self._clock.now
        limit = {
            Zone.RESERVED: self._scenario.fleet.reserved_gpus,
            Zone.ELASTIC: self.market.gpus,
            Zone.BORROWED: self._scenario.fleet.borrowed_max_gpus,
        }[pod.zone]
        if self.held_gpus(pod.zone) > limit:
            raise SimulationError(f"{self.held_gpus(pod.zone)} {pod.zone} GPUs are held, there are {limit}")

    def free(self, pod: Pod) -> None:
        """Its GPUs are free from now on."""
        if pod.held_since is not None:
            since = max(pod.held_since, self._scenario.warmup_seconds)
            self.gpu_seconds[pod.zone] += pod.gpus * max(0.0, self._clock.now - since)
            pod.held_since = None

    def stop_engine(self, pod: Pod) -> None:
        """What runs on it goes on elsewhere from its tokens."""
        engine, pod.engine = pod.engine, None
        pod.ticket += 1
        if engine is None:
            return
        self.gone_tokens += engine.prefilled_tokens
        self.gone_preemptions += engine.preemptions
        engine.role = None
        self.relist()
        for job in engine.stop():
            job.lost = True
            self._router.dispatch(job)

    def reload(self, pods: list[Pod]) -> None:
        """New weights: requests are aborted and go on elsewhere, the cache is dropped, then they serve again."""
        loading = [pod for pod in pods if pod.engine is not None]
        self.withdraw(loading, WorkerState.UNREADY)
        for pod in loading:
            pod.ticket += 1
            self._clock.after(self._scenario.costs.weights_seconds, self._reloaded, (pod, pod.ticket, self.version))
            for job in pod.engine.stop() if pod.engine is not None else ():
                self._router.dispatch(job)

    def _reloaded(self, load: tuple[Pod, int, int]) -> None:
        pod, ticket, version = load
        if pod.ticket != ticket or pod.engine is None:
            return
        pod.engine.version = version
        pod.state = WorkerState.READY
        self.relist()
        self.wake()

    def relist(self) -> None:
        """Routing lists from what the gateway knows now; turns that wait are tried again."""
        lists: dict[Role, list[Engine]] = {role: [] for role in Role}
        roles = {}
        for pod in self.by_name.values():
            role = pod.acked_role if pod.acked_activity is Activity.ACTIVE else None
            if pod.engine and pod.state in (WorkerState.READY, WorkerState.UNREADY):
                roles[pod.uid] = pod.acked_role
            if pod.engine and pod.state is WorkerState.READY:
                pod.engine.role = role
                if role is not None:
                    lists[role].append(pod.engine)
        router = self._router
        router.serves(roles)
        router.colocated, router.prefillers = lists[Role.COLOCATED], lists[Role.PREFILL]
        router.decoders = lists[Role.DECODE]
        self.changed()
        if router.waiting and not self._retrying:  # once for all that come at the same time
            self._retrying = True
            self._clock.after(0.0, self._retry)

    def _retry(self, _: object) -> None:
        self._retrying = False
        self._router.retry()

    def _end(self, pod: Pod) -> None:
        del self.by_name[pod.name]
        self.free(pod)
        self.stop_engine(pod)
