"""Which shapes a number of workers may take under the user's spec, and the shape without any prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl_planner.types import Mode, Policy, Role, Shape

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pearl_planner.types import Slot, Worker


def allowed_shapes(count: int, policy: Policy) -> tuple[Shape, ...]:
    """Every shape of `count` workers; one worker can only be colocated, whatever the spec says."""
    if count < 1:
        return ()
    shapes: list[Shape] = []
    if Mode.COLOCATED in policy.modes or count == 1 or not policy.modes:
        shapes.append(Shape(colocated=count))
    if Mode.DISAGGREGATED in policy.modes and count > 1:
        shapes += [split(count, policy.ratio)] if policy.ratio else [Shape(0, p, count - p) for p in range(1, count)]
    return tuple(shapes)


def may_be(shape: Shape, policy: Policy) -> bool:
    """Whether `shape` is one of `allowed_shapes` of its number of workers."""
    count = shape.workers
    if count < 1 or not valid(shape):
        return False
    if shape.mode is Mode.COLOCATED:
        return Mode.COLOCATED in policy.modes or count == 1 or not policy.modes
    return Mode.DISAGGREGATED in policy.modes and (policy.ratio is None or shape == split(count, policy.ratio))


def split(count: int, ratio: tuple[int, int]) -> Shape:
    """`count` ≥ 2 workers in the proportion P:D, rounded, both sides at least one."""
    prefill, decode = max(ratio[0], 1), max(ratio[1], 1)
    p = (2 * count * prefill + prefill + decode) // (2 * (prefill + decode))  # rounds half up
    return Shape(0, min(max(p, 1), count - 1), count - min(max(p, 1), count - 1))


def initial_shape(count: int, policy: Policy) -> Shape:
    """Without data: the ratio of the spec, else colocated where that is allowed, else half and half."""
    if count < 1:
        return Shape()
    disaggregated = Mode.DISAGGREGATED in policy.modes and count > 1
    if disaggregated and policy.ratio:
        return split(count, policy.ratio)
    if Mode.COLOCATED in policy.modes or not disaggregated:
        return Shape(colocated=count)
    return Shape(0, count // 2, count - count // 2)


def carried_shape(current: Shape, count: int, policy: Policy) -> Shape:
    """What `current` becomes with `count` workers when nothing optional changes: same mode, same proportion."""
    if count < 1:
        return Shape()
    if not valid(current) or (current.mode not in policy.modes and count > 1):
        return initial_shape(count, policy)
    if current.mode is Mode.COLOCATED or count == 1:
        return Shape(colocated=count)
    wanted = policy.ratio or (current.prefill, current.decode)
    return current if current.workers == count and policy.ratio is None else split(count, wanted)


def valid(shape: Shape) -> bool:
    """All colocated, or both stages present and nothing colocated."""
    if shape.colocated:
        return shape.prefill == 0 and shape.decode == 0
    return shape.prefill > 0 and shape.decode > 0


def shape_of(members: Iterable[Worker | Slot]) -> Shape:
    """The roles as counted; may be no valid shape while a fleet changes."""
    roles = [member.role for member in members]
    return Shape(roles.count(Role.COLOCATED), roles.count(Role.PREFILL), roles.count(Role.DECODE))
