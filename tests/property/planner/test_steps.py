"""The order of steps keeps its promises in every state in between, whatever the start and the target."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st
from planner_fleet import budget, policy, worker

from pearl_planner.fleet.living import is_live
from pearl_planner.fleet.steps import STAGES, finished, key_of, steps
from pearl_planner.types import (
    Activity,
    CreateWorker,
    DeleteWorker,
    Role,
    SetActivity,
    SetRole,
    Slot,
    Target,
    Worker,
    WorkerState,
    Zone,
)

BOTH = frozenset({Role.PREFILL, Role.DECODE})


@dataclass
class World:
    """Pods as they are; the gateway may route by the old role until it acknowledges the new one."""

    pods: dict[str, Worker]
    old_role: dict[str, Role] = field(default_factory=dict)

    def served(self) -> frozenset[Role]:
        stages: frozenset[Role] = frozenset()
        for uid, pod in self.pods.items():
            if pod.state is WorkerState.READY and pod.activity is Activity.ACTIVE:
                stages |= STAGES[pod.role] & STAGES[self.old_role.get(uid, pod.role)]
        return stages

    def gpus(self, zone: Zone) -> int:
        return sum(pod.gpus for pod in self.pods.values() if pod.zone is zone)

    def do(self, action: object) -> None:
        if isinstance(action, CreateWorker):
            slot = action.slot
            new = worker(
                slot.slot,
                slot.role,
                uid=f"uid-{slot.slot}-{slot.incarnation}",
                incarnation=slot.incarnation,
                zone=slot.zone,
                state=WorkerState.PENDING,
                acked_epoch=None,
            )
            assert new.uid not in self.pods
            self.pods[new.uid] = new
        elif isinstance(action, DeleteWorker):
            self.pods[action.uid] = replace(self.pods[action.uid], state=WorkerState.TERMINATING)
        elif isinstance(action, SetRole):
            pod = self.pods[action.uid]
            assert action.epoch > pod.role_epoch
            self.old_role[action.uid] = pod.role
            self.pods[action.uid] = replace(pod, role=action.role, role_epoch=action.epoch)
        elif isinstance(action, SetActivity):
            self.pods[action.uid] = replace(self.pods[action.uid], activity=action.activity, draining_seconds=0.0)

    def happen(self, uid: str) -> None:
        """One thing goes on for this pod: it starts, acknowledges, finishes its requests, or is gone."""
        pod = self.pods[uid]
        if pod.state is WorkerState.TERMINATING:
            del self.pods[uid]
            return
        onward = {WorkerState.PENDING: WorkerState.STARTING, WorkerState.STARTING: WorkerState.READY}
        self.old_role.pop(uid, None)
        self.pods[uid] = replace(
            pod,
            state=onward.get(pod.state, pod.state),
            acked_epoch=pod.role_epoch,
            acked_activity=pod.activity,
            in_flight=0 if pod.activity is Activity.DRAINING else pod.in_flight,
        )


roles = st.sampled_from(list(Role))
zones = st.sampled_from([Zone.RESERVED, Zone.ELASTIC])


@st.composite
def starts(draw: st.DrawFn) -> World:
    pods = {}
    for slot in range(draw(st.integers(1, 5))):
        state = draw(st.sampled_from([WorkerState.READY] * 5 + [WorkerState.STARTING, WorkerState.PENDING]))
        pod = worker(slot, draw(roles), zone=draw(zones), state=state, in_flight=draw(st.integers(0, 4)))
        pods[pod.uid] = pod
    return World(pods)


@st.composite
def targets(draw: st.DrawFn, world: World) -> Target:
    """Some survive, some are replaced by a new incarnation, some go, some are new; the roles form a shape."""
    slots: list[tuple[int, Zone, int]] = []
    for pod in world.pods.values():
        fate = draw(st.sampled_from(["stay", "stay", "stay", "go", "replace"]))
        if fate != "go":
            slots.append((pod.slot, pod.zone, 0 if fate == "stay" else 1))
    slots += [(number, draw(zones), 0) for number in range(5, 5 + draw(st.integers(0, 2)))]
    if not slots:
        slots = [(0, Zone.RESERVED, 1)]
    prefill = draw(st.integers(0, len(slots) - 1))
    order = draw(st.permutations(slots))
    single = [Role.PREFILL] * prefill + [Role.DECODE] * (len(slots) - prefill)
    names = single if prefill else [Role.COLOCATED] * len(slots)
    made = [Slot(slot, zone, role, inc) for (slot, zone, inc), role in zip(order, names, strict=True)]
    return Target(2, 1, tuple(sorted(made, key=lambda one: one.slot)), "Applied", 0.0, 1e9)  # type: ignore[arg-type]


def promise(world: World, target: Target) -> bool:
    """Whether both stages can be served throughout: some serving worker stays, and not alone."""
    kept = {key_of(slot) for slot in target.slots}
    return len(kept) > 1 and any(is_live(pod) and key_of(pod) in kept for pod in world.pods.values())


def advance(world: World, data: st.DataObject) -> None:
    """Some of what can happen does."""
    for uid in data.draw(st.lists(st.sampled_from(sorted(world.pods) or [""]), max_size=3)):
        if uid in world.pods:
            world.happen(uid)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_every_state_in_between_is_in_budget_and_serves_both_stages_and_the_target_is_reached(
    data: st.DataObject,
) -> None:
    world = data.draw(starts())
    target = data.draw(targets(world))
    wanted = {zone: sum(1 for slot in target.slots if slot.zone is zone) for zone in Zone}
    limits = {zone: max(world.gpus(zone), wanted[zone]) for zone in Zone}
    gpus, rules = budget(limits[Zone.RESERVED], (0, limits[Zone.ELASTIC])), policy()
    keeps_serving = promise(world, target)
    for look in range(120):
        for action in steps(tuple(world.pods.values()), target, budget=gpus, policy=rules):
            served = world.served()
            world.do(action)
            assert all(world.gpus(zone) <= limits[zone] for zone in Zone), "over budget"
            assert not keeps_serving or world.served() >= served, f"{served} served before {action}"
        if look < 40:
            advance(world, data)
        else:  # fair time: everything that can happen does
            for uid in sorted(world.pods):
                world.happen(uid)
    assert finished(tuple(world.pods.values()), target), f"never finished: {world.pods}"
    assert steps(tuple(world.pods.values()), target, budget=gpus, policy=rules) == ()
