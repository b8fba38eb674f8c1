"""The loan API of the operator (port 8090), called by the trainer SDK.

Identity, pod and node come from the projected ServiceAccount token (TokenReview), never from the body.

| method and path                  | token                     | body → answer                        |
|----------------------------------|---------------------------|--------------------------------------|
| POST /v1/loans/register          | ServiceAccount, projected | RegisterRequest → RegisterAnswer     |
| POST /v1/loans/access            | ServiceAccount, projected | AccessRequest → AccessAnswer         |
| POST /v1/loans/{ns}/{name}/lend  | loan                      | LendRequest → LendAnswer             |
| POST /v1/loans/{ns}/{name}/reclaiming | loan                 | ReclaimingNotice → LoanView          |
| POST /v1/loans/{ns}/{name}/reclaimed | loan                  | ReclaimedNotice → LoanView           |
| GET  /v1/loans/{ns}/{name}       | loan                      | → LoanView                           |
| DELETE /v1/loans/{ns}/{name}     | loan                      | → LoanView (phase Deregistered)      |

`access` enrols nothing: it tells which strategy `register` would choose, and why not another.
All calls are idempotent: `register` by pod, `lend` by the `request_id`, `reclaimed` by epoch.
"""

from pydantic import Field

from pearl_api.base import Message


class RegisterRequest(Message):
    """Enrols the calling pod as a lender."""

    rollout: str = Field(description="Name of the PearlRollout.")
    rollout_namespace: str | None = Field(default=None, description="Default: the operator's release namespace.")
    gpus: list[str] = Field(min_length=1, description="UUIDs of the GPUs that the pod lends.")
    group: str | None = Field(default=None, description="Trainers of one job; lent and reclaimed together.")
    audience: str = Field(default="pearl", description="Audience of the presented token.")


class AgentEndpoint(Message):
    """Where the SDK reaches the agent of one borrower pod."""

    pod: str
    uid: str
    url: str | None = Field(default=None, description="None until the pod has an address.")


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
    access: list[AccessOption] = Field(default_factory=list, description="How borrowers reach the GPUs, and why so.")


class LendRequest(Message):
    """Offers the GPUs; only a new request_id makes a new epoch."""

    request_id: str = Field(min_length=8, description="Unique per lend; repeats are answered alike.")
    cap_seconds: float | None = Field(default=None, gt=0, description="The trainer wants them back by then.")
    after_epoch: int = Field(
        default=0, ge=0, description="Highest epoch the trainer heard of or fenced; a grant's epoch is above it."
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

    epoch: int
    within_seconds: float = Field(ge=0, description="Hard deadline; 0 = nothing was lent, the offer is over.")


class ReclaimedNotice(Message):
    """Tells the operator what the agents answered; the operator only records it."""

    epoch: int
    free: bool
    killed: bool = False
    total_seconds: float


class LoanView(Message):
    """A GPULoan as the SDK sees it."""

    namespace: str
    name: str
    epoch: int
    phase: str
    agents: list[AgentEndpoint]
