"""The PearlRollout custom resource: what a user asks for, and what the operator reports.

Descriptions become the CRD's and the reference page's. Rules that one field alone can state are stated here;
rules over several fields are CEL in `pearl_api.rules`.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field

from pearl_api.base import Model
from pearl_api.conditions import Condition
from pearl_api.names import Role, Zone

PodTemplate = dict[str, Any]
"""A Kubernetes PodTemplateSpec; kept as it is, merged strategically, checked by a dry-run create."""


class ModelSpec(Model):
    """The model that is rolled out."""

    name: str = Field(min_length=1, max_length=253, description="Served model name, as clients write it.")
    uri: str = Field(
        min_length=1,
        max_length=1024,
        description="Where workers load version 0 from: an absolute path in the container, `pvc://claim/path`, "
        "or a name that vLLM resolves.",
    )


class Parallelism(Model):
    """Tensor parallel sizes per stage; unequal sizes make changing sides a pod replacement."""

    prefill: int = Field(ge=1, le=64, description="GPUs of one prefill worker.")
    decode: int = Field(ge=1, le=64, description="GPUs of one decode worker; a multiple of a prefill worker's.")


class EngineSpec(Model):
    """The engine of every worker."""

    image: str = Field(min_length=1, description="Worker image: agent, guard and vLLM.")
    tensor_parallel: int = Field(
        default=1,
        ge=1,
        le=64,
        description="GPUs of one worker; with `parallelism` those of colocated and borrowed workers, between both.",
    )
    max_model_len: int = Field(default=32768, ge=1, description="Longest context in tokens.")
    args: list[Annotated[str, Field(max_length=1024)]] = Field(
        default_factory=list, max_length=64, description="Further arguments of `vllm serve`."
    )
    env: dict[str, Annotated[str, Field(max_length=4096)]] = Field(
        default_factory=dict, max_length=64, description="Further environment of the worker container."
    )
    gpu_resource: str = Field(default="nvidia.com/gpu", max_length=253, description="Extended resource of one GPU.")
    parallelism: Parallelism | None = None
    table: str | None = Field(
        default=None,
        description="Engine table to plan with, `MODEL/HARDWARE`; default by model name and GPU.",
    )


class ReservedCapacity(Model):
    """GPUs that the rollout always has."""

    gpus: int = Field(ge=0, le=8192, description="GPUs used all the time; a multiple of the smallest worker's.")


class ElasticCapacity(Model):
    """GPUs that come and go (spot, autoscaled)."""

    min_gpus: int = Field(default=0, ge=0, le=8192, description="Asked for even if they do not pay.")
    max_gpus: int = Field(default=0, ge=0, le=8192, description="Never more than these.")
    pod_template: PodTemplate | None = Field(
        default=None, description="Merged into elastic workers, after podTemplate."
    )


class BorrowAccess(StrEnum):
    """How a borrower pod reaches the trainer's GPUs."""

    AUTO = "Auto"
    SHARED_CLAIM = "SharedClaim"
    VISIBLE_DEVICES = "VisibleDevices"


class BorrowedCapacity(Model):
    """GPUs that trainers lend."""

    max_gpus: int = Field(default=0, ge=0, le=8192, description="Lent GPUs used at a time; 0 = none are borrowed.")
    trainer_selector: dict[str, str] = Field(
        default_factory=dict, max_length=16, description="Labels that a trainer pod must carry to lend to this rollout."
    )
    access: BorrowAccess = BorrowAccess.AUTO
    pod_template: PodTemplate | None = Field(
        default=None, description="Merged into borrowed workers, after podTemplate."
    )


class CapacitySpec(Model):
    """How many GPUs the rollout may use, by zone. Every number is in GPUs, not workers."""

    reserved: ReservedCapacity
    elastic: ElasticCapacity = ElasticCapacity()
    borrowed: BorrowedCapacity = BorrowedCapacity()


class ModePolicy(StrEnum):
    """Which modes the planner may choose."""

    AUTO = "Auto"
    COLOCATED = "Colocated"
    DISAGGREGATED = "Disaggregated"


class Ratio(Model):
    """A proportion of workers, rounded so that both sides keep at least one."""

    prefill: int = Field(ge=1, le=1024, description="Parts of the workers that prefill.")
    decode: int = Field(ge=1, le=1024, description="Parts of the workers that decode.")


class WorkloadSpec(Model):
    """Priors only; measured values take over."""

    groups: int = Field(default=4, ge=1, description="Groups (prompts) of one batch.")
    group_size: int = Field(default=16, ge=1, description="Trajectories of one group.")


