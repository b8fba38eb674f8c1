"""What the planner remembers from one look to the next (in the status, so it survives restarts)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pearl_planner.choice.costs import learn_costs, learn_life
from pearl_planner.choice.feeding import evident_feeding
from pearl_planner.prediction.scale import learn_scale
from pearl_planner.types import Zone

if TYPE_CHECKING:
    from pearl_planner.types import Memory, Policy, Snapshot


PEAK_HALF_LIFE_SECONDS = 1800.0


def learn(snapshot: Snapshot, policy: Policy) -> Memory:
    """The memory after this look; decisions add the target that they start."""
    memory = learn_costs(snapshot)
    if not policy.advisory:  # then targets never change, and one loss would be seen again and again
        memory = learn_life(replace(snapshot, memory=memory))
    memory = learn_scale(replace(snapshot, memory=memory), policy)
    changed_at = memory.capacity_changed_at
    elastic = _elastic_gpus(snapshot)
    if elastic is not None and memory.elastic_gpus_seen is not None and elastic != memory.elastic_gpus_seen:
        changed_at = snapshot.now
    return replace(
        memory,
        next_incarnations=tuple(sorted(_incarnations(snapshot).items())),
        last_target_id=max(memory.last_target_id, snapshot.target.id if snapshot.target else 0),
        capacity_changed_at=changed_at,
        elastic_gpus_seen=memory.elastic_gpus_seen if elastic is None else elastic,
        feeding=evident_feeding(snapshot, policy) or memory.feeding,
        looked_at=snapshot.now,
        live_peak=_live_peak(snapshot),
    )


def _incarnations(snapshot: Snapshot) -> dict[int, int]:
    """Next incarnation of every slot that ever had a pod."""
    found = dict(snapshot.memory.next_incarnations)
    for worker in snapshot.workers:
        if worker.zone is not Zone.BORROWED:
            found[worker.slot] = max(found.get(worker.slot, 0), worker.incarnation + 1)
    return found


def _elastic_gpus(snapshot: Snapshot) -> int | None:
    free = snapshot.budget.elastic_free_gpus
    if free is None:
        return None
    return free + sum(worker.gpus for worker in snapshot.workers if worker.zone is Zone.ELASTIC)


def _live_peak(snapshot: Snapshot) -> float | None:
    memory, live = snapshot.memory, snapshot.measurements.live_trajectories
    if live is None or memory.live_peak is None:
        return memory.live_peak if live is None else float(live)
    passed = snapshot.now - (snapshot.now if memory.looked_at is None else memory.looked_at)
    return max(float(live), float(f"{memory.live_peak * 0.5 ** (max(passed, 0.0) / PEAK_HALF_LIFE_SECONDS):.6g}"))
