"""What a simulation is given and what it answers: frozen, hashable by value, JSON-able through `dataclasses.asdict`.

Times are seconds on the virtual clock, which starts at 0. A `Scenario` and a seed determine a `Result`; a rule sees
none of it, only the `Snapshot` that the simulated gateway, pods and trainer would give the operator.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from pearl_planner.types import Budget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pearl_planner.engine.model import EngineTable
    from pearl_planner.types import Shape, Zone


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of an agent and what follows it."""

    appended_tokens: int
    """New prompt tokens: the whole first prompt in turn 1."""
    generated_tokens: int
    """At least 1."""
    retained_tokens: int
    """Of the generated ones, those that the next prompt holds (stripped thinking is not)."""
    missed_share: float
    """Share of the history that is computed again although its KV may be there (0..1); a property of the agent."""
    environment_seconds: float
    """After the answer, before the next request; of the last turn: the reward."""


@dataclass(frozen=True, slots=True)
class Script:
    """One trajectory as it will go, whoever serves it."""

    group: int
    member: int
    reset_seconds: float
    """Before the first request."""
    turns: tuple[Turn, ...]
    """At least one."""


class Workload(Protocol):
    """Draws trajectories. The same (seed, step) gives the same batch, so that policies meet the same work."""

    @property
    def name(self) -> str:
        """For reports."""
        ...

    @property
    def groups(self) -> int:
        """Groups that one training step consumes."""
        ...

    @property
    def group_size(self) -> int:
        """Trajectories per group."""
        ...

    def batch(self, step: int, seed: int) -> Sequence[Script]:
        """The trajectories of one training step, `groups · group_size` of them, groups in a row."""
        ...


class PrefillStyle(StrEnum):
    """How a worker that also decodes handles prompts."""

    MIXED = "mixed"  # chunked prefill inside decode steps: every sequence still gets its token
    EXCLUSIVE = "exclusive"  # decode waits for the prefill


@dataclass(frozen=True, slots=True)
class Calibration:
    """How fast engines are. `clean` = the engine model as measured; `paper` = fitted to the published points."""

    name: str
    table: EngineTable
    """Of one worker of `Fleet.gpus_per_worker` GPUs."""
    style: PrefillStyle = PrefillStyle.MIXED
    max_batched_tokens: int = 8192
    interference_seconds: float = 0.0
    """Residual of one prefill on a worker that also decodes, during which it does nothing else (the T_over of the
    PEARL paper's Equation 1). 0 under `clean`."""
    host_seconds: float = 0.0
    """Hidden overhead per engine step, for perturbed engines; the planner is not told."""
    service_noise: float = 0.0
    """σ of a log-normal factor (mean 1) on the time of each turn, for perturbed engines; the planner is not told."""
    planner_table: EngineTable | None = None
    """What the planner believes; None = the table above."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds that transitions take; defaults of the PEARL paper's Table 3 (Qwen3-8B) where it has them."""

    start_seconds: float = 67.34
    """Pod created → serving (56.29 preparation + 11.05 finalisation)."""
    wake_seconds: float = 6.26
    """Loan granted → borrowed worker serving."""
    sleep_seconds: float = 3.18
    """Reclaim → GPU free for training."""
    flip_seconds: float = 1.0
    """Role label written → every gateway process routes by it."""
    weights_seconds: float = 5.5
    """New weights published → a worker serves them again."""
    notice_seconds: float = 30.0
    """Between the notice and the end of an elastic GPU."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """GPUs that may be used."""

    gpus_per_worker: int = 2
    reserved_gpus: int = 4
    elastic_max_gpus: int = 12
    borrowed_max_gpus: int = 16
    """Training GPUs that may be lent; 0 = no lending."""
    prefill_gpus: int | None = None
    """Of a prefill worker; None = `gpus_per_worker`, as colocated and borrowed workers have."""
    decode_gpus: int | None = None

    def budget(self, elastic_free_gpus: int | None = None) -> Budget:
        """As the planner knows it."""
        return Budget(
            gpus_per_worker=self.gpus_per_worker,
            reserved_gpus=self.reserved_gpus,
            elastic_min_gpus=0,
            elastic_max_gpus=self.elastic_max_gpus,
            borrowed_max_gpus=self.borrowed_max_gpus,
            elastic_free_gpus=elastic_free_gpus,
            prefill_gpus=self.prefill_gpus,
            decode_gpus=self.decode_gpus,
        )


class Feeding(StrEnum):
    """When the trajectories of the next step may start."""

    BARRIER = "barrier"  # synchronous: after the weights of the step before
    REFILL = "refill"  # asynchronous: as soon as the window has room, within the staleness bound


@dataclass(frozen=True, slots=True)
class Training:
    """The consumer of the batches."""

    update_seconds: float
    """From a consumed batch to new weights being ready to publish, on all its GPUs."""
    feeding: Feeding = Feeding.REFILL
    max_staleness: int = 1
    """η, in versions between a trajectory's first token and its consumption."""
    need_groups: int | None = None
    """Complete groups that a step waits for; None = all of them."""


