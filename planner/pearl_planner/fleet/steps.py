"""The safe next actions from what is there towards the target; recomputed at every look, so nothing is journaled.

docs/models.md, "Safe order". Shrink (drain → nothing in flight or the drain deadline → delete → gone), then grow as
far as GPUs of the zone are free; roles change so that at any moment at least one worker serves each stage (a colocated
one serves both). A worker counts as serving only while it is ready, active and every gateway process routes by its
present role. Where no direct order exists, one worker is widened to colocated for a while.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pearl_planner.fleet.living import is_live
from pearl_planner.types import (
    Action,
    Activity,
    Budget,
    CreateWorker,
    DeleteWorker,
    Policy,
    Role,
    SetActivity,
    SetRole,
    Slot,
    Target,
    Worker,
    WorkerState,
    Zone,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

STAGES: dict[Role, frozenset[Role]] = {
    Role.COLOCATED: frozenset({Role.PREFILL, Role.DECODE}),
    Role.PREFILL: frozenset({Role.PREFILL}),
    Role.DECODE: frozenset({Role.DECODE}),
}
"""Stages that a worker of a role serves, named by the single roles."""
UNACKNOWLEDGED_DRAIN_SECONDS = 3.0
"""Idle time after which a drain is believed though the gateway did not say that it knows of it."""

Key = tuple[bool, int, int]


def key_of(one: Worker | Slot) -> Key:
    """Identity of a slot's pod; borrowed pods are numbered by themselves."""
    return (one.zone is Zone.BORROWED, one.slot, one.incarnation)


def steps(workers: Sequence[Worker], target: Target, *, budget: Budget, policy: Policy) -> tuple[Action, ...]:
    """Actions that may all be done now. Empty when there is nothing to do, or when only waiting is left."""
    scene = _scene(workers, target)
    shrink = [*_deletes(scene, policy), *_drains(scene, policy, budget)]
    flips = _flips(scene, target)
    return (*shrink, *_activations(scene), *flips, *map(CreateWorker, _creatable(scene, budget)))


def finished(workers: Sequence[Worker], target: Target) -> bool:
    """Every slot serves in its role, as the gateway knows, and nothing else is left (borrowed pods never leave)."""
    scene = _scene(workers, target)
    return _complete(scene) and all(_settled(worker) for worker in scene.staying.values())


def complete(workers: Sequence[Worker], target: Target) -> bool:
    """Every slot has its pod in its role and nothing else is left, though some may not serve yet."""
    return _complete(_scene(workers, target))


def _complete(scene: _Scene) -> bool:
    roles = all(key in scene.staying and scene.staying[key].role is slot.role for key, slot in scene.wanted.items())
    return roles and not [w for w in scene.leaving if w.zone is not Zone.BORROWED] and not scene.terminating


def serves(worker: Worker) -> frozenset[Role]:
    """Stages that a worker reliably serves now."""
    ready = worker.state is WorkerState.READY and worker.activity is Activity.ACTIVE
    return STAGES[worker.role] if ready and not _lagging(worker) else frozenset()


@dataclass(slots=True)
class _Scene:
    """Workers by what becomes of them; `serving` shrinks as actions of this call are decided."""

    wanted: dict[Key, Slot]
    staying: dict[Key, Worker]
    leaving: list[Worker]
    terminating: list[Worker]
    all: Sequence[Worker]
    serving: dict[str, frozenset[Role]] = field(default_factory=dict)
    """uid → stages it reliably serves."""
    widened: set[str] = field(default_factory=set)

    def covered(self, stage: Role, *, without: str, among: Iterable[Worker]) -> bool:
        """Whether another one of these workers serves the stage."""
        return any(stage in self.serving.get(worker.uid, ()) for worker in among if worker.uid != without)


def _scene(workers: Sequence[Worker], target: Target) -> _Scene:
    wanted = {key_of(slot): slot for slot in target.slots}
    staying: dict[Key, Worker] = {}
    leaving, terminating = [], []
    for worker in workers:
        key = key_of(worker)
        if worker.state is WorkerState.TERMINATING:
            terminating.append(worker)
        elif key in wanted and key not in staying and worker.state is not WorkerState.FAILED:
            staying[key] = worker
        else:
            leaving.append(worker)
    leaving.sort(key=lambda w: (w.resident_tokens or 0, w.in_flight or 0, w.slot, w.uid))
    return _Scene(wanted, staying, leaving, terminating, workers, {worker.uid: serves(worker) for worker in workers})


