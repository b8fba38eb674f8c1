"""A fleet that does what the plan says, for tests: pods start, drain, flip and go, one look at a time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pearl_planner.engine.model import EngineTable
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
    Policy,
    Role,
    SetActivity,
    SetRole,
    Snapshot,
    Target,
    Worker,
    WorkerState,
    Zone,
)
from pearl_planner.workload.profile import Profile, TrajectoryRecord, TurnRecord, update

TABLE = EngineTable(
    name="test/cpu",
    decode_fixed_seconds=0.030,
    decode_per_sequence_seconds=0.004,
    decode_per_context_token_seconds=0.0,
    prefill_fixed_seconds=0.030,
    prefill_per_token_seconds=0.0025,
    prefill_per_token_pair_seconds=0.0,
)
AUTO = (Mode.COLOCATED, Mode.DISAGGREGATED)


def policy(**changes: object) -> Policy:
    return replace(Policy(generation=1, table=TABLE), **changes)  # type: ignore[arg-type]


def budget(reserved: int = 3, elastic: tuple[int, int] = (0, 0), free: int | None = None, borrowed: int = 0) -> Budget:
    return Budget(1, reserved, elastic[0], elastic[1], borrowed, free)


def worker(slot: int, role: Role = Role.COLOCATED, **changes: object) -> Worker:
    base = Worker(
        uid=f"uid-{slot}-0",
        pod=f"w{slot}-0",
        slot=slot,
        incarnation=0,
        zone=Zone.RESERVED,
        role=role,
        role_epoch=1,
        activity=Activity.ACTIVE,
        state=WorkerState.READY,
        gpus=1,
        acked_epoch=1,
        in_flight=0,
        resident_tokens=0,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def turns(appended: int, generated: int, *, context: int = 800, wait: float = 1.0, length: int = 8) -> Profile:
    """A profile of 20 equal trajectories."""
    records: list[TurnRecord | TrajectoryRecord] = []
    for number in range(20):
        for turn in range(1, length + 1):
            later = turn > 1
            records.append(
                TurnRecord(
                    trajectory=str(number),
                    turn=turn,
                    appended_tokens=appended,
                    generated_tokens=generated,
                    context_tokens=context,
                    previous_generated_tokens=generated if later else None,
                    retained_tokens=generated if later else None,
                    environment_seconds=wait if later else None,
                )
            )
        records.append(TrajectoryRecord(str(number), length))
    return update(None, records)


@dataclass
class Fleet:
    """Pods and the operator's memory; `look()` plans and does one round of what was planned."""

    budget: Budget
    policy: Policy
    pods: dict[str, Worker] = field(default_factory=dict)
    target: Target | None = None
    memory: Memory = field(default_factory=Memory)
    now: float = 1000.0
    profile: Profile | None = None
    batch: Batch | None = None
    loans: tuple[Loan, ...] = ()
    measurements: Measurements = field(default_factory=lambda: Measurements(gateway_age_seconds=1.0))
    seen: set[str] = field(default_factory=set)
    created: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    flipped: list[tuple[str, Role]] = field(default_factory=list)
    answers: list[AnswerLoan] = field(default_factory=list)

    def snapshot(self) -> Snapshot:
        return Snapshot(
            now=self.now,
            workers=tuple(self.pods[name] for name in sorted(self.pods)),
            loans=self.loans,
            budget=self.budget,
            measurements=self.measurements,
            profile=self.profile,
            batch=self.batch,
            target=self.target,
            memory=self.memory,
        )

    def look(self, seconds: float = 5.0) -> Plan:
        self.seen |= set(self.pods)
        result = plan(self.snapshot(), self.policy)
        self.target, self.memory = result.target, result.memory
        for action in result.actions:
            self._do(action, result)
        self._pass(seconds)
        return result

    def settle(self, looks: int = 60) -> Plan:
        """Looks until two in a row want nothing; fails if that never happens."""
        quiet = 0
        for _ in range(looks):
            result = self.look()
            quiet = 0 if result.actions or result.reason == "PlanInProgress" else quiet + 1
            if quiet == 2:
                return result
        raise AssertionError(f"still moving: {result.reason} {result.message} {result.actions}")

    def resize(self, **sizes: int) -> None:
        """The spec asks for workers of other sizes; a pod of none of them is of an old template."""
        self.budget = replace(self.budget, **sizes)
        known = {self.budget.gpus_of(role) for role in Role}
        self.pods = {name: replace(pod, shape_current=pod.gpus in known) for name, pod in self.pods.items()}

    def held(self, zone: Zone) -> int:
        """GPUs that pods of a zone hold, ending ones too."""
        return sum(pod.gpus for pod in self.pods.values() if pod.zone is zone)

    def served(self) -> bool:
        """Whether some worker makes tokens in its role: a decode worker without a prefill worker prefills too."""
        return any(
            pod.state is WorkerState.READY and pod.activity is Activity.ACTIVE and pod.role is not Role.PREFILL
            for pod in self.pods.values()
        )

    def roles(self) -> str:
        letters = {Role.COLOCATED: "C", Role.PREFILL: "P", Role.DECODE: "D"}
        return "".join(sorted(letters[pod.role] for pod in self.pods.values()))

    def _do(self, action: object, result: Plan) -> None:
        if isinstance(action, CreateWorker):
            slot = action.slot
            name = f"w{slot.slot}-{slot.incarnation}"
            assert name not in self.seen, f"{name} was used before"
            epoch = result.target.id if result.target else 0
            self.pods[name] = worker(
                slot.slot,
                slot.role,
                uid=f"uid-{slot.slot}-{slot.incarnation}",
                pod=name,
                incarnation=slot.incarnation,
                zone=slot.zone,
                role_epoch=epoch,
                state=WorkerState.PENDING,
                acked_epoch=None,
                gpus=self.budget.gpus_of(slot.role),
            )
            self.created.append(name)
        elif isinstance(action, DeleteWorker):
            self.pods[action.pod] = replace(self.pods[action.pod], state=WorkerState.TERMINATING)
            self.deleted.append(action.pod)
        elif isinstance(action, SetRole):
            pod = self.pods[action.pod]
            assert action.epoch > pod.role_epoch, "epochs only grow"
            self.pods[action.pod] = replace(pod, role=action.role, role_epoch=action.epoch)
            self.flipped.append((action.pod, action.role))
        elif isinstance(action, SetActivity):
            pod = self.pods[action.pod]
            self.pods[action.pod] = replace(
                pod, activity=action.activity, draining_seconds=0.0 if action.activity != "active" else None
            )
        else:
            assert isinstance(action, AnswerLoan)
            self.answers.append(action)

    def _pass(self, seconds: float) -> None:
        """Time goes by: pods go one state on, the gateway acknowledges."""
        self.now += seconds
        onward = {WorkerState.PENDING: WorkerState.STARTING, WorkerState.STARTING: WorkerState.READY}
        rests = {
            (WorkerState.READY, Activity.ASLEEP): WorkerState.ASLEEP,
            (WorkerState.ASLEEP, Activity.ACTIVE): WorkerState.READY,
        }
        for name, pod in list(self.pods.items()):
            if pod.state is WorkerState.TERMINATING:
                del self.pods[name]
                continue
            drained = None if pod.draining_seconds is None else pod.draining_seconds + seconds
            self.pods[name] = replace(
                pod,
                state=rests.get((pod.state, pod.activity), onward.get(pod.state, pod.state)),
                acked_epoch=pod.role_epoch if pod.state is WorkerState.READY else pod.acked_epoch,
                acked_activity=pod.activity,
                draining_seconds=drained,
            )