class WeightsSpec(Model):
    """Where new weights come from and how stale a trajectory may be."""

    source: str | None = Field(
        default=None,
        max_length=1024,
        description="Directory URI with `manifest.json`, for example `file:///weights`. Absent: version 0 for ever.",
    )
    max_staleness: int = Field(default=1, ge=0, le=64, description="Versions a trajectory may be behind.")
    measured_from: Literal["FirstToken", "Dispatch"] = Field(
        default="FirstToken", description="When the age of a trajectory begins."
    )
    on_exceed: Literal["WaitForOldest", "Abort"] = Field(
        default="WaitForOldest",
        description="Hold new groups until the oldest are consumed, or end trajectories that are too old.",
    )
    on_update: Literal["Recompute", "FinishTurn", "KeepKV"] = Field(
        default="Recompute",
        description="What happens to a turn in flight: recomputed and resumed, finished first, or resumed on old KV.",
    )
    rollout: Literal["Rolling", "AllAtOnce"] | None = Field(
        default=None, description="Default: AllAtOnce where maxStaleness is 0, else Rolling."
    )


class Hysteresis(Model):
    """How much better a shape must be before it is worth a change."""

    ratio_percent: float = Field(default=3, ge=0, le=100, description="Predicted gain that another ratio must bring.")
    mode_percent: float = Field(default=8, ge=0, le=100, description="Predicted gain that another mode must bring.")
    min_dwell_seconds: float = Field(
        default=30, ge=0, le=86400, description="Shortest time between two optional changes."
    )


class Deadlines(Model):
    """Longest durations of single steps, in seconds."""

    drain_seconds: float = Field(
        default=60, gt=0, le=86400, description="Requests of a draining worker may finish; then they move on."
    )
    start_seconds: float = Field(default=600, gt=0, le=86400, description="A worker must serve a token by then.")
    reclaim_seconds: float = Field(default=10, gt=0, le=3600, description="A reclaimed GPU is free by then.")


class PolicySpec(Model):
    """How decisions are taken."""

    advisory: bool = Field(default=False, description="Decide and explain, change nothing.")
    objective: Literal["Throughput", "Cost"] = Field(
        default="Throughput", description="Shortest time, or fewest GPU-seconds per trajectory."
    )
    in_flight: Literal["Auto", "Disabled"] | Annotated[int, Field(ge=1)] = Field(
        default="Auto", description="Window of trajectories in flight: Auto, Disabled, or a number ≥ 1."
    )
    hysteresis: Hysteresis = Hysteresis()
    coalesce_seconds: float = Field(
        default=15, ge=0, le=3600, description="Node and capacity events are collected for so long."
    )
    deadlines: Deadlines = Deadlines()


class IdleSpec(Model):
    """What to do when nothing was asked for some time."""

    after_seconds: float = Field(
        default=1800, gt=0, description="Time without a turn, permit or batch after which it is idle."
    )
    action: Literal["None", "Sleep", "ScaleToZero"] = Field(
        default="None",
        description="Keep the workers, put their engines to sleep (GPU memory is free, a wake-up takes seconds), or "
        "remove them. The first request brings them back; new trajectories are told to repeat theirs until then.",
    )


class EngineQueries(Model):
    """PromQL in place of the operator's own, for engines or relabelings that it does not know.

    Each gives one value per pod, with the labels `namespace` and `pod`; `$pods` stands for the label matchers of the
    rollout's pods.
    """

    running: str | None = Field(default=None, description="Requests that the engine runs.")
    waiting: str | None = Field(default=None, description="Requests that wait in the engine.")
    kv_usage: str | None = Field(default=None, description="Share of the KV cache in use, 0 to 1.")
    generation_tokens_per_second: str | None = Field(default=None, description="Generated tokens.")
    prompt_tokens_per_second: str | None = Field(default=None, description="Prefilled tokens.")
    inter_token_seconds: str | None = Field(default=None, description="Mean time between two tokens of a request.")
    sampled_at: str | None = Field(default=None, description="Unix time of the newest sample.")


class PrometheusSpec(Model):
    """Where engine series are read."""

    url: str = Field(pattern=r"^https?://", description="Base URL of the Prometheus HTTP API.")
    bearer_token_file: str | None = Field(
        default=None, pattern="^/", description="File in the operator's pod with a bearer token; read every time."
    )
    ca_file: str | None = Field(
        default=None,
        pattern="^/",
        description="File in the operator's pod with the certificates that the server's is checked with; read again "
        "when it changes. Absent: the system's.",
    )
    headers: dict[str, str] = Field(
        default_factory=dict, description="Sent with every query, for example `X-Scope-OrgID: my-tenant`."
    )
    queries: EngineQueries = EngineQueries()


class MetricsSpec(Model):
    """Sources of measurements."""

    prometheus: PrometheusSpec | None = Field(default=None, description="Absent: the gateway's statistics alone.")
    stale_after_seconds: float = Field(
        default=30,
        ge=3,
        le=3600,
        description="Older samples allow no optional change. Engine series may always be 2 scrapes old.",
    )


class GatewayStorage(Model):
    """Where the gateway keeps its append-only export; emptyDir unless a claim is named."""

    claim_name: str | None = Field(default=None, description="PersistentVolumeClaim of this namespace.")
    size_limit: str = Field(
        default="1Gi",
        pattern=r"^[0-9]+(\.[0-9]+)?([kMGT]i?|Ki)?$",
        description="Of the emptyDir, where no claim is named.",
    )