def _lagging(worker: Worker) -> bool:
    return worker.acked_epoch is not None and worker.acked_epoch < worker.role_epoch


def _settled(worker: Worker) -> bool:
    return is_live(worker) and worker.activity is Activity.ACTIVE and not _lagging(worker)


def _drained(worker: Worker, policy: Policy) -> bool:
    """Nothing in flight as far as the gateway knows, or the drain took too long."""
    if worker.activity is Activity.ACTIVE:
        return False
    waited = worker.draining_seconds or 0.0
    if waited >= policy.drain_seconds:
        return True
    known = worker.acked_activity is not None and worker.acked_activity is not Activity.ACTIVE
    return worker.in_flight == 0 and (
        known or (worker.acked_activity is None and waited >= UNACKNOWLEDGED_DRAIN_SECONDS)
    )


def _deletes(scene: _Scene, policy: Policy) -> list[Action]:
    """Pods that never served, will not serve again, or are drained. Borrowers belong to their trainer."""
    return [
        DeleteWorker(worker.uid, worker.pod, worker.slot)
        for worker in scene.leaving
        if worker.zone is not Zone.BORROWED and (not is_live(worker) or _drained(worker, policy))
    ]


def _drains(scene: _Scene, policy: Policy, budget: Budget) -> list[Action]:
    actions: list[Action] = []
    replacing, surplus = _replaceable_gpus(scene, budget), _surplus_gpus(scene, budget)
    for worker in scene.leaving:
        if worker.activity is not Activity.ACTIVE or not is_live(worker):
            continue
        urgent = worker.zone is Zone.BORROWED or not scene.wanted or _noticed(worker, policy)
        replaced = surplus.get(worker.zone, worker.gpus) < worker.gpus
        if not urgent and replaced and replacing < worker.gpus:
            continue
        lost = _stages_lost(scene, worker)
        if lost and not urgent:
            bridge = _bridge(scene, lost)
            if bridge is not None:
                actions.append(bridge)
                continue
            if _help_is_coming(scene, lost, budget):
                continue
        if replaced:
            replacing -= worker.gpus
        elif worker.zone in surplus:
            surplus[worker.zone] -= worker.gpus
        scene.serving[worker.uid] = frozenset()
        actions.append(SetActivity(worker.uid, worker.pod, Activity.DRAINING))
    return actions


def _noticed(worker: Worker, policy: Policy) -> bool:
    return worker.notice_seconds is not None and worker.notice_seconds <= policy.drain_seconds


