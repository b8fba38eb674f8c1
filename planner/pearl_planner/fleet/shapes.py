"""Which shapes so many workers may take under the user's spec, and the shape without any prediction."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from pearl_planner.fleet.room import ONE_SIZE, Many, Room, room_of
from pearl_planner.types import Mode, Policy, Role, Shape

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pearl_planner.types import Slot, Worker


def allowed_shapes(many: Many, policy: Policy) -> tuple[Shape, ...]:
    """Every shape of so many workers; one worker can only be colocated, whatever the spec says."""
    room = room_of(many)
    if room.colocated < 1:
        return ()
    shapes: list[Shape] = []
    if may_be(Shape(colocated=room.colocated), policy, room):
        shapes.append(Shape(colocated=room.colocated))
    if Mode.DISAGGREGATED in policy.modes and room.splits:
        every = (room.split_at(place) for place in range(1, room.splits + 1))
        shapes += [split(room, policy.ratio)] if policy.ratio else every
    return tuple(shapes)


def may_be(shape: Shape, policy: Policy, room: Room | None = None) -> bool:
    """Whether `shape` is one of `allowed_shapes` of its room, by default of its number of workers."""
    if shape.workers < 1 or not valid(shape):
        return False
    room = Room(shape.workers) if room is None else room
    if shape.mode is Mode.COLOCATED:
        return Mode.COLOCATED in policy.modes or not room.splits or not policy.modes
    return Mode.DISAGGREGATED in policy.modes and (policy.ratio is None or shape == split(room, policy.ratio))


def split(many: Many, ratio: tuple[int, int]) -> Shape:
    """The disaggregated shape (there is one) nearest to the proportion P:D, both sides at least one."""
    room = room_of(many)
    prefill, decode = max(ratio[0], 1), max(ratio[1], 1)
    if room.units == ONE_SIZE:
        count = room.size
        p = (2 * count * prefill + prefill + decode) // (2 * (prefill + decode))  # rounds half up
        return Shape(0, min(max(p, 1), count - 1), count - min(max(p, 1), count - 1))

    def excess(place: int) -> float:
        shape = room.split_at(place)
        return shape.prefill / shape.workers - prefill / (prefill + decode)

    places = range(1, room.splits + 1)
    above = places[min(bisect_left(places, 0.0, key=excess), len(places) - 1)]
    near = [place for place in (above, above - 1) if place >= 1]
    return room.split_at(min(near, key=lambda place: abs(excess(place))))


def initial_shape(many: Many, policy: Policy) -> Shape:
    """Without data: the ratio of the spec, else colocated where that is allowed, else half and half."""
    room = room_of(many)
    if room.colocated < 1:
        return Shape()
    disaggregated = Mode.DISAGGREGATED in policy.modes and room.splits > 0
    if disaggregated and policy.ratio:
        return split(room, policy.ratio)
    if Mode.COLOCATED in policy.modes or not disaggregated:
        return Shape(colocated=room.colocated)
    return Shape(0, room.size // 2, room.size - room.size // 2) if room.units == ONE_SIZE else split(room, (1, 1))


def carried_shape(current: Shape, many: Many, policy: Policy) -> Shape:
    """What `current` becomes in this room when nothing optional changes: same mode, same proportion."""
    room = room_of(many)
    if room.colocated < 1:
        return Shape()
    if not valid(current) or (current.mode not in policy.modes and room.splits):
        return initial_shape(room, policy)
    if current.mode is Mode.COLOCATED or not room.splits:
        return Shape(colocated=room.colocated)
    wanted = policy.ratio or (current.prefill, current.decode)
    fills = current.prefill == room.prefill_beside(current.decode)
    return current if fills and policy.ratio is None else split(room, wanted)


def valid(shape: Shape) -> bool:
    """All colocated, or both stages present and nothing colocated."""
    if shape.colocated:
        return shape.prefill == 0 and shape.decode == 0
    return shape.prefill > 0 and shape.decode > 0


def shape_of(members: Iterable[Worker | Slot]) -> Shape:
    """The roles as counted; may be no valid shape while a fleet changes."""
    roles = [member.role for member in members]
    return Shape(roles.count(Role.COLOCATED), roles.count(Role.PREFILL), roles.count(Role.DECODE))
