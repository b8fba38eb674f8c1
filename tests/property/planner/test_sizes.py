"""Workers of several sizes: shapes fill their room, assignments replace the fewest, and edits in a change end well."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st
from planner_fleet import AUTO, Fleet, budget, policy, turns, worker

from pearl_planner.fleet.assign import assign
from pearl_planner.fleet.living import is_live, made_for
from pearl_planner.fleet.room import Room, Units, units_held, units_of
from pearl_planner.types import (
    Activity,
    Budget,
    Loan,
    Measurements,
    Mode,
    Role,
    Shape,
    Worker,
    WorkerState,
    Zone,
)

SIZES = [(1, 1, 1), (1, 1, 2), (2, 1, 2), (2, 1, 4), (1, 1, 4), (4, 2, 4), (2, 2, 4)]
"""(colocated, prefill, decode), each a multiple of the one before in size."""
OWN = (Zone.RESERVED, Zone.ELASTIC)


def sized(gpus: Budget, sizes: tuple[int, int, int]) -> Budget:
    return replace(gpus, gpus_per_worker=sizes[0], prefill_gpus=sizes[1], decode_gpus=sizes[2])


def fits(room: Room, prefill: int, decode: int) -> bool:
    """Whether the workers can be spread over both zones and the lent ones, found by trying."""
    for lent_p, lent_d in product(range(room.borrowed + 1), repeat=2):
        if lent_p + lent_d > room.borrowed:
            continue
        for here_p, here_d in product(range(max(prefill - lent_p, 0) + 1), range(max(decode - lent_d, 0) + 1)):
            there_p, there_d = max(prefill - lent_p, 0) - here_p, max(decode - lent_d, 0) - here_d
            reserved = here_p * room.units.prefill + here_d * room.units.decode
            elastic = there_p * room.units.prefill + there_d * room.units.decode
            if reserved <= room.reserved and elastic <= room.elastic:
                return True
    return False


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 6),
    st.integers(0, 5),
    st.integers(0, 2),
    st.sampled_from([(1, 1, 1), (1, 1, 2), (2, 1, 2), (2, 1, 4), (3, 2, 3)]),
)
def test_every_shape_of_a_room_fits_and_leaves_no_room_for_another_worker(
    reserved: int, elastic: int, borrowed: int, units: tuple[int, int, int]
) -> None:
    room = Room(reserved, elastic, borrowed, Units(*units))
    shapes = [room.split_at(place) for place in range(1, room.splits + 1)]
    assert [one.decode for one in shapes] == list(range(len(shapes), 0, -1))
    for shape in shapes:
        assert shape.prefill >= 1
        assert fits(room, shape.prefill, shape.decode)
        if units[1] == 1 and not borrowed:  # others are refused by the API
            assert not fits(room, shape.prefill + 1, shape.decode)
    if units[1] == 1 and not borrowed:
        assert not fits(room, 1, room.splits + 1)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Worker], Budget, dict[Zone, int], Shape]:
    gpus = sized(budget(8), draw(st.sampled_from([one for one in SIZES if one != (1, 1, 1)])))
    units = units_of(gpus)
    states = [WorkerState.READY] * 4 + [WorkerState.PENDING]
    workers = [
        worker(
            slot,
            draw(st.sampled_from(list(Role))),
            zone=draw(st.sampled_from(OWN)),
            state=draw(st.sampled_from(states)),
            gpus=draw(st.sampled_from([1, 2, 4])),
            resident_tokens=draw(st.integers(0, 3)),
        )
        for slot in range(draw(st.integers(0, 6)))
    ]
    room = Room(draw(st.integers(1, 8)), draw(st.integers(0, 6)), 0, units)
    shapes = [room.split_at(place) for place in range(1, room.splits + 1)] + [Shape(room.colocated)]
    return workers, gpus, {Zone.RESERVED: room.reserved, Zone.ELASTIC: room.elastic}, draw(st.sampled_from(shapes))


def most_kept(workers: list[Worker], gpus: Budget, sizes: dict[Zone, int], shape: Shape) -> tuple[int, int]:
    """Most workers that may stay (serving ones first), over every way to spread the shape."""
    units, best = units_of(gpus), (0, 0)
    roles = (Role.COLOCATED, Role.PREFILL, Role.DECODE)
    counts = (shape.colocated, shape.prefill, shape.decode)
    for here in product(*(range(count + 1) for count in counts)):
        there = [count - one for count, one in zip(counts, here, strict=True)]
        spread = {Zone.RESERVED: here, Zone.ELASTIC: there}
        if any(sum(n * units.of(r) for n, r in zip(spread[z], roles, strict=True)) > sizes[z] for z in OWN):
            continue
        live = every = 0
        for zone in OWN:
            for role, count in zip(roles, spread[zone], strict=True):
                able = [one for one in workers if one.zone is zone and made_for(one, role, gpus)]
                live += min(count, sum(1 for one in able if is_live(one)))
                every += min(count, len(able))
        best = max(best, (live, every))
    return best


@settings(max_examples=200, deadline=None)
@given(cases())
def test_the_fewest_workers_are_replaced_and_none_gets_a_role_of_another_size(
    case: tuple[list[Worker], Budget, dict[Zone, int], Shape],
) -> None:
    workers, gpus, sizes, shape = case
    slots = assign(workers, sizes, shape, next_incarnations={one.slot: 1 for one in workers}, budget=gpus)
    named = {(one.slot, one.incarnation): one for one in slots}
    kept = [one for one in workers if (one.slot, one.incarnation) in named]
    assert all(made_for(one, named[one.slot, one.incarnation].role, gpus) for one in kept)
    assert (sum(1 for one in kept if is_live(one)), len(kept)) == most_kept(workers, gpus, sizes, shape)
    assert all(units <= sizes[zone] for zone, units in units_held(slots, gpus).items())
    roles = [one.role for one in slots]
    assert Shape(*(roles.count(role) for role in (Role.COLOCATED, Role.PREFILL, Role.DECODE))) == shape
    assert len({one.slot for one in slots}) == len(slots)


EVENTS = ("sizes", "template", "mode", "work", "kill", "capacity", "lend", "reclaim", "hang", "look")


class Life:
    """A fleet whose spec is edited at any moment, also in the middle of a change."""

    def __init__(self) -> None:
        self.fleet = Fleet(sized(budget(8, (0, 4), borrowed=2), (2, 1, 2)), policy())
        self.fleet.profile = turns(40, 120)
        self.most = {Zone.RESERVED: 8, Zone.ELASTIC: 4}

    def sizes(self, data: st.DataObject) -> None:
        whole, prefill, decode = data.draw(st.sampled_from(SIZES))
        self.fleet.resize(gpus_per_worker=whole, prefill_gpus=prefill, decode_gpus=decode)

    def template(self, _: st.DataObject) -> None:
        self.fleet.pods = {name: replace(pod, shape_current=False) for name, pod in self.fleet.pods.items()}

    def mode(self, data: st.DataObject) -> None:
        modes = data.draw(st.sampled_from([AUTO, (Mode.COLOCATED,), (Mode.DISAGGREGATED,)]))
        ratio = data.draw(st.sampled_from([None, (1, 2), (3, 1)]))
        self.fleet.policy = replace(self.fleet.policy, modes=modes, ratio=ratio)

    def work(self, data: st.DataObject) -> None:
        self.fleet.profile = turns(data.draw(st.integers(1, 900)), data.draw(st.integers(1, 200)))
        self.fleet.measurements = Measurements(gateway_age_seconds=1.0, live_trajectories=data.draw(st.integers(0, 40)))

    def kill(self, data: st.DataObject) -> None:
        own = sorted(name for name, pod in self.fleet.pods.items() if pod.zone is not Zone.BORROWED)
        if own:
            del self.fleet.pods[data.draw(st.sampled_from(own))]

    def capacity(self, data: st.DataObject) -> None:
        reserved = data.draw(st.sampled_from([4, 5, 6, 8]))
        elastic = data.draw(st.integers(0, 4))
        self.fleet.budget = replace(self.fleet.budget, reserved_gpus=reserved, elastic_max_gpus=elastic)

    def lend(self, data: st.DataObject) -> None:
        activity = data.draw(st.sampled_from([Activity.ASLEEP, Activity.ACTIVE]))
        gpus = self.fleet.budget.gpus_per_worker
        self.fleet.pods["b"] = worker(
            1000, uid="b", pod="b", zone=Zone.BORROWED, loan="trainer", activity=activity, role_epoch=0, gpus=gpus
        )
        self.fleet.loans = (Loan("trainer", "ns", 1, "Serving", gpus, ("b",), requested=False),)

    def reclaim(self, _: st.DataObject) -> None:
        self.fleet.loans = tuple(replace(loan, phase="Draining") for loan in self.fleet.loans)
        if "b" in self.fleet.pods:
            self.fleet.pods["b"] = replace(self.fleet.pods["b"], state=WorkerState.COLD)

    def hang(self, data: st.DataObject) -> None:
        own = sorted(name for name, pod in self.fleet.pods.items() if pod.state is WorkerState.READY)
        if own:
            name = data.draw(st.sampled_from(own))
            self.fleet.pods[name] = replace(self.fleet.pods[name], in_flight=data.draw(st.sampled_from([0, 3])))

    def look(self, data: st.DataObject) -> None:
        for _ in range(data.draw(st.integers(1, 5))):
            self.once(data.draw(st.sampled_from([1.0, 5.0, 700.0])))

    def once(self, seconds: float) -> None:
        before = {zone: self.fleet.held(zone) for zone in OWN}
        served = self.fleet.served()
        several = len(self.fleet.pods) > 2
        result = self.fleet.look(seconds)
        limits = {Zone.RESERVED: self.fleet.budget.reserved_gpus, Zone.ELASTIC: self.fleet.budget.elastic_max_gpus}
        assert all(self.fleet.held(zone) <= max(limits[zone], before[zone]) for zone in OWN), "over budget"
        assert "b" not in self.fleet.deleted
        if served and several and len(result.target.slots if result.target else ()) > 1:
            assert self.fleet.served(), f"nobody serves after {result.actions}"


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(EVENTS), max_size=12), st.data())
def test_whatever_is_edited_when_the_fleet_stays_in_budget_and_ends_in_the_new_sizes(
    events: list[str], data: st.DataObject
) -> None:
    life = Life()
    life.look(data)
    for event in events:
        getattr(life, event)(data)
    fleet = life.fleet
    fleet.pods = {name: replace(pod, in_flight=0) for name, pod in fleet.pods.items()}
    for _ in range(60):
        life.once(5.0)
    fleet.settle(looks=200)
    own = [pod for pod in fleet.pods.values() if pod.zone is not Zone.BORROWED]
    assert all(pod.state is WorkerState.READY and pod.shape_current for pod in own)
    if fleet.budget.staged:
        assert all(pod.gpus == fleet.budget.gpus_of(pod.role) for pod in own)
    serving = [pod for pod in fleet.pods.values() if pod.state is WorkerState.READY and pod.activity == "active"]
    assert {pod.role for pod in serving} in ({Role.COLOCATED}, {Role.PREFILL, Role.DECODE})
