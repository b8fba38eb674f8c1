"""The assignment makes as few changes as the best one found by trying them all."""

from __future__ import annotations

from itertools import combinations, product

from hypothesis import given, settings
from hypothesis import strategies as st
from planner_fleet import worker

from pearl_planner.fleet.assign import assign
from pearl_planner.fleet.living import is_live
from pearl_planner.types import Role, Shape, Worker, WorkerState, Zone

ZONES = (Zone.RESERVED, Zone.ELASTIC)
Cost = tuple[int, int, int]


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Worker], dict[Zone, int], Shape]:
    states = [WorkerState.READY] * 4 + [WorkerState.UNREADY, WorkerState.PENDING, WorkerState.STARTING]
    workers = [
        worker(
            slot,
            draw(st.sampled_from(list(Role))),
            zone=draw(st.sampled_from(ZONES)),
            state=draw(st.sampled_from(states)),
            resident_tokens=draw(st.integers(0, 3)),
        )
        for slot in range(draw(st.integers(0, 6)))
    ]
    sizes = {zone: draw(st.integers(0, 3)) for zone in ZONES}
    count = sum(sizes.values())
    prefill = draw(st.integers(0, max(count - 1, 0)))
    shape = Shape(0, prefill, count - prefill) if prefill else Shape(count)
    return workers, sizes, shape


def brute_force(workers: list[Worker], sizes: dict[Zone, int], shape: Shape) -> Cost:
    """Least (created + deleted, serving workers deleted, roles of serving workers changed), both stages served."""
    names = [Role.COLOCATED] * shape.colocated + [Role.PREFILL] * shape.prefill + [Role.DECODE] * shape.decode
    best: Cost | None = None
    for size in range(len(workers) + 1):
        for kept in combinations(workers, size):
            used = {zone: sum(1 for one in kept if one.zone is zone) for zone in ZONES}
            if any(used[zone] > sizes[zone] for zone in ZONES):
                continue
            live = [one for one in kept if is_live(one)]
            changed = len(workers) - size + len(names) - size
            killed = sum(1 for one in workers if is_live(one)) - len(live)
            for roles in product(set(names), repeat=len(live)):
                if any(roles.count(role) > names.count(role) for role in set(names)):
                    continue
                if shape.prefill and len(live) > 1 and len(set(roles)) < 2:
                    continue
                cost = (changed, killed, sum(1 for one, role in zip(live, roles, strict=True) if one.role is not role))
                best = cost if best is None else min(best, cost)
    assert best is not None
    return best


@settings(max_examples=300, deadline=None)
@given(cases())
def test_no_other_assignment_changes_less(case: tuple[list[Worker], dict[Zone, int], Shape]) -> None:
    workers, sizes, shape = case
    slots = assign(workers, sizes, shape, next_incarnations={one.slot: 1 for one in workers})
    named = {(one.slot, one.incarnation): one for one in slots}
    kept = [one for one in workers if (one.slot, one.incarnation) in named]
    killed = sum(1 for one in workers if is_live(one) and one not in kept)
    flips = sum(1 for one in kept if is_live(one) and named[one.slot, one.incarnation].role is not one.role)
    assert (len(workers) + len(slots) - 2 * len(kept), killed, flips) == brute_force(workers, sizes, shape)
    assert sorted(one.role for one in slots) == sorted(
        [Role.COLOCATED] * shape.colocated + [Role.PREFILL] * shape.prefill + [Role.DECODE] * shape.decode
    )
    assert {zone: sum(1 for one in slots if one.zone is zone) for zone in ZONES} == sizes
    assert len({one.slot for one in slots}) == len(slots)