def _replaceable_gpus(scene: _Scene, budget: Budget) -> int:
    """GPUs of workers that may be taken out to be replaced: a quarter of the fleet's, and at least one worker's.

    GPUs on which a worker of the target is missing already count: on their way out, free for one, or starting.
    """
    sizes = {key: budget.gpus_of(slot.role) for key, slot in scene.wanted.items()}
    own = [worker for worker in scene.leaving if worker.zone is not Zone.BORROWED]  # the others leave by themselves
    going = [w for w in own if w.activity is not Activity.ACTIVE or not is_live(w)]
    ending = [worker for worker in scene.terminating if worker.zone is not Zone.BORROWED]
    missing = sum(worker.gpus for worker in [*going, *ending])
    missing += sum(sizes[key_of(slot)] for slot in _creatable(scene, budget))
    missing += sum(sizes[key] for key, worker in scene.staying.items() if not is_live(worker))
    largest = max([*sizes.values(), *(worker.gpus for worker in own)], default=0)
    return max(largest, sum(sizes.values()) // 4) - missing


def _surplus_gpus(scene: _Scene, budget: Budget) -> dict[Zone, int]:
    """GPUs that the fleet's own zones are to have fewer of: their workers go without another in their place."""
    surplus = {Zone.RESERVED: 0, Zone.ELASTIC: 0}
    going = [worker for worker in scene.leaving if is_live(worker) and worker.activity is Activity.ACTIVE]
    for worker in [*scene.staying.values(), *going]:
        if worker.zone in surplus:
            surplus[worker.zone] += worker.gpus
    for slot in scene.wanted.values():
        if slot.zone in surplus:
            surplus[slot.zone] -= budget.gpus_of(slot.role)
    return surplus


def _stages_lost(scene: _Scene, worker: Worker) -> frozenset[Role]:
    """Stages that nobody would serve without this worker."""
    mine = scene.serving.get(worker.uid, frozenset())
    return frozenset(stage for stage in mine if not scene.covered(stage, without=worker.uid, among=scene.all))


def _bridge(scene: _Scene, lost: frozenset[Role]) -> Action | None:
    """Widen one staying worker to colocated so that the lost stages stay served; None when no one can."""
    if any(_lagging(worker) for worker in scene.staying.values()) or scene.widened:
        return None
    for worker in scene.staying.values():
        if scene.serving.get(worker.uid) and not lost <= STAGES[worker.role]:
            scene.widened.add(worker.uid)
            return SetRole(worker.uid, worker.pod, Role.COLOCATED, worker.role_epoch + 1)
    return None


def _help_is_coming(scene: _Scene, lost: frozenset[Role], budget: Budget) -> bool:
    """Whether some worker will serve the lost stages without this one leaving first."""
    if scene.widened or any(_lagging(worker) for worker in scene.staying.values()):
        return True
    starting = [slot for key, slot in scene.wanted.items() if key in scene.staying and not serves(scene.staying[key])]
    going = [worker for worker in scene.leaving if not scene.serving.get(worker.uid)]
    soon = _creatable(scene, budget, leaving=[*going, *scene.terminating])
    return any(STAGES[slot.role] & lost for slot in [*starting, *soon])


def _activations(scene: _Scene) -> list[Action]:
    """Staying workers that a dropped target, a loan or idleness left inactive."""
    waking = {WorkerState.READY, WorkerState.UNREADY, WorkerState.ASLEEP}
    return [
        SetActivity(worker.uid, worker.pod, Activity.ACTIVE)
        for worker in scene.staying.values()
        if worker.activity is not Activity.ACTIVE and worker.state in waking
    ]


def _flips(scene: _Scene, target: Target) -> list[Action]:
    """Role changes that leave every stage with a worker that stays; the others wait for acknowledgements."""
    actions: list[Action] = []
    waiting: list[Worker] = []
    for key, worker in scene.staying.items():
        role = scene.wanted[key].role
        if worker.role is role or worker.uid in scene.widened:
            continue
        if _may_flip(scene, worker, role):
            scene.serving[worker.uid] = frozenset()
            actions.append(_flip(worker, role, target))
        else:
            waiting.append(worker)
    lagging = any(_lagging(worker) for worker in scene.staying.values())
    stuck = waiting and not actions and not lagging and not scene.widened
    if stuck and not [w for w in scene.leaving if w.zone is not Zone.BORROWED] and _all_here(scene):
        narrow = [worker for worker in waiting if worker.role is not Role.COLOCATED]
        actions += [_flip(worker, Role.COLOCATED, target) for worker in narrow[:1]]
    return actions


def _all_here(scene: _Scene) -> bool:
    """Nobody who could serve a stage soon is still on the way."""
    return all(key in scene.staying and serves(scene.staying[key]) for key in scene.wanted)


def _flip(worker: Worker, role: Role, target: Target) -> SetRole:
    return SetRole(worker.uid, worker.pod, role, max(target.id, worker.role_epoch + 1))


def _may_flip(scene: _Scene, worker: Worker, role: Role) -> bool:
    """Every stage it serves now is served by another that stays, or by itself under both roles."""
    if is_live(worker) and _lagging(worker):
        return False  # the gateway may still use its old role; one change at a time
    mine = scene.serving.get(worker.uid, frozenset())
    staying = scene.staying.values()
    return all(stage in STAGES[role] or scene.covered(stage, without=worker.uid, among=staying) for stage in mine)


def _free_gpus(scene: _Scene, budget: Budget) -> dict[Zone, int]:
    """GPUs of each zone that no pod holds; a terminating pod still holds its own."""
    limits = {Zone.RESERVED: budget.reserved_gpus, Zone.ELASTIC: budget.elastic_max_gpus, Zone.BORROWED: 0}
    return {zone: limit - sum(w.gpus for w in scene.all if w.zone is zone) for zone, limit in limits.items()}


def _creatable(scene: _Scene, budget: Budget, *, leaving: Iterable[Worker] = ()) -> list[Slot]:
    """Slots without a pod for which there are GPUs now, or will be when these workers are gone."""
    free = _free_gpus(scene, budget)
    for worker in leaving:
        free[worker.zone] += worker.gpus
    there = {key_of(worker) for worker in scene.all}
    found: list[Slot] = []
    for key, slot in scene.wanted.items():
        gpus = budget.gpus_of(slot.role)
        if slot.zone is Zone.BORROWED or key in there or free[slot.zone] < gpus:
            continue
        free[slot.zone] -= gpus
        found.append(slot)
    return found
