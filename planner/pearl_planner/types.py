"""Facts and decisions of the planner: frozen dataclasses between the shells and the pure core.

`None` means unknown, never 0. Times are seconds; `now` and other instants are seconds since the epoch as the
shell's clock says, and are only ever subtracted from each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pearl_planner.engine.model import EngineTable
    from pearl_planner.workload.profile import Profile


class Mode(StrEnum):
    """Every worker does both stages, or each does one."""

    COLOCATED = "Colocated"
    DISAGGREGATED = "Disaggregated"


class Role(StrEnum):
    """What turns are routed to a worker."""

    COLOCATED = "colocated"
    PREFILL = "prefill"
    DECODE = "decode"


class Zone(StrEnum):
    """Where a worker's GPUs come from."""

    RESERVED = "reserved"
    ELASTIC = "elastic"
    BORROWED = "borrowed"


class Activity(StrEnum):
    """Whether turns are routed to a worker, as its label says."""

    ACTIVE = "active"
    DRAINING = "draining"
    ASLEEP = "asleep"


class Feeding(StrEnum):
    """When trajectories of the next batch start."""

    BARRIER = "barrier"  # after the weights of the batch before: its last trajectories are alone
    REFILL = "refill"  # as soon as the in-flight window has room: the fleet stays full


class WorkerState(StrEnum):
    """State of a worker as observed from its pod and its agent."""

    PENDING = "pending"  # pod exists, not scheduled or its container does not run yet
    STARTING = "starting"  # container runs, never served
    READY = "ready"  # serves
    UNREADY = "unready"  # served before, does not now (restarting, loading weights)
    ASLEEP = "asleep"
    COLD = "cold"  # borrower whose engine was not started in this loan
    TERMINATING = "terminating"  # still holds its GPUs
    FAILED = "failed"  # will not come back by itself


class Reason(StrEnum):
    """Why a plan is what it is; closed, documented for users."""

    NO_DATA = "NoData"
    STALE_DATA = "StaleData"
    BATCH_UNKNOWN = "BatchUnknown"
    WITHIN_DEADBAND = "WithinDeadband"
    COOLING_DOWN = "CoolingDown"
    SWITCH_COST_TOO_HIGH = "SwitchCostTooHigh"
    PLAN_IN_PROGRESS = "PlanInProgress"
    BUDGET_LIMIT = "BudgetLimit"
    PENDING_CAPACITY = "PendingCapacity"
    RECLAIM_REQUESTED = "ReclaimRequested"
    SPOT_NOTICE = "SpotNotice"
    ENVIRONMENT_BOUND = "EnvironmentBound"
    TRAINER_BOUND = "TrainerBound"
    BORROW_NOT_WORTHWHILE = "BorrowNotWorthwhile"
    COLD_START_TOO_LONG = "ColdStartTooLong"
    INFEASIBLE = "Infeasible"
    HELD = "Held"
    SUSPENDED = "Suspended"
    IDLE = "Idle"
    APPLIED = "Applied"
    ADVISORY_ONLY = "AdvisoryOnly"


class IdleAction(StrEnum):
    """What becomes of a fleet that nobody asks for anything."""

    NONE = "None"
    SLEEP = "Sleep"
    SCALE_TO_ZERO = "ScaleToZero"


@dataclass(frozen=True, slots=True)
class Shape:
    """A mode with its worker counts: all colocated, or prefill and decode both ≥ 1."""

    colocated: int = 0
    prefill: int = 0
    decode: int = 0

    @property
    def mode(self) -> Mode:
        """Disaggregated as soon as one worker has a single stage."""
        return Mode.DISAGGREGATED if self.prefill or self.decode else Mode.COLOCATED

    @property
    def workers(self) -> int:
        """All workers."""
        return self.colocated + self.prefill + self.decode

    def __str__(self) -> str:
        """`colocated:3` or `disaggregated:1P2D`."""
        if self.mode is Mode.COLOCATED:
            return f"colocated:{self.colocated}"
        return f"disaggregated:{self.prefill}P{self.decode}D"


@dataclass(frozen=True, slots=True)
class Worker:
    """One observed worker pod; pods that are Succeeded or Failed for good and gone are not here."""

    uid: str
    pod: str
    slot: int
    incarnation: int
    zone: Zone
    role: Role
    role_epoch: int
    activity: Activity
    state: WorkerState
    gpus: int
    shape_current: bool = True
    """The pod was made from the present template."""
    acked_epoch: int | None = None
    """Role epoch that every gateway process routes by."""
    in_flight: int | None = None
    """Requests that the gateway has on it."""
    resident_tokens: int | None = None
    """Context tokens of live trajectories whose KV it holds."""
    loan: str | None = None
    """Name of the loan of a borrowed worker."""
    notice_seconds: float | None = None
    """Remaining life where the node was given notice."""
    draining_seconds: float | None = None
    """How long it has been draining."""
    acked_activity: Activity | None = None
    """Activity that the gateway routes by; None = not known (then a drain waits a little longer)."""
    from_nothing: bool | None = None
    """No process of its engine exists, asleep or awake, so that it must start and cannot wake; None = not known."""


