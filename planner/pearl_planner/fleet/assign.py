"""From a shape to slots with the fewest changes: first of workers, then of roles.

docs/models.md, "Minimal change". A slot keeps its number for life; a pod that died or has an old template comes back
in its slot with a new incarnation. Order of what is kept cheap: pods created or deleted, then serving workers
deleted (pending ones die first), then roles of serving workers changed, then the ties: prefill on borrowed and elastic
GPUs and decode on reserved ones, workers with resident KV stay what they are, least-loaded victims.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pearl_planner.fleet.assign_sizes import assign_sizes
from pearl_planner.fleet.living import is_live, stays
from pearl_planner.types import Activity, Mode, Role, Shape, Slot, Worker, WorkerState, Zone

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pearl_planner.types import Budget

_DYING_ORDER = {WorkerState.PENDING: 0, WorkerState.COLD: 1, WorkerState.STARTING: 2}
_LEANING = {Role.PREFILL: 0, None: 1, Role.COLOCATED: 1, Role.DECODE: 2}
"""Which workers that do not serve yet become prefill workers first; None = a new pod."""
_REVOCABLE_FIRST = {Zone.BORROWED: 0, Zone.ELASTIC: 1, Zone.RESERVED: 2}


def assign(
    workers: Sequence[Worker],
    sizes: Mapping[Zone, int],
    shape: Shape,
    *,
    next_incarnations: Mapping[int, int],
    budget: Budget | None = None,
) -> tuple[Slot, ...]:
    """Slots of a fleet with `sizes[zone]` workers in each zone and the roles of `shape` (equal totals).

    `workers` may hold more than stay; borrowed ones beyond those given are never invented. Where `budget` says that
    workers of different roles are of different sizes, `sizes` are in units (fleet/room.py).
    """
    staying = [worker for worker in _newest_of_slots(workers) if stays(worker)]
    if budget is not None and budget.staged:
        return assign_sizes(staying, sizes, shape, budget, next_incarnations=next_incarnations)
    kept = _survivors(staying, sizes, shape)
    taken = {worker.slot for worker in kept} | {w.slot for w in workers if w.zone is Zone.BORROWED}
    added = _new_slots(kept, sizes, taken)
    roles = _roles(kept, added, shape)
    slots = [
        Slot(
            worker.slot,
            worker.zone,
            roles[worker.slot],
            worker.incarnation
            if worker.shape_current or worker.zone is Zone.BORROWED
            else max(next_incarnations.get(worker.slot, 0), worker.incarnation + 1),
        )
        for worker in kept
    ]
    slots += [Slot(slot, zone, roles[slot], next_incarnations.get(slot, 0)) for slot, zone in added]
    return tuple(sorted(slots, key=lambda one: one.slot))


def _newest_of_slots(workers: Sequence[Worker]) -> list[Worker]:
    newest: dict[int, Worker] = {}
    for worker in workers:
        other = newest.get(worker.slot)
        if other is None or (stays(worker), worker.incarnation) > (stays(other), other.incarnation):
            newest[worker.slot] = worker
    return [newest[slot] for slot in sorted(newest)]


def _load(worker: Worker) -> tuple[int, int]:
    return (worker.resident_tokens or 0, worker.in_flight or 0)


def _survivors(workers: Sequence[Worker], sizes: Mapping[Zone, int], shape: Shape) -> list[Worker]:
    """Who stays, by the order of the module docstring."""
    doomed: set[int] = set()
    live_victims: dict[Zone, int] = {}
    for zone in Zone:
        mine = [worker for worker in workers if worker.zone is zone]
        excess = max(0, len(mine) - max(sizes.get(zone, 0), 0))
        first = sorted((w for w in mine if not is_live(w)), key=lambda w: (_DYING_ORDER.get(w.state, 9), -w.slot))
        doomed.update(worker.slot for worker in first[:excess])
        live_victims[zone] = max(0, excess - len(first))
    live = [worker for worker in workers if is_live(worker)]
    for (zone, role), count in _victim_roles(live, live_victims, shape).items():
        candidates = [worker for worker in live if worker.zone is zone and worker.role is role]
        candidates.sort(key=lambda w: (w.activity is Activity.ACTIVE, *_load(w), -w.slot))
        doomed.update(worker.slot for worker in candidates[:count])
    return [worker for worker in workers if worker.slot not in doomed]


def _wanted(shape: Shape) -> dict[Role, int]:
    return {Role.COLOCATED: shape.colocated, Role.PREFILL: shape.prefill, Role.DECODE: shape.decode}


def _victim_roles(live: Sequence[Worker], victims: Mapping[Zone, int], shape: Shape) -> Counter[tuple[Zone, Role]]:
    """How many to take per zone and role so that the fewest survivors change role (augmenting paths)."""
    have = Counter((worker.zone, worker.role) for worker in live)
    totals = Counter(worker.role for worker in live)
    surplus = {role: max(0, totals[role] - count) for role, count in _wanted(shape).items()}
    taken: Counter[tuple[Zone, Role]] = Counter()

    def place(zone: Zone, tried: set[Role]) -> bool:
        for role in Role:
            if role in tried or taken[zone, role] >= have[zone, role]:
                continue
            tried.add(role)
            if sum(taken[other, role] for other in Zone) < surplus[role]:
                taken[zone, role] += 1
                return True
            for other in Zone:
                if taken[other, role] and other is not zone and place(other, tried):
                    taken[other, role] -= 1
                    taken[zone, role] += 1
                    return True
        return False

    for zone, count in victims.items():
        for _ in range(count):
            if not place(zone, set()):  # no surplus left to take: of what the zone has, the most common role
                left = {role: totals[role] - sum(taken[other, role] for other in Zone) for role in Role}
                taken[zone, max(Role, key=lambda role: (have[zone, role] > taken[zone, role], left[role]))] += 1
    return taken


def _new_slots(kept: Sequence[Worker], sizes: Mapping[Zone, int], taken: set[int]) -> list[tuple[int, Zone]]:
    """The lowest free numbers, reserved workers first; borrowed workers exist or do not, they are never made."""
    added: list[tuple[int, Zone]] = []
    number = 0
    for zone in (Zone.RESERVED, Zone.ELASTIC):
        for _ in range(max(0, sizes.get(zone, 0) - sum(1 for worker in kept if worker.zone is zone))):
            while number in taken:
                number += 1
            added.append((number, zone))
            number += 1
    return added


def _roles(kept: Sequence[Worker], added: Sequence[tuple[int, Zone]], shape: Shape) -> dict[int, Role]:
    """Role by slot number."""
    if shape.mode is Mode.COLOCATED:
        return dict.fromkeys([*(w.slot for w in kept), *(slot for slot, _ in added)], Role.COLOCATED)
    live = [worker for worker in kept if is_live(worker)]
    waiting = [(w.slot, w.zone, w.role) for w in kept if not is_live(w)]
    fresh: list[tuple[int, Zone, Role | None]] = [*waiting, *((slot, zone, None) for slot, zone in added)]
    prefill_live = _live_prefills(live, fresh, shape)
    prefills = set(_choose_live(live, prefill_live))
    fresh.sort(key=lambda one: (_LEANING[one[2]], _REVOCABLE_FIRST[one[1]], one[0]))
    prefills.update(slot for slot, _, _ in fresh[: max(0, shape.prefill - prefill_live)])
    slots = [*(worker.slot for worker in kept), *(slot for slot, _, _ in fresh)]
    return {slot: Role.PREFILL if slot in prefills else Role.DECODE for slot in slots}


def _live_prefills(live: Sequence[Worker], fresh: Sequence[tuple[int, Zone, Role | None]], shape: Shape) -> int:
    """How many of the serving workers prefill: both stages are served now, then the fewest changes."""
    roles = Counter(worker.role for worker in live)
    both = 1 if len(live) > 1 else 0
    low = max(len(live) - shape.decode, both, 0)
    high = max(min(shape.prefill, len(live) - both), low)
    waiting = sum(1 for _, _, role in fresh if role is Role.PREFILL)
    free = min(max(shape.prefill - waiting, roles[Role.PREFILL]), roles[Role.PREFILL] + roles[Role.COLOCATED])
    return min(max(free, low), high)


def _choose_live(live: Sequence[Worker], count: int) -> list[int]:
    """Slots of the serving workers that prefill: those that do already, revocable ones first, little KV to lose."""
    order = {Role.PREFILL: 0, Role.COLOCATED: 1, Role.DECODE: 2}

    def cost(worker: Worker) -> tuple[int, int, int, int, int]:
        resident, in_flight = _load(worker)
        keeps = -1 if worker.role is Role.PREFILL else 1  # a prefill worker with KV should stay one
        return (order[worker.role], _REVOCABLE_FIRST[worker.zone], keeps * resident, keeps * in_flight, worker.slot)

    return [worker.slot for worker in sorted(live, key=cost)[:count]]
