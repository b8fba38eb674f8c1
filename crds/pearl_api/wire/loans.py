"""The loan API of the operator (port 8090), called by the trainer SDK.

Identity, pod and node come from the projected ServiceAccount token (TokenReview), never from the body.

| method and path            | token                     | body → answer                        |
|----------------------------|---------------------------|--------------------------------------|
| POST /v1/loans/register    | ServiceAccount, projected | RegisterRequest → RegisterAnswer     |
| POST /v1/groups/register   | ServiceAccount, projected | GroupRequest → RegisterAnswer        |
| POST /v1/loans/access      | ServiceAccount, projected | AccessRequest → AccessAnswer         |
| POST {path}/lend           | loan                      | LendRequest → LendAnswer             |
| POST {path}/reclaiming     | loan                      | ReclaimingNotice → LoanView          |
| POST {path}/reclaimed      | loan                      | ReclaimedNotice → LoanView           |
| GET  {path}                | loan                      | → LoanView                           |
| DELETE {path}              | loan                      | → LoanView (phase Deregistered)      |

`{path}` is `RegisterAnswer.path`: `/v1/loans/NAMESPACE/POD` of one pod, `/v1/groups/NAMESPACE/GROUP` of a group.
`access` enrols nothing: it tells which strategy `register` would choose, and why not another.

A *group* is a trainer of several pods. Each GPU pod registers with `group` and then neither lends nor renews; the
driver, any pod of the namespace, registers the group and holds the one handle: it lends, renews at the agents of all
pods (each with its own token) and reclaims from all of them. All pods of a group are lent under the same epoch, all or
none.

All calls are idempotent: `register` by pod, `lend` by the `request_id`, `reclaimed` by epoch. Errors are `Problem`
with status 401 (token), 403 (may not lend), 404 (not enrolled), 409 (not as things are), 422 (body), 429 (too often;
`Retry-After`), 503 (not now).
"""

from typing import Final

from pydantic import Field

from pearl_api.base import Message

_MAX_EPOCH: Final = 1 << 53
_NAME: Final = 253
_LABEL: Final = r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"


class RegisterRequest(Message):
    """Enrols the calling pod as a lender."""

    rollout: str = Field(description="Name of the PearlRollout.")
    rollout_namespace: str | None = Field(default=None, description="Default: the operator's release namespace.")
    gpus: list[str] = Field(min_length=1, description="UUIDs of the GPUs that the pod lends.")
    group: str | None = Field(
        default=None,
        max_length=63,
        pattern=_LABEL,
        description="Pods of one trainer, lent and reclaimed together by its driver; this pod does not lend by itself.",
    )
    audience: str = Field(default="pearl", description="Audience of the presented token.")


class GroupRequest(Message):
    """The driver of a trainer of several pods takes the handle of all of them; it need not be a GPU pod itself."""

    rollout: str = Field(description="Name of the PearlRollout.")
    rollout_namespace: str | None = Field(default=None, description="Default: the operator's release namespace.")
    group: str = Field(max_length=63, pattern=_LABEL, description="What the GPU pods register with.")
    members: int = Field(ge=1, le=4096, description="How many GPU pods the group has; it is lent when all are there.")
    audience: str = Field(default="pearl", description="Audience of the presented token.")


class AgentEndpoint(Message):
    """Where the SDK reaches the agent of one borrower pod."""

    pod: str
    uid: str
    url: str | None = Field(default=None, description="None until the pod has an address.")
    token: str | None = Field(default=None, description="Loan token of this agent; None = that of the answer.")


class AccessOption(Message):
    """One way in which borrower pods may reach a trainer's GPUs: whether it is open to this pod, and why."""

    access: str = Field(description="`SharedClaim` or `VisibleDevices`.")
    possible: bool
    chosen: bool = Field(description="The loan uses it; at most one option is chosen.")
    reason: str = Field(description="Closed; see docs/access.md.")
    message: str = Field(description="One sentence; where it is not possible it says what to change.")


class AccessRequest(Message):
    """Asks how borrower pods would reach the calling pod's GPUs."""

    rollout: str = Field(description="Name of the PearlRollout.")
    rollout_namespace: str | None = Field(default=None, description="Default: the operator's release namespace.")


class AccessAnswer(Message):
    """Every strategy with its sentence; where none is chosen, `register` would be refused."""

    wanted: str = Field(description="`spec.capacity.borrowed.access` of the PearlRollout.")
    options: list[AccessOption]


class RegisterAnswer(Message):
    """The enrolled loan and everything the SDK needs to go on without the operator."""

    namespace: str
    name: str
    token: str = Field(description="Loan token for agents and loan API.")
    slots: int = Field(description="Borrower pods: floor(gpus / tensorParallel).")
    agents: list[AgentEndpoint]
    gateway_url: str
    gateway_token: str
    weights_source: str | None
    reclaim_seconds: float = Field(description="Default hard deadline of a reclaim.")
    heartbeat_seconds: float
    ttl_seconds: float
    epoch: int = Field(default=0, ge=0, description="Highest epoch so far; above 0 where this pod has lent before.")
    path: str | None = Field(
        default=None, description="Path of its further calls; None = `/v1/loans/NAMESPACE/NAME` (older operators)."
    )
    access: list[AccessOption] = Field(default_factory=list, description="How borrowers reach the GPUs, and why so.")


class LendRequest(Message):
    """Offers the GPUs; only a new request_id makes a new epoch."""

    request_id: str = Field(min_length=8, max_length=_NAME, description="Unique per lend; repeats are answered alike.")
    cap_seconds: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="The trainer wants them back by then."
    )
    after_epoch: int = Field(
        default=0,
        ge=0,
        le=_MAX_EPOCH,
        description="Highest epoch the trainer heard of; below the newest one the offer is out of date and refused.",
    )
    members: int | None = Field(
        default=None, ge=1, le=4096, description="Groups only: GPU pods that must have registered; as in GroupRequest."
    )


class LendAnswer(Message):
    """Granted or refused, with the reason."""

    epoch: int = Field(description="Of the grant; where no grant was tried, the highest so far.")
    granted: bool
    reason: str
    message: str = ""
    agents: list[AgentEndpoint]


class ReclaimingNotice(Message):
    """Tells the operator that a reclaim of `epoch` began, so that it routes and plans around it at once."""

    epoch: int = Field(ge=0, le=_MAX_EPOCH)
    within_seconds: float = Field(
        ge=0, allow_inf_nan=False, description="Hard deadline; 0 = nothing was lent, the offer is over."
    )


class ReclaimedNotice(Message):
    """Tells the operator what the agents answered; the operator only records it."""

    epoch: int = Field(ge=0, le=_MAX_EPOCH)
    free: bool
    killed: bool = False
    total_seconds: float = Field(ge=0, allow_inf_nan=False)
    kept: list[str] = Field(
        default_factory=list, description="Borrower pods whose GPUs are not known to be free; empty = all, or not told."
    )


class LoanView(Message):
    """A GPULoan, or a group of them, as the SDK sees it; a borrower pod that is not in `agents` no longer exists."""

    namespace: str
    name: str
    epoch: int
    phase: str
    agents: list[AgentEndpoint]