@dataclass(frozen=True, slots=True)
class WorkerMetrics:
    """What Prometheus says about one engine, averaged over the last scrapes."""

    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    """0..1."""
    generation_tokens_per_second: float | None = None
    prompt_tokens_per_second: float | None = None
    inter_token_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Measurements:
    """How fresh the sources are, and the engine series by pod UID."""

    gateway_age_seconds: float | None = None
    """Age of the gateway statistics; None = never read."""
    prometheus_age_seconds: float | None = None
    """Age of the newest engine sample; None = never read, or not configured."""
    prometheus_expected: bool = False
    engines: dict[str, WorkerMetrics] = field(default_factory=dict)
    live_trajectories: int | None = None
    """In the engines, queued or in their environment, as the gateway counts them; None = not known."""
    asked_seconds: float | None = None
    """Between the last turn, permit or batch that was asked for and the gateway's statistics; 0 while a turn runs.
    None = nothing since the gateway was started, or not known."""
    gateway_uptime_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One unfinished trajectory of the open batch."""

    group: str
    turns_done: int
    context_tokens: int
    idle_seconds: float | None = None
    """Time in the environment so far; None = in the engine."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The open batch; without one only steady state can be planned for."""

    step: int
    groups: int
    group_size: int
    need_groups: int
    complete_groups: int
    started: int
    finished: int
    elapsed_seconds: float
    unfinished: tuple[Trajectory, ...] = ()


@dataclass(frozen=True, slots=True)
class Loan:
    """One GPULoan as recorded."""

    name: str
    namespace: str
    epoch: int
    phase: str
    gpus: int
    workers: tuple[str, ...]
    """Pod names of its borrowers."""
    requested: bool
    """`lend()` of this epoch waits for an answer."""
    cap_seconds: float | None = None
    expected_idle_seconds: float | None = None
    """How long the trainer will not need them, as past loans tell."""


@dataclass(frozen=True, slots=True)
class Trainer:
    """What batches and weight versions tell about training; the consumer of the rollout."""

    update_seconds: float | None = None
    """From a batch consumed to its weights published, decaying average."""
    waiting_seconds: float | None = None
    """How long it has been waiting for trajectories now; 0 while it trains; None = not known."""
    ready_trajectories: int | None = None
    """Finished and not consumed yet."""


@dataclass(frozen=True, slots=True)
class WorkerSizes:
    """GPUs of one worker, by its role."""

    gpus_per_worker: int
    """Of a colocated and of a borrowed worker."""
    prefill_gpus: int | None = field(default=None, kw_only=True)
    """None = `gpus_per_worker`."""
    decode_gpus: int | None = field(default=None, kw_only=True)

    def gpus_of(self, role: Role) -> int:
        """GPUs of a worker that is made for this role."""
        if role is Role.PREFILL:
            return self.prefill_gpus or self.gpus_per_worker
        if role is Role.DECODE:
            return self.decode_gpus or self.gpus_per_worker
        return self.gpus_per_worker

    @property
    def staged(self) -> bool:
        """Whether workers of different roles are of different sizes, so that not every one can take every role."""
        one = self.gpus_per_worker
        return (self.prefill_gpus or one) != one or (self.decode_gpus or one) != one


@dataclass(frozen=True, slots=True)
class Budget(WorkerSizes):
    """GPUs that may be used, by zone."""

    reserved_gpus: int
    elastic_min_gpus: int
    elastic_max_gpus: int
    borrowed_max_gpus: int
    elastic_free_gpus: int | None = None
    """Free elastic GPUs in the cluster now; None = unknown."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One worker that shall exist."""

    slot: int
    zone: Zone
    role: Role
    incarnation: int