class GatewaySpec(Model):
    """The rollout's gateway."""

    processes: int = Field(
        default=1,
        ge=1,
        le=16,
        description="Processes of the one replica: one per core that it is to use. Each trajectory lives in one.",
    )
    storage: GatewayStorage = GatewayStorage()
    auth: Literal["Token", "None"] = Field(default="Token", description="Bearer token for clients, or open.")
    pod_template: PodTemplate | None = Field(default=None, description="Merged into the gateway's pod.")


class PearlRolloutSpec(Model):
    """Desired state of a rollout fleet."""

    suspend: bool = Field(default=False, description="Drain and remove all workers; keep the gateway.")
    model: ModelSpec
    engine: EngineSpec
    capacity: CapacitySpec
    mode: ModePolicy = ModePolicy.AUTO
    ratio: Ratio | None = Field(default=None, description="Absent: automatic.")
    workload: WorkloadSpec = WorkloadSpec()
    weights: WeightsSpec = WeightsSpec()
    policy: PolicySpec = PolicySpec()
    idle: IdleSpec = IdleSpec()
    metrics: MetricsSpec = MetricsSpec()
    gateway: GatewaySpec = GatewaySpec()
    pod_template: PodTemplate | None = Field(default=None, description="Merged into every worker pod.")


class TargetSlot(Model):
    """One worker that shall exist."""

    slot: int = Field(ge=0)
    zone: Zone
    role: Role
    incarnation: int = Field(ge=0, description="Counts the pods made for this slot; part of the pod name.")


class Target(Model):
    """Where the fleet is going; written before the first action."""

    id: int = Field(ge=1, description="Grows by one with each new target; also the role epoch of its flips.")
    generation: int = Field(description="metadata.generation it was decided for.")
    slots: list[TargetSlot] = Field(max_length=1024, description="Every worker that shall exist.")
    reason: str = Field(description="Decision reason that led to it.")
    started_at: str = Field(description="RFC 3339.")
    deadline: str = Field(description="RFC 3339; past it the target is dropped.")


class Finalist(Model):
    """A shape that was considered, with its prediction."""

    shape: str = Field(description="For example `colocated:3` or `disaggregated:1P2D`.")
    makespan_seconds: float | None = None
    turns_per_second: float | None = None
    switch_cost_seconds: float | None = None
    feasible: bool = True
    note: str = ""


class Decision(Model):
    """The last decision and why."""

    time: str
    reason: str = Field(description="One of the decision reasons of the reference page.")
    message: str = Field(description="The numbers behind it, for people.")
    shape: str
    finalists: list[Finalist] = Field(default_factory=list, max_length=5)


class Routing(Model):
    """Parameters that the gateway watches."""

    local_append_tokens: int = Field(ge=0, description="Uncached tokens below which decode workers prefill.")
    in_flight_window: int | None = Field(default=None, ge=1, description="Absent: unlimited.")


class WorkerCounts(Model):
    """Workers by what they do."""

    prefill: int = 0
    decode: int = 0
    colocated: int = 0
    ready: int = Field(default=0, description="Served a token and serve.")
    total: int = Field(default=0, description="All worker pods that are not terminating.")
    reserved: int = 0
    elastic: int = 0
    borrowed: int = 0
    prefill_gpus: int = Field(default=0, description="GPUs that prefill workers hold.")
    decode_gpus: int = Field(default=0, description="GPUs that decode workers hold.")
    colocated_gpus: int = Field(default=0, description="GPUs that colocated workers hold.")


class WeightsStatus(Model):
    """A report only; the manifest decides."""

    wanted: int | None = Field(default=None, description="Version in the manifest.")
    min: int | None = Field(default=None, description="Oldest version that a worker serves.")
    max: int | None = Field(default=None, description="Newest version that a worker serves.")


class PearlRolloutStatus(Model):
    """What the operator observed and decided."""

    observed_generation: int | None = None
    mode: str | None = Field(default=None, description="Colocated, Disaggregated, or Mixed while changing.")
    workers: WorkerCounts = WorkerCounts()
    gpus: int | None = Field(default=None, description="GPUs held by workers now.")
    ready: str | None = Field(default=None, description="`ready/total` workers.")
    target: Target | None = None
    last_decision: Decision | None = None
    routing: Routing | None = None
    recommended_in_flight: int | None = Field(
        default=None, description="Trajectories in flight that the planner would admit."
    )
    weights: WeightsStatus = WeightsStatus()
    gateway_url: str | None = Field(default=None, description="Where agents and RL frameworks find the gateway.")
    memory: str | None = Field(default=None, max_length=8192, description="The planner's memory, JSON; not for people.")
    conditions: list[Condition] = Field(default_factory=list)


class PearlRollout(Model):
    """A rollout fleet for agentic RL, kept in its best prefill/decode shape."""

    spec: PearlRolloutSpec
    status: PearlRolloutStatus = PearlRolloutStatus()