@dataclass(frozen=True, slots=True)
class CapacityChange:
    """From `at_seconds` on the cluster has this many elastic GPUs; a fall was noticed `Costs.notice_seconds` before."""

    at_seconds: float
    elastic_gpus: int


@dataclass(frozen=True, slots=True)
class Failure:
    """The engine of one serving worker (chosen by the seed) dies at this time and its pod is replaced."""

    at_seconds: float


@dataclass(frozen=True, slots=True)
class Router:
    """What the simulated gateway does; the same for every rule of a comparison."""

    window: int | None = 64
    """Trajectories in flight at most; None = what the plan publishes (automatic)."""
    local_append: bool = True
    """Decode workers prefill short appends themselves (threshold: the plan's, or the engine model's optimum where a
    rule gives none)."""
    stragglers_first: bool = True
    """Prefill queues and emptier decoders go to the trajectories that are predicted long."""
    affinity: bool = True
    """A trajectory returns to the workers that hold its KV."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One simulated run, but for the rule and the seed."""

    name: str
    workload: Workload
    calibration: Calibration
    training: Training
    horizon_seconds: float
    fleet: Fleet = Fleet()
    costs: Costs = Costs()
    router: Router = Router()
    capacity: tuple[CapacityChange, ...] = ()
    """In order of time; empty = `Fleet.elastic_max_gpus` all the time."""
    failures: tuple[Failure, ...] = ()
    warmup_seconds: float = 0.0
    """Left out of the rates of the result."""
    look_seconds: float = 10.0
    """Longest time between two looks of the rule; events that wake the operator wake it too."""
    modes: tuple[str, ...] = ("Colocated", "Disaggregated")
    objective: str = "Throughput"
    max_batches: int | None = None
    """Ends the run after so many consumed batches; None = at the horizon."""


@dataclass(frozen=True, slots=True)
class ShapeSpan:
    """The fleet had this shape from `start_seconds` on."""

    start_seconds: float
    shape: Shape
    gpus: tuple[tuple[Zone, int], ...]


@dataclass(frozen=True, slots=True)
class BatchResult:
    """One consumed batch."""

    step: int
    opened_seconds: float
    ready_seconds: float
    """`need_groups` groups were complete."""
    consumed_seconds: float
    ages: tuple[int, ...]
    """Versions between each trajectory's first token and its consumption."""


@dataclass(frozen=True, slots=True)
class Result:
    """What happened. Rates leave the warm-up out."""

    scenario: str
    rule: str
    seed: int
    seconds: float
    """Simulated time measured (horizon − warm-up)."""
    finished_trajectories: int
    generated_tokens: int
    prefilled_tokens: int
    """Computed, cache hits left out."""
    turns: int
    batches: tuple[BatchResult, ...]
    gpu_seconds: dict[str, float]
    """Zone → GPU-seconds held by workers (starting, serving, draining)."""
    trainer_waiting_seconds: float
    reclaims: tuple[float, ...] = ()
    """Seconds from each reclaim to its GPUs being free."""
    recomputed_tokens: int = 0
    """Prefilled again because a worker was lost or left its role."""
    decisions: tuple[tuple[float, str, str], ...] = ()
    """(time, reason, message) of every changed target."""
    shapes: tuple[ShapeSpan, ...] = ()
    events: int = 0
    wall_seconds: float = 0.0
    plan_seconds: float = 0.0
    """Of it, spent in `plan()`."""
    extra: dict[str, float] = field(default_factory=dict)

    @property
    def trajectories_per_hour(self) -> float:
        """Finished trajectories per simulated hour."""
        return 3600.0 * self.finished_trajectories / self.seconds if self.seconds > 0 else 0.0
