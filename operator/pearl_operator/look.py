"""What one look found and decided, as one frozen value: the input of conditions, status and debug output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pearl_planner.fleet.steps import key_of
from pearl_planner.types import Activity, WorkerState, Zone

if TYPE_CHECKING:
    from pearl_api.rollout import PearlRolloutSpec
    from pearl_operator.facts import LoanFact, PodFact, RolloutFact
    from pearl_operator.sources import Samples
    from pearl_planner.types import Plan, Policy, Slot, Snapshot, Target, Worker


@dataclass(frozen=True, slots=True)
class Refusals:
    """What the API server refused lately, in its own words."""

    template: str | None = None
    """The worker pod itself is invalid."""
    gateway: str | None = None
    """The gateway's Deployment or something beside it is."""
    capacity: str | None = None
    """A quota or an admission policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Facts and decision of one look."""

    now: float
    rollout: RolloutFact
    spec: PearlRolloutSpec
    snapshot: Snapshot
    policy: Policy
    plan: Plan
    samples: Samples
    pods: tuple[PodFact, ...] = ()
    loans: tuple[LoanFact, ...] = ()
    loans_possible: bool = True
    """The operator may review tokens and read nodes."""
    refusals: Refusals = Refusals()
    engine_problem: str | None = None
    abandoned: str | None = None
    """Why the last target was dropped, until one is reached."""
    failing: tuple[str, ...] = ()
    """A clause for each slot whose pods fail again and again."""
    gateway_url: str | None = None
    gateway_scaled: str | None = None
    """Who sets the gateway's replicas in the operator's place, and what to change."""


def pending(snapshot: Snapshot, target: Target | None) -> list[str]:
    """What is still missing until the fleet is what `target` says, one clause each; empty when it is reached."""
    if target is None:
        return []
    wanted = {key_of(slot): slot for slot in target.slots}
    found = {key_of(worker): worker for worker in snapshot.workers}
    missing = [_missing(slot, found.get(key)) for key, slot in sorted(wanted.items())]
    extra = [
        f"{found[key].pod} still has to go"
        for key in sorted(found.keys() - wanted.keys())
        if found[key].zone is not Zone.BORROWED  # borrowers belong to their trainer
    ]
    return [clause for clause in missing if clause is not None] + extra


def _missing(slot: Slot, worker: Worker | None) -> str | None:
    if worker is None:
        return f"slot {slot.slot} has no pod"
    asleep_as_told = worker.state is WorkerState.ASLEEP and worker.activity is Activity.ASLEEP
    return None if asleep_as_told else _does_not_serve(slot, worker)


def _does_not_serve(slot: Slot, worker: Worker) -> str | None:
    if worker.state is not WorkerState.READY:
        return f"{worker.pod} is {worker.state.value}"
    if worker.role is not slot.role:
        return f"{worker.pod} is {worker.role.value}, not yet {slot.role.value}"
    if worker.activity is not Activity.ACTIVE:
        return f"{worker.pod} is {worker.activity.value}"
    if worker.acked_epoch is not None and worker.acked_epoch < worker.role_epoch:
        return f"the gateway does not yet route {worker.pod} as {slot.role.value}"
    return None


def serves(worker: Worker) -> bool:
    """Ready, and turns may be routed to it."""
    return worker.state is WorkerState.READY and worker.activity is Activity.ACTIVE


def nobody_asks(look: Look) -> bool:
    """Whether the gateway knows of no trajectory, nothing is lent, and somebody would serve the first turn.

    Events apart, little can happen then. A fleet that sleeps is woken by its first turn, so it is not meant.
    """
    if look.samples.stats is None or look.samples.gateway_error is not None or look.loans:
        return False
    idle = look.snapshot.measurements.live_trajectories == 0 and look.snapshot.batch is None
    return idle and any(map(serves, look.snapshot.workers))
