"""The GPULoan custom resource: one long-lived object per trainer pod that lends GPUs."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from pearl_api.base import Model
from pearl_api.conditions import Condition


class LoanPhase(StrEnum):
    """Life of a loan: Idle → Offered → Granted → Waking → Serving → Draining → Asleep → CoolingDown → Idle."""

    IDLE = "Idle"
    OFFERED = "Offered"
    GRANTED = "Granted"
    WAKING = "Waking"
    SERVING = "Serving"
    DRAINING = "Draining"
    ASLEEP = "Asleep"
    COOLING_DOWN = "CoolingDown"
    DEREGISTERED = "Deregistered"
    LOST = "Lost"


class PodRef(Model):
    """A pod by name and UID."""

    name: str = Field(max_length=253, description="Name of the pod.")
    uid: str = Field(max_length=64, description="UID of the pod; a pod of the same name is another pod.")


class RolloutRef(Model):
    """The PearlRollout that borrows."""

    name: str = Field(max_length=253, description="Name of the PearlRollout.")
    namespace: str = Field(max_length=63, description="Namespace of the PearlRollout.")


class LoanAccess(StrEnum):
    """How the borrowers of a loan reach its GPUs; see docs/access.md."""

    SHARED_CLAIM = "SharedClaim"
    VISIBLE_DEVICES = "VisibleDevices"


class LentClaim(Model):
    """Devices of one request of a ResourceClaim that trainer and borrower pods share."""

    name: str = Field(max_length=253, description="Name of the ResourceClaim.")
    request: str | None = Field(default=None, max_length=63, description="Request in it; absent: all of them.")
    gpus: list[Annotated[str, Field(max_length=128)]] = Field(
        default_factory=list, max_length=64, description="UUIDs of its GPUs; empty: the driver does not publish them."
    )


class GPULoanSpec(Model):
    """What was enrolled; immutable."""

    trainer: PodRef
    node: str = Field(max_length=253, description="Where the trainer pod runs, and so its borrowers.")
    gpus: list[Annotated[str, Field(max_length=128)]] = Field(
        min_length=1, max_length=64, description="UUIDs of the lent GPUs."
    )
    rollout_ref: RolloutRef
    group: str | None = Field(
        default=None, max_length=253, description="Trainers of one job; lent and reclaimed together."
    )
    access: LoanAccess = LoanAccess.VISIBLE_DEVICES
    claims: list[LentClaim] = Field(
        default_factory=list, max_length=64, description="With SharedClaim: what the borrower pods name too."
    )


class LoanSlot(Model):
    """One borrower pod."""

    pod: str
    uid: str | None = None
    phase: str = "Cold"


class PastLoan(Model):
    """One of the last five loans, with its phase timings in seconds."""

    epoch: int
    granted_seconds: float | None = None
    waking_seconds: float | None = None
    serving_seconds: float | None = None
    reclaim_seconds: float | None = None
    free: bool | None = None
    killed: bool | None = None


class AccessExplanation(Model):
    """Whether borrowers could reach the GPUs this way, and why."""

    access: LoanAccess
    possible: bool
    chosen: bool
    reason: str
    message: str = Field(max_length=1024, description="One sentence; says what to change where it is not possible.")


class GPULoanStatus(Model):
    """What the operator recorded; the agents enforce."""

    epoch: int = 0
    phase: LoanPhase = LoanPhase.IDLE
    gpus: int | None = Field(default=None, description="How many GPUs are lent; the length of `spec.gpus`.")
    request_id: str | None = Field(default=None, description="Of the last lend; makes repeats harmless.")
    reason: str | None = Field(default=None, description="Why the last lend was granted or refused.")
    offered_at: str | None = None
    granted_at: str | None = None
    serving_at: str | None = None
    cap_seconds: float | None = None
    idle_seconds: float | None = Field(
        default=None, description="Decaying average of how long the trainer leaves its GPUs idle, lent or refused."
    )
    slots: list[LoanSlot] = Field(default_factory=list)
    access: list[AccessExplanation] = Field(
        default_factory=list, max_length=2, description="Every way to reach the GPUs, and why it is used or not."
    )
    history: list[PastLoan] = Field(default_factory=list, max_length=5)
    conditions: list[Condition] = Field(default_factory=list)


class GPULoan(Model):
    """GPUs of one trainer pod, lent to one rollout between updates."""

    spec: GPULoanSpec
    status: GPULoanStatus = GPULoanStatus()
