"""The gateway's own interface beside the OpenAI-compatible one (port 8080).

| method and path                                   | token             | body → answer                      |
|---------------------------------------------------|-------------------|------------------------------------|
| POST /v1/completions, /v1/chat/completions        | client            | OpenAI                             |
| POST /inference/v1/generate                       | client            | token ids in, token ids out        |
| POST /generate and others of an SGLang engine     | client            | see docs/integrations/slime.md     |
| POST /v1/batches                                  | client            | OpenBatch → BatchProgress          |
| GET  /v1/batches/{step}                           | client            | → BatchProgress                    |
| POST /v1/batches/{step}/finish                    | client            | FinishTrajectory → BatchProgress   |
| POST /v1/batches/{step}/abort                     | client            | AbortTrajectory → BatchProgress    |
| POST /v1/batches/{step}/consume                   | client            | → list of TrajectoryExport         |
| POST /v1/batches/{step}/close                     | client            | → BatchProgress                    |
| POST /v1/permits                                  | client            | PermitRequest → PermitAnswer       |
| GET  /v1/trajectories/{id}                        | client            | → TrajectoryExport                 |
| GET  /v1/stats                                    | client or gateway | → GatewayStats                     |
| GET  /v1/models, /health, /ready, /metrics        | –                 |                                    |

Identity of a turn travels in the headers below; the same names in a body field `pearl` (without `X-Pearl-`,
camelCase) are accepted for clients that cannot set headers. (trajectory, turn, attempt) is an idempotency key.
"""

from enum import StrEnum
from typing import Any, Final, Literal

from pydantic import Field

from pearl_api.base import Message
from pearl_api.names import Activity, Role

HEADER_TRAJECTORY: Final = "X-Pearl-Trajectory"
HEADER_TURN: Final = "X-Pearl-Turn"
HEADER_ATTEMPT: Final = "X-Pearl-Attempt"
HEADER_GROUP: Final = "X-Pearl-Group"
HEADER_CLASS: Final = "X-Pearl-Class"
"""`train` (default), `eval` or `other`; only `train` feeds the profile."""
HEADER_PARENT: Final = "X-Pearl-Parent-Turn"
HEADER_STEP: Final = "X-Pearl-Step"
HEADER_IDEMPOTENCY: Final = "Idempotency-Key"
"""Of a consumption: who repeats it with its key, because the answer was lost, gets the same trajectories again."""
NAME_PATTERN: Final = r"^[A-Za-z0-9._:/@\-]{1,200}$"
"""Names of trajectories and groups."""
_LARGEST: Final = 10**9


class OpenBatch(Message):
    """Declares what a batch is, so that the planner can reason about the rest of it."""

    step: int = Field(ge=0, le=_LARGEST)
    groups: int = Field(ge=1, le=_LARGEST)
    group_size: int = Field(ge=1, le=_LARGEST)
    need_groups: int | None = Field(
        default=None, ge=1, le=_LARGEST, description="Complete groups that end it; default all."
    )
    min_version: int = Field(
        default=0, ge=0, le=_LARGEST, description="Oldest weight version that may generate tokens of it."
    )


class FinishTrajectory(Message):
    """A trajectory reached its end."""

    trajectory: str = Field(pattern=NAME_PATTERN)
    group: str | None = Field(default=None, pattern=NAME_PATTERN)
    reward: float | None = Field(default=None, allow_inf_nan=False)


class AbortTrajectory(Message):
    """A trajectory ended early."""

    trajectory: str = Field(pattern=NAME_PATTERN)
    group: str | None = Field(default=None, pattern=NAME_PATTERN)
    cause: str = "aborted"


class BatchProgress(Message):
    """How far a batch is."""

    step: int
    groups: int
    group_size: int
    need_groups: int
    min_version: int
    started: int = Field(description="Trajectories that sent at least one turn.")
    finished: int
    aborted: int
    complete_groups: int
    open_seconds: float
    closed: bool


class PermitRequest(Message):
    """Asks for admission of one whole group before its environments are reset (long poll)."""

    group: str = Field(pattern=NAME_PATTERN)
    size: int = Field(ge=1, le=_LARGEST)
    step: int | None = Field(default=None, ge=0, le=_LARGEST)
    wait_seconds: float = Field(default=30.0, ge=0, le=300)


class PermitAnswer(Message):
    """Admitted, or not yet with the reason."""

    granted: bool
    reason: str
    in_flight: int
    window: int | None = Field(description="Present in-flight window; None = unlimited.")
    weight_version: int


class SegmentReason(StrEnum):
    """Why a segment of a turn ended, or why a new one began."""

    COMPLETE = "complete"
    WORKER_LOST = "workerLost"
    DRAINED = "drained"
    RECLAIMED = "reclaimed"
    ROLE_CHANGED = "roleChanged"
    WEIGHTS_UPDATED = "weightsUpdated"
    HANDOFF_FAILED = "handoffFailed"
    PREFIX_BROKEN = "prefixBroken"
    BRANCHED = "branched"
    CLIENT_LEFT = "clientLeft"


