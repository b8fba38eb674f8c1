"""The worker agent's HTTP interface (port 8001, PID 1 of the worker container).

| method and path           | caller             | token | body → answer                        |
|---------------------------|--------------------|-------|--------------------------------------|
| GET  /healthz             | kubelet            | –     | 200 while the agent's loop runs      |
| GET  /readyz              | kubelet            | –     | 200 when the engine served a token   |
| GET  /metrics             | Prometheus         | –     | text                                 |
| GET  /v1/state            | operator, gateway  | agent | → WorkerState                        |
| GET  /v1/steps            | operator, people   | agent | → recorded engine steps              |
| POST /v1/activity         | operator           | agent | ActivityRequest → WorkerState        |
| POST /v1/weights/poke     | operator, SDK      | agent | → WorkerState                        |
| POST /v1/engine/report    | gateway            | agent | EngineReport → WorkerState           |
| POST /v1/loan/grant       | operator           | agent | GrantRequest → LoanState             |
| POST /v1/loan/heartbeat   | trainer SDK        | loan  | HeartbeatRequest → LoanState         |
| POST /v1/loan/reclaim     | trainer SDK        | loan  | ReclaimRequest → ReclaimAnswer       |

Errors are `Problem` with status 401 (token), 409 (an older epoch, or fenced), 422 (body), 503 (not now).
Times are *remaining seconds*, measured on the receiver's monotonic clock.
"""

from enum import StrEnum

from pydantic import Field

from pearl_api.base import Message
from pearl_api.names import Activity


class WorkerPhase(StrEnum):
    """State of a worker as its agent sees it."""

    COLD = "Cold"  # the agent is up, the engine was never started
    STARTING = "Starting"  # engine process starting, or restarting after a crash
    WAKING = "Waking"  # memory check, wake-up, weights and canary under way
    READY = "Ready"  # served a token under acceptable weights
    DRAINING = "Draining"  # finishes what it has, takes nothing new
    ASLEEP = "Asleep"
    WEIGHTS_FAILED = "WeightsFailed"  # a load failed; out of service until repaired or restarted
    STOPPED = "Stopped"  # engine killed on purpose: reclaimed or shutting down


class LoanState(Message):
    """A loan as the agent of one borrower pod sees it."""

    epoch: int = Field(ge=0, description="Highest loan epoch seen; 0 = none.")
    fenced: bool = Field(description="No engine may run until a higher epoch is granted.")
    granted: bool = Field(description="A live grant exists.")
    ttl_seconds: float | None = Field(default=None, description="Remaining time of the grant without a heartbeat.")
    memory_free: bool | None = Field(default=None, description="Device memory is back at its baseline; None = unread.")


class WorkerState(Message):
    """What `GET /v1/state` answers."""

    pod_uid: str
    phase: WorkerPhase
    activity: Activity
    engine_starts: int = Field(ge=0, description="How often this agent started an engine.")
    engine_pid: int | None = None
    weight_version: int | None = Field(default=None, description="Loaded version; 0 = model.uri; None = no engine.")
    wanted_version: int | None = Field(default=None, description="Version in the manifest; None = not read yet.")
    message: str = Field(default="", description="Why it is in this phase, for people.")
    start_seconds: float | None = Field(default=None, description="Measured duration of the last engine start.")
    weight_load_seconds: float | None = Field(default=None, description="The same of the last weight update.")
    wake_seconds: float | None = Field(default=None, description="The same of the last wake-up, weights included.")
    kill_seconds: float | None = Field(default=None, description="The longest kill of an engine so far.")
    loan: LoanState | None = Field(default=None, description="Only on borrower pods.")


class ActivityRequest(Message):
    """Asks the agent to drain, sleep or be active again; repeated calls are harmless."""

    activity: Activity
    deadline_seconds: float = Field(default=60.0, gt=0, description="After this, in-flight requests are aborted.")


class EngineReport(Message):
    """The gateway saw a fault that only a restart mends, for example stuck KV transfers."""

    kind: str = Field(description="`stuckTransfers` or `wrongAnswer`.")
    detail: str = ""


class GrantRequest(Message):
    """The operator grants loan `epoch`: the agent may start or wake its engine."""

    epoch: int = Field(ge=1)
    ttl_seconds: float = Field(gt=0, description="Life of the grant without a heartbeat of the trainer.")


class HeartbeatRequest(Message):
    """The trainer renews loan `epoch`; expected every second."""

    epoch: int = Field(ge=1)


class ReclaimRequest(Message):
    """The trainer wants its GPUs back; fences `epoch`."""

    epoch: int = Field(ge=1)
    within_seconds: float = Field(gt=0, description="Hard deadline.")


class ReclaimAnswer(Message):
    """Result of a reclaim.

    `free` only if the device was read and its memory is back, or nothing was granted since it last was.
    """

    epoch: int
    free: bool
    killed: bool = Field(description="The engine had to be killed.")
    aborted_requests: int | None = None
    drain_seconds: float
    sleep_seconds: float
    total_seconds: float
    message: str = ""


class Problem(Message):
    """Body of every error answer of agent and loan API; the gateway answers as OpenAI clients expect."""

    error: str = Field(description="Closed reason, CamelCase.")
    message: str = Field(description="What is wrong and what to change.")
    retry_after_seconds: float | None = None
