"""A long life with every kind of event: the fleet always comes to rest in what the spec asks for."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from planner_fleet import AUTO, Fleet, budget, policy, turns, worker

from pearl_planner.types import Activity, Loan, Measurements, Mode, Role, WorkerState, Zone

EVENTS = ("kill", "fail", "hang", "notice", "template", "budget", "work", "silence", "mode", "lend", "reclaim", "look")


class Life:
    """A fleet and its trainer; every event may come at any time, also in the middle of a change."""

    def __init__(self) -> None:
        self.fleet = Fleet(budget(3, (0, 2), borrowed=2), policy())
        self.fleet.profile = turns(40, 120)

    def happen(self, event: str, data: st.DataObject) -> None:
        getattr(self, event)(data)
        self.check(self.fleet)

    def pick(self, data: st.DataObject, *states: WorkerState) -> str | None:
        own = [n for n, pod in self.fleet.pods.items() if pod.state in states and pod.zone is not Zone.BORROWED]
        return data.draw(st.sampled_from(sorted(own))) if own else None

    def change(self, name: str | None, **facts: object) -> None:
        if name is not None:
            self.fleet.pods[name] = replace(self.fleet.pods[name], **facts)  # type: ignore[arg-type]

    def kill(self, data: st.DataObject) -> None:
        name = self.pick(data, *WorkerState)
        if name is not None:
            del self.fleet.pods[name]

    def fail(self, data: st.DataObject) -> None:
        self.change(self.pick(data, WorkerState.READY, WorkerState.STARTING), state=WorkerState.FAILED)

    def hang(self, data: st.DataObject) -> None:
        self.change(self.pick(data, WorkerState.READY), in_flight=data.draw(st.sampled_from([0, 3, None])))

    def notice(self, data: st.DataObject) -> None:
        self.change(self.pick(data, WorkerState.READY), notice_seconds=data.draw(st.sampled_from([5.0, 120.0])))

    def template(self, data: st.DataObject) -> None:
        for name in data.draw(st.sampled_from([list(self.fleet.pods), []])):
            self.change(name, shape_current=False)

    def budget(self, data: st.DataObject) -> None:
        self.fleet.budget = budget(data.draw(st.integers(0, 4)), (0, data.draw(st.integers(0, 3))), borrowed=2)

    def work(self, data: st.DataObject) -> None:
        self.fleet.profile = turns(data.draw(st.integers(1, 900)), data.draw(st.integers(1, 200)))
        self.fleet.measurements = Measurements(gateway_age_seconds=1.0, live_trajectories=data.draw(st.integers(0, 40)))

    def silence(self, data: st.DataObject) -> None:
        self.fleet.measurements = Measurements(gateway_age_seconds=data.draw(st.sampled_from([None, 99.0])))

    def mode(self, data: st.DataObject) -> None:
        modes = data.draw(st.sampled_from([AUTO, (Mode.COLOCATED,), (Mode.DISAGGREGATED,)]))
        ratio = data.draw(st.sampled_from([None, (1, 2), (2, 1)]))
        self.fleet.policy = replace(self.fleet.policy, modes=modes, ratio=ratio, suspend=data.draw(st.booleans()))

    def lend(self, data: st.DataObject) -> None:
        activity = data.draw(st.sampled_from([Activity.ASLEEP, Activity.ACTIVE]))
        self.fleet.pods["b"] = worker(
            1000, uid="b", pod="b", zone=Zone.BORROWED, loan="trainer", activity=activity, role_epoch=0
        )
        self.fleet.loans = (Loan("trainer", "ns", 1, "Serving", 1, ("b",), requested=False),)

    def reclaim(self, _: st.DataObject) -> None:
        self.fleet.loans = tuple(replace(loan, phase="Draining") for loan in self.fleet.loans)
        if "b" in self.fleet.pods:
            self.change("b", state=WorkerState.COLD)

    def look(self, data: st.DataObject) -> None:
        for _ in range(data.draw(st.integers(1, 4))):
            self.fleet.look(seconds=data.draw(st.sampled_from([1.0, 5.0, 700.0])))

    @staticmethod
    def check(fleet: Fleet) -> None:
        for zone, limit in ((Zone.RESERVED, 4), (Zone.ELASTIC, 3)):
            assert sum(1 for pod in fleet.pods.values() if pod.zone is zone) <= limit
        assert "b" not in fleet.deleted, "borrowers belong to their trainer"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(EVENTS), max_size=12), st.data())
def test_whatever_happens_the_fleet_comes_to_rest_as_the_spec_says(events: list[str], data: st.DataObject) -> None:
    life = Life()
    life.look(data)
    for event in events:
        life.happen(event, data)
    fleet = life.fleet
    fleet.pods = {
        name: replace(pod, notice_seconds=None, in_flight=0, shape_current=True) for name, pod in fleet.pods.items()
    }
    fleet.settle(looks=400)
    own = [pod for pod in fleet.pods.values() if pod.zone is not Zone.BORROWED]
    serving = [pod for pod in fleet.pods.values() if pod.state is WorkerState.READY and pod.activity == "active"]
    if fleet.policy.suspend:
        assert own == []
        return
    assert sum(1 for pod in own if pod.zone is Zone.RESERVED) == fleet.budget.reserved_gpus
    assert sum(1 for pod in own if pod.zone is Zone.ELASTIC) <= fleet.budget.elastic_max_gpus
    assert set(own) <= set(serving)
    roles = {pod.role for pod in serving}
    assert roles in (set(), {Role.COLOCATED}, {Role.PREFILL, Role.DECODE})
    if len(serving) > 1 and len(fleet.policy.modes) == 1:
        assert roles == ({Role.COLOCATED} if Mode.COLOCATED in fleet.policy.modes else {Role.PREFILL, Role.DECODE})