class Segment(Message):
    """Tokens [start, end) of a trajectory's log that one worker generated under one weight version."""

    turn: int
    worker: str = Field(description="Pod name; empty where a prompt opened a new context (prefixBroken, branched).")
    prefill_worker: str | None = None
    version: int | None = Field(description="None = no weights involved, or the worker died before it told.")
    start: int
    end: int
    reason: SegmentReason
    routed_experts: str | None = Field(
        default=None,
        description="Where the engine gives them: base64 of a `.npy` (tokens - 1, layers, experts per token) over "
        "prompt and answer of the call that ended at `end`.",
    )


class TrajectoryExport(Message):
    """What a trainer consumes: equal-length per-token lists over prompt and generated tokens of all turns."""

    trajectory: str
    group: str | None
    state: Literal["live", "finished", "aborted"]
    reward: float | None
    cause: str | None
    turns: int
    token_ids: list[int]
    loss_mask: list[int] = Field(description="1 where the model generated the token.")
    logprobs: list[float | None] = Field(description="Behaviour logprob of generated tokens, None elsewhere.")
    versions: list[int | None] = Field(description="Weight version of generated tokens, None elsewhere.")
    segments: list[Segment]


class WorkerView(Message):
    """A worker as the gateway sees it; `acked_epoch` is the role epoch that it routes by."""

    uid: str
    pod: str
    role: Role
    acked_epoch: int
    activity: Activity
    ready: bool
    in_flight: int
    resident_tokens: int = Field(description="Context tokens of live trajectories whose affinity is this worker.")
    weight_version: int | None = None
    first_token_in_role_seconds: float | None = Field(
        default=None, description="Seconds from seeing the role to the first token served in it."
    )


class LiveStates(Message):
    """Live trajectories by what they do now."""

    queued: int = 0
    prefilling: int = 0
    decoding: int = 0
    environment: int = 0


class TrajectoryProgress(Message):
    """One unfinished trajectory of the open batch, as compact facts for the batch predictor."""

    group: str
    turns_done: int
    context_tokens: int
    idle_seconds: float | None = Field(description="Time in the environment so far; None = in the engine.")


class Counters(Message):
    """Totals since the start of the gateway, of all its processes."""

    turns: int = Field(default=0, description="Finished turns.")
    trajectories_finished: int = Field(default=0, description="Trajectories that ended whole.")
    trajectories_aborted: int = Field(default=0, description="Trajectories that were given up.")
    generated_tokens: int = Field(default=0, description="Tokens of finished turns.")
    prefilled_tokens: int = Field(
        default=0, description="Prompt tokens that were computed anew, as far as the gateway knows the caches."
    )
    wasted_tokens: int = Field(
        default=0, description="Generated tokens that are in no trajectory, or in an aborted one."
    )
    handoffs: int = Field(default=0, description="Turns prefilled by one worker for another to decode.")
    handoff_failures: int = Field(
        default=0, description="Hand-offs whose KV could not be used; the turn computed its prompt again."
    )
    local_appends: int = Field(default=0, description="Turns whose prompt the decode worker prefilled itself.")
    resumes: int = Field(
        default=0, description="Turns that went on from their tokens after their worker was lost, drained or updated."
    )
    lost_turns: int = Field(default=0, description="Turns that a bug of the gateway ended; its log has the trace.")
    prefix_broken: int = Field(
        default=0, description="Turns whose prompt does not go on from the trajectory's tokens: a new context began."
    )
    degraded_turns: int = Field(default=0, description="Turns served colocated because one side was missing.")


class ConsumerView(Message):
    """The trainer, as far as fetched trajectories and published weights tell."""

    update_seconds: float | None = Field(
        default=None, description="From a step's last fetched trajectories to newer weights, decaying average."
    )
    waiting_seconds: float | None = Field(
        default=None, description="Since its weights were published, while nothing was fetched; 0 = it trains."
    )
    ready_trajectories: int = Field(default=0, description="Finished in open batches, not fetched yet.")


class GatewayStats(Message):
    """One merged view of all gateway processes of a rollout; what the operator observes."""

    rollout: str
    uptime_seconds: float
    asked_seconds: float | None = Field(
        default=None,
        description="Since a turn, permit or batch was last asked for, or a turn ended; 0 while one runs. "
        "None = nothing since the start.",
    )
    profile: dict[str, Any] | None = Field(description="`pearl_planner.workload.profile` sketch; None = no turn seen.")
    profile_age_seconds: float | None = Field(description="Since the last record that went into the profile.")
    batch: BatchProgress | None = Field(description="The oldest open batch; None = unknown.")
    unfinished: list[TrajectoryProgress] = Field(description="Of that batch; at most 4096.")
    live: LiveStates
    workers: list[WorkerView]
    counters: Counters
    window: int | None = Field(description="In-flight window in force; None = unlimited.")
    local_append_tokens: int
    weights_wanted: int | None
    weights_min: int | None
    weights_max: int | None
    ages_at_consumption: dict[str, int] = Field(default_factory=dict, description="Age in versions → tokens.")
    refill: bool | None = Field(
        default=None,
        description="Whether trajectories of a later batch start before the one before is closed; None = not seen yet.",
    )
    consumer: ConsumerView | None = Field(default=None, description="None = a gateway that does not tell.")
