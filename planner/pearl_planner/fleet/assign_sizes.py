"""From a shape to slots where workers of different roles are of different sizes: who stays, and in which zone.

docs/models.md, "Sizes per stage". A worker keeps its slot only in a role that it is large enough for and not too large;
another one takes its place otherwise, in a slot with a new incarnation. As many stay as can, then as few as possible
change their role; prefill goes to elastic and lent GPUs and decode to reserved ones where nothing else decides.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pearl_planner.fleet.living import is_live, made_for
from pearl_planner.fleet.room import Room, units_of
from pearl_planner.types import Mode, Role, Shape, Slot, Worker, Zone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pearl_planner.types import Budget

Counts = dict[Zone, dict[Role, int]]
"""Workers by zone and role."""


def assign_sizes(
    workers: Sequence[Worker],
    sizes: Mapping[Zone, int],
    shape: Shape,
    budget: Budget,
    *,
    next_incarnations: Mapping[int, int],
) -> tuple[Slot, ...]:
    """Slots of a fleet with `sizes[zone]` units (lent: workers) in each zone and the roles of `shape`.

    `workers` are the newest of their slots, and stay.
    """
    room = Room(sizes.get(Zone.RESERVED, 0), sizes.get(Zone.ELASTIC, 0), sizes.get(Zone.BORROWED, 0), units_of(budget))
    lent = [worker for worker in workers if worker.zone is Zone.BORROWED][: room.borrowed]
    slots = [Slot(w.slot, w.zone, role, w.incarnation) for w, role in _lent_roles(lent, room, shape)]
    fresh: list[tuple[Zone, Role]] = []
    for zone, roles in _by_zone(workers, room, shape, budget).items():
        mine = [worker for worker in workers if worker.zone is zone]
        for role, count in roles.items():
            kept = _keepers(mine, role, count, budget)
            mine = [worker for worker in mine if worker not in kept]
            slots += [Slot(worker.slot, zone, role, worker.incarnation) for worker in kept]
            fresh += [(zone, role)] * (count - len(kept))
    taken = {slot.slot for slot in slots} | {worker.slot for worker in workers if worker.zone is Zone.BORROWED}
    slots += _numbered(fresh, taken, next_incarnations)
    return tuple(sorted(slots, key=lambda one: one.slot))


def _lent_roles(lent: Sequence[Worker], room: Room, shape: Shape) -> list[tuple[Worker, Role]]:
    """Lent workers prefill, as long as the other GPUs have room for the decode workers."""
    if shape.mode is Mode.COLOCATED:
        return [(worker, Role.COLOCATED) for worker in lent]
    decode = min(max(shape.decode - room.own_decode, 0), len(lent))
    order = sorted(lent, key=lambda w: (w.role is not Role.DECODE, -(w.resident_tokens or 0), w.slot))
    decoders = {worker.slot for worker in order[:decode]}
    return [(worker, Role.DECODE if worker.slot in decoders else Role.PREFILL) for worker in lent]


def _by_zone(workers: Sequence[Worker], room: Room, shape: Shape, budget: Budget) -> Counts:
    """How many of each role in each of the fleet's own zones; decode first."""
    own = {Zone.RESERVED: room.reserved, Zone.ELASTIC: room.elastic}
    if shape.mode is Mode.COLOCATED:
        return {zone: {Role.COLOCATED: size // room.units.colocated} for zone, size in own.items()}
    decode = min(shape.decode, room.own_decode)
    prefill = shape.prefill - (room.borrowed - (shape.decode - decode))
    highest = min(decode, room.reserved // room.units.decode)
    lowest = max(decode - room.elastic // room.units.decode, 0)
    choices = [
        _filled(own, {Zone.RESERVED: here, Zone.ELASTIC: decode - here}, prefill, room)
        for here in range(highest, lowest - 1, -1)
    ]
    return max(choices, key=_staying(workers, budget))  # the first of equals: decode on reserved


def _filled(own: Mapping[Zone, int], decode: Mapping[Zone, int], prefill: int, room: Room) -> Counts:
    """With prefill workers beside the decode workers, on elastic GPUs first."""
    counts: Counts = {}
    for zone in (Zone.ELASTIC, Zone.RESERVED):
        fit = (own[zone] - decode[zone] * room.units.decode) // room.units.prefill
        here = max(min(prefill, fit), 0)
        prefill -= here
        counts[zone] = {Role.DECODE: decode[zone], Role.PREFILL: here}
    return counts


def _staying(workers: Iterable[Worker], budget: Budget) -> Callable[[Counts], tuple[int, int]]:
    """How many workers that served before, and how many at all, could stay with counts that are asked about."""
    live, every = Counter[tuple[Zone, Role]](), Counter[tuple[Zone, Role]]()
    for worker in workers:
        for role in (Role.PREFILL, Role.DECODE):
            if made_for(worker, role, budget):
                every[worker.zone, role] += 1
                live[worker.zone, role] += is_live(worker)

    def count(counts: Counts) -> tuple[int, int]:
        asked = [(zone, role, many) for zone, roles in counts.items() for role, many in roles.items()]
        return sum(min(live[zone, role], many) for zone, role, many in asked), sum(
            min(every[zone, role], many) for zone, role, many in asked
        )

    return count


def _keepers(mine: Sequence[Worker], role: Role, count: int, budget: Budget) -> list[Worker]:
    """At most `count` workers for a role: serving ones first, then those that have it and hold most."""
    able = [worker for worker in mine if made_for(worker, role, budget)]
    able.sort(
        key=lambda w: (
            not is_live(w),
            w.role is not role,
            -(w.resident_tokens or 0),
            -(w.in_flight or 0),
            w.slot,
        )
    )
    return able[: max(count, 0)]


def _numbered(fresh: Sequence[tuple[Zone, Role]], taken: set[int], next_incarnations: Mapping[int, int]) -> list[Slot]:
    """New workers in the lowest free slots: those of workers that go, with a new incarnation, then new ones."""
    slots: list[Slot] = []
    number = 0
    for zone, role in sorted(fresh, key=lambda one: (one[0] is not Zone.RESERVED, one[1] is not Role.DECODE)):
        while number in taken:
            number += 1
        slots.append(Slot(number, zone, role, next_incarnations.get(number, 0)))
        number += 1
    return slots