@dataclass(frozen=True, slots=True)
class Target:
    """Where the fleet is going. `id` grows by one with each new target and is the role epoch of its flips."""

    id: int
    generation: int
    slots: tuple[Slot, ...]
    reason: Reason
    started_at: float
    deadline: float


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of one worker that takes time: `kind` is `start`, `wake`, `flip`, or `cold` (an engine's first wake)."""

    uid: str
    kind: str
    since: float


@dataclass(frozen=True, slots=True)
class MixedSeen:
    """What workers that also prefill showed: decaying averages over looks of x, p, x², x·p and p²."""

    explained: float
    """x: share of a worker's time that the table's steps and prefills explain."""
    prefills: float
    """p: prefills per second of a worker."""
    explained_squared: float
    explained_prefills: float
    prefills_squared: float


@dataclass(frozen=True, slots=True)
class Memory:
    """What the planner remembers between looks; lives in the status and survives restarts."""

    last_change_at: float | None = None
    last_target_id: int = 0
    next_incarnations: tuple[tuple[int, int], ...] = ()
    """(slot, next incarnation) of slots whose pod died."""
    flip_cost_seconds: float | None = None
    start_cost_seconds: float | None = None
    wake_cost_seconds: float | None = None
    cold_cost_seconds: float | None = None
    """Of a borrower whose engine starts from nothing; one that was taken back before counts as far as it got."""
    cold_seen_at: float | None = None
    model_scale: float | None = None
    """Measured over predicted step time."""
    decode_scale: float | None = None
    """The same of workers that only decode; decaying average."""
    mixed_seen: MixedSeen | None = None
    scale_table: str | None = None
    """Name of the engine table that these three are about; None = nobody wrote it down."""
    capacity_changed_at: float | None = None
    elastic_gpus_seen: int | None = None
    """Elastic GPUs, used and free, at the last look; a change of it starts the coalescing time."""
    local_append_tokens: int | None = None
    """Last threshold given to the gateway; kept while nothing can be predicted."""
    looked_at: float | None = None
    """Time of the last look."""
    feeding: Feeding | None = None
    """What the last clear evidence said."""
    live_peak: float | None = None
    """Most live trajectories seen lately, fading."""
    rival: Shape | None = None
    """Shape that was predicted better than the present one at the last look, though not by the threshold."""
    rival_since: float | None = None
    pressed_since: float | None = None
    """Since when the next seconds bring more to one stage than it can do while the other has room."""
    surplus_since: float | None = None
    """Since when fewer elastic workers would do."""
    wake_seen_at: float | None = None
    """When the wake cost was last measured; what nobody used for long is believed less."""
    under_way: tuple[Transition, ...] = ()
    """What has begun and is not over, to learn what it costs."""
    elastic_seconds: float | None = None
    """Worker-seconds that elastic workers lived, fading."""
    elastic_losses: float | None = None
    """Elastic workers lost to notices and failures in that time, fading."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The user's spec, as the planner needs it."""

    generation: int
    table: EngineTable
    """Of colocated workers, and of all where `split_table` is None."""
    modes: tuple[Mode, ...] = (Mode.COLOCATED, Mode.DISAGGREGATED)
    ratio: tuple[int, int] | None = None
    split_table: EngineTable | None = None
    """Of the decode workers of a disaggregated fleet, with that of its prefill workers, where sizes differ."""
    objective: str = "Throughput"
    window: int | None = None
    """A fixed in-flight window; None with `window_automatic` False = no window."""
    window_automatic: bool = True
    max_staleness: int = 1
    prior_groups: int = 4
    prior_group_size: int = 16
    ratio_threshold: float = 0.03
    mode_threshold: float = 0.08
    min_dwell_seconds: float = 30.0
    coalesce_seconds: float = 15.0
    drain_seconds: float = 60.0
    start_seconds: float = 600.0
    stale_after_seconds: float = 30.0
    engines_stale_after_seconds: float | None = None
    """The same of engine samples, where it must be longer than that (two scrapes); None = the same."""
    advisory: bool = False
    hold: bool = False
    suspend: bool = False
    idle_action: IdleAction = IdleAction.NONE
    idle_after_seconds: float = 1800.0

    def table_of(self, mode: Mode) -> EngineTable:
        """Of the workers of a mode; where prefill workers are of another size it says so."""
        return self.table if mode is Mode.COLOCATED or self.split_table is None else self.split_table


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything one decision sees."""

    now: float
    workers: tuple[Worker, ...]
    loans: tuple[Loan, ...]
    budget: Budget
    measurements: Measurements
    profile: Profile | None
    batch: Batch | None
    target: Target | None
    memory: Memory = Memory()
    trainer: Trainer | None = None
    """None = nothing is known of the consumer."""
    feeding: Feeding | None = None
    """As seen at the gateway; None = not seen yet, then what is in flight beside the open batch tells."""


@dataclass(frozen=True, slots=True)
class CreateWorker:
    """Make the pod of a slot."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class DeleteWorker:
    """Delete a drained (or hopeless) pod."""

    uid: str
    pod: str
    slot: int


@dataclass(frozen=True, slots=True)
class SetRole:
    """Change the role label; no restart."""

    uid: str
    pod: str
    role: Role
    epoch: int


@dataclass(frozen=True, slots=True)
class SetActivity:
    """Drain, put to sleep, or activate."""

    uid: str
    pod: str
    activity: Activity


@dataclass(frozen=True, slots=True)
class AnswerLoan:
    """Grant or refuse the loan that waits."""

    loan: str
    namespace: str
    epoch: int
    granted: bool
    reason: str


Action = CreateWorker | DeleteWorker | SetRole | SetActivity | AnswerLoan


@dataclass(frozen=True, slots=True)
class Prediction:
    """One shape with what it would do."""

    shape: Shape
    turns_per_second: float | None
    makespan_seconds: float | None
    """Of the rest of the batch; None = no batch known."""
    switch_cost_seconds: float
    feasible: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class RoutingParameters:
    """What the gateway applies."""

    local_append_tokens: int
    in_flight_window: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """The decision. `actions` are the safe next ones towards `target`; an unchanged fleet gives none."""

    target: Target | None
    actions: tuple[Action, ...]
    reason: Reason
    message: str
    """The numbers behind it, one or two sentences."""
    shape: Shape
    finalists: tuple[Prediction, ...]
    routing: RoutingParameters
    memory: Memory
    next_look_seconds: float
    recommended_in_flight: int | None = None
