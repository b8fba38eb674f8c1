"""A fleet in a hostile world: actions take effect late, pods die, loans come and are asked back, capacity moves.

Whatever happens, at every moment: no GPU has two active users, epochs only grow, targets have both stages or neither,
the window keeps the staleness bound, and a worker that is asked back is drained in the very next look. (That every
state in between serves both stages is in `test_steps.py`, which can see each of them.)
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from planner_fleet import AUTO, budget, policy, turns, worker

from pearl_planner.fleet.shapes import shape_of
from pearl_planner.plan import plan
from pearl_planner.types import (
    Activity,
    AnswerLoan,
    Batch,
    Budget,
    CreateWorker,
    DeleteWorker,
    Loan,
    Measurements,
    Memory,
    Mode,
    Plan,
    SetActivity,
    SetRole,
    Snapshot,
    Target,
    Trajectory,
    Worker,
    WorkerState,
    Zone,
)

HARD_DEADLINE_SECONDS = 20.0
DRAIN_SECONDS = 30.0


class HostileWorld(RuleBasedStateMachine):
    """One look plans from a possibly old view; its actions arrive one by one, later, or never."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.pods: dict[str, Worker] = {}
        self.budget: Budget = budget(3, (0, 3), borrowed=2)
        self.policy = policy(drain_seconds=DRAIN_SECONDS, min_dwell_seconds=5.0, coalesce_seconds=2.0)
        self.target: Target | None = None
        self.memory = Memory()
        self.profile = turns(40, 120)
        self.batch: Batch | None = None
        self.measurements = Measurements(gateway_age_seconds=1.0, live_trajectories=12)
        self.loans: dict[str, Loan] = {}
        self.reclaimed_at: dict[str, float] = {}
        self.pending: list[object] = []
        self.epoch = 0
        self.seen: set[str] = set()
        """Names of pods that a look saw; one that went before may come again under its name."""

    @initialize(reserved=st.integers(1, 4), modes=st.sampled_from([AUTO, (Mode.DISAGGREGATED,)]))
    def begin(self, reserved: int, modes: tuple[Mode, ...]) -> None:
        self.budget = budget(reserved, (0, 3), borrowed=2)
        self.policy = replace(self.policy, modes=modes)

    # What the operator does

    @rule()
    def look(self) -> None:
        self.seen |= set(self.pods)
        result = plan(self.snapshot(), self.policy)
        self.check_plan(result)
        self.target, self.memory = result.target, result.memory
        self.pending = list(result.actions)  # what was not carried out is planned again

    @rule(count=st.integers(1, 3))
    def carry_out(self, count: int) -> None:
        for _ in range(min(count, len(self.pending))):
            self.do(self.pending.pop(0))

    @rule()
    def lose_the_actions(self) -> None:
        self.pending = []

    # What the world does

    @rule(seconds=st.sampled_from([1.0, 5.0, 40.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for name, pod in self.pods.items():
            if pod.draining_seconds is not None:
                self.pods[name] = replace(pod, draining_seconds=pod.draining_seconds + seconds)

    @rule(data=st.data())
    def one_goes_on(self, data: st.DataObject) -> None:
        if not self.pods:
            return
        name = data.draw(st.sampled_from(sorted(self.pods)))
        pod = self.pods[name]
        if pod.state is WorkerState.TERMINATING:
            del self.pods[name]
            return
        onward = {WorkerState.PENDING: WorkerState.STARTING, WorkerState.STARTING: WorkerState.READY}
        state = onward.get(pod.state, pod.state)
        idle = pod.activity is not Activity.ACTIVE
        self.pods[name] = replace(
            pod,
            state=state,
            acked_epoch=pod.role_epoch if state is WorkerState.READY else pod.acked_epoch,
            acked_activity=pod.activity,
            in_flight=0 if idle else pod.in_flight,
        )

    @rule(data=st.data(), load=st.integers(0, 5))
    def work_arrives(self, data: st.DataObject, load: int) -> None:
        ready = sorted(name for name, pod in self.pods.items() if self.serves(name))
        if ready:
            name = data.draw(st.sampled_from(ready))
            self.pods[name] = replace(self.pods[name], in_flight=load, resident_tokens=1000 * load)

    @rule(data=st.data(), how=st.sampled_from(["gone", "failed", "notice"]))
    def lose_one(self, data: st.DataObject, how: str) -> None:
        own = sorted(name for name, pod in self.pods.items() if pod.zone is not Zone.BORROWED)
        if not own:
            return
        name = data.draw(st.sampled_from(own))
        if how == "gone":
            del self.pods[name]
        elif how == "failed":
            self.pods[name] = replace(self.pods[name], state=WorkerState.FAILED)
        else:
            self.pods[name] = replace(self.pods[name], notice_seconds=25.0)

    @rule(reserved=st.integers(1, 4), elastic=st.integers(0, 4), free=st.one_of(st.none(), st.integers(0, 3)))
    def capacity_moves(self, reserved: int, elastic: int, free: int | None) -> None:
        self.budget = budget(reserved, (0, elastic), free=free, borrowed=2)

    @rule(appended=st.sampled_from([4, 40, 150, 600]), generated=st.sampled_from([8, 60, 120]), wait=st.floats(0, 60))
    def work_changes(self, appended: int, generated: int, wait: float) -> None:
        self.profile = turns(appended, generated, wait=wait)

    @rule(left=st.one_of(st.none(), st.integers(0, 12)))
    def batch_goes_on(self, left: int | None) -> None:
        if left is None:
            self.batch = None
            return
        running = tuple(Trajectory(str(n % 3), n % 8, 800, None if n % 2 else 1.0) for n in range(left))
        self.batch = Batch(0, 3, 4, 3, 0, 12, 12 - left, 30.0, running)

    @rule(age=st.sampled_from([None, 1.0, 99.0]), live=st.one_of(st.none(), st.integers(0, 40)))
    def measurements_change(self, age: float | None, live: int | None) -> None:
        self.measurements = Measurements(gateway_age_seconds=age, live_trajectories=live)

    @rule()
    def offer(self) -> None:
        if "t" not in self.loans and "b" not in self.pods:
            self.epoch += 1
            self.loans["t"] = Loan("t", "ns", self.epoch, "Offered", 1, ("b",), requested=True)

    @rule()
    def reclaim(self) -> None:
        """The agent itself drains and puts to sleep by its hard deadline; the planner must not stand in the way."""
        loan = self.loans.get("t")
        if loan is not None and loan.phase == "Serving":
            self.loans["t"] = replace(loan, phase="Draining")
            self.reclaimed_at["t"] = self.now

    @rule()
    def reclaim_ends(self) -> None:
        if "t" in self.reclaimed_at:
            self.pods.pop("b", None)
            self.loans.pop("t", None)
            self.reclaimed_at.pop("t")

    # What must hold

    @invariant()
    def no_gpu_has_two_users(self) -> None:
        limits = {Zone.RESERVED: 4, Zone.ELASTIC: 4}  # the largest budgets: a smaller one drains first
        for zone, limit in limits.items():
            assert sum(pod.gpus for pod in self.pods.values() if pod.zone is zone) <= limit
        keys = [(pod.slot, pod.incarnation) for pod in self.pods.values()]
        assert len(set(keys)) == len(keys)

    @invariant()
    def reclaims_are_obeyed_in_the_next_look(self) -> None:
        """A plan made after the reclaim has no borrowed slot of that loan and drains its worker."""
        loan = self.loans.get("t")
        if loan is None or loan.phase != "Draining" or "b" not in self.pods:
            return
        result = plan(self.snapshot(), self.policy)
        assert not [slot for slot in (result.target.slots if result.target else ()) if slot.zone is Zone.BORROWED]
        pod = self.pods["b"]
        if pod.state is WorkerState.READY and pod.activity is Activity.ACTIVE:
            assert SetActivity(pod.uid, pod.pod, Activity.DRAINING) in result.actions
            # The rest of the drain is within the deadline: nothing else is waited for first.
            assert self.policy.drain_seconds >= HARD_DEADLINE_SECONDS

    def teardown(self) -> None:
        """In a world that stops being hostile the fleet comes to rest, and its plan wants nothing more."""
        self.measurements = Measurements(gateway_age_seconds=1.0, live_trajectories=12)
        self.budget = replace(self.budget, elastic_free_gpus=None)
        for _ in range(150):
            self.pods = {n: replace(p, notice_seconds=None, in_flight=0) for n, p in self.pods.items()}
            self.look()
            self.carry_out(99)
            for name in sorted(self.pods):
                self.settle(name)
            self.pass_time(5.0)
        self.look()
        assert self.pending == [], "a plan of its own result is not empty"

    # The rest is machinery

    def settle(self, name: str) -> None:
        pod = self.pods[name]
        if pod.state is WorkerState.TERMINATING:
            del self.pods[name]
            return
        onward = {WorkerState.PENDING: WorkerState.STARTING, WorkerState.STARTING: WorkerState.READY}
        self.pods[name] = replace(
            pod, state=onward.get(pod.state, pod.state), acked_epoch=pod.role_epoch, acked_activity=pod.activity
        )

    def snapshot(self) -> Snapshot:
        return Snapshot(
            self.now,
            tuple(self.pods[name] for name in sorted(self.pods)),
            tuple(self.loans.values()),
            self.budget,
            self.measurements,
            self.profile,
            self.batch,
            self.target,
            self.memory,
        )

    def serves(self, name: str) -> bool:
        pod = self.pods[name]
        return pod.state is WorkerState.READY and pod.activity is Activity.ACTIVE

    def check_plan(self, result: Plan) -> None:
        if result.target is not None:
            assert result.target.id >= (self.target.id if self.target else 0)
            if len(result.target.slots) > 0:
                shape = shape_of(result.target.slots)
                assert (shape.prefill > 0) == (shape.decode > 0)
                assert not (shape.colocated and shape.prefill)
        assert result.recommended_in_flight is not None
        size = 12 if self.batch else self.policy.prior_groups * self.policy.prior_group_size
        finished = self.batch.finished if self.batch else 0
        assert 1 <= result.recommended_in_flight <= max(1, (self.policy.max_staleness + 1) * size - finished)

    def do(self, action: object) -> None:
        if isinstance(action, CreateWorker):
            slot = action.slot
            name = f"w{slot.slot}-{slot.incarnation}"
            assert name not in self.seen, f"{name} was used before"
            self.pods[name] = worker(
                slot.slot,
                slot.role,
                uid=name,
                pod=name,
                incarnation=slot.incarnation,
                zone=slot.zone,
                state=WorkerState.PENDING,
                role_epoch=self.target.id if self.target else 0,
                acked_epoch=None,
            )
        elif isinstance(action, DeleteWorker) and action.pod in self.pods:
            assert self.pods[action.pod].zone is not Zone.BORROWED, "borrowers belong to their trainer"
            self.pods[action.pod] = replace(self.pods[action.pod], state=WorkerState.TERMINATING)
        elif isinstance(action, SetRole) and action.pod in self.pods:
            pod = self.pods[action.pod]
            assert action.epoch > pod.role_epoch, "epochs only grow"
            self.pods[action.pod] = replace(pod, role=action.role, role_epoch=action.epoch)
        elif isinstance(action, SetActivity) and action.pod in self.pods:
            began = 0.0 if action.activity is not Activity.ACTIVE else None
            self.pods[action.pod] = replace(self.pods[action.pod], activity=action.activity, draining_seconds=began)
        elif isinstance(action, AnswerLoan):
            self.answer(action)

    def answer(self, action: AnswerLoan) -> None:
        loan = self.loans.get(action.loan)
        if loan is None or not loan.requested or loan.epoch != action.epoch:
            return
        if not action.granted:
            del self.loans[action.loan]
            return
        self.loans[action.loan] = replace(loan, phase="Serving", requested=False)
        self.pods["b"] = worker(
            1000,
            uid="b",
            pod="b",
            zone=Zone.BORROWED,
            loan="t",
            role_epoch=0,
            acked_epoch=0,
            activity=Activity.ASLEEP,
        )


TestHostileWorld = HostileWorld.TestCase
TestHostileWorld.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
