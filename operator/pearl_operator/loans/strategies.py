"""The question how borrowers reach a trainer pod's GPUs, and the shape of its answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from pearl_api.loan import AccessExplanation
from pearl_api.wire.loans import AccessOption

if TYPE_CHECKING:
    from pearl_api.loan import LentClaim, LoanAccess
    from pearl_api.rollout import BorrowAccess
    from pearl_operator.loans.devices import Devices


class AccessReason(StrEnum):
    """Why a strategy is used or not; closed, documented in docs/access.md."""

    CHOSEN = "Chosen"
    POSSIBLE = "Possible"
    # SharedClaim
    API_MISSING = "ApiMissing"
    NO_DEVICE_CLASS = "NoDeviceClass"
    NO_CLAIM = "NoClaim"
    UNREADABLE = "Unreadable"
    CLAIM_NOT_ALLOCATED = "ClaimNotAllocated"
    EXTENDED_RESOURCE = "ExtendedResource"
    ADMIN_ACCESS = "AdminAccess"
    DEVICE_DIVIDED = "DeviceDivided"
    CLAIM_FULL = "ClaimFull"
    GPUS_NOT_IN_CLAIM = "GpusNotInClaim"
    GPUS_UNKNOWN = "GpusUnknown"
    REQUEST_TOO_WIDE = "RequestTooWide"
    # VisibleDevices
    NAMESPACE_NOT_ALLOWED = "NamespaceNotAllowed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Everything that the answer depends on.

    Args:
        namespace: Of the trainer pod.
        pod: Its name.
        wanted: `spec.capacity.borrowed.access`.
        gpus: UUIDs that it lends; None = not said yet: all that it holds.
        parallel: GPUs of one borrower (`spec.engine.tensorParallel`).
        devices: What the cluster says about its devices.
        visible_allowed: The namespace may use VisibleDevices.
        overlap_seconds: Longest time that an engine outlives its trainer pod: lease and kill.
    """

    namespace: str
    pod: str
    wanted: BorrowAccess
    gpus: tuple[str, ...] | None
    parallel: int
    devices: Devices
    visible_allowed: bool
    overlap_seconds: float


@dataclass(frozen=True, slots=True)
class Option:
    """One strategy."""

    access: LoanAccess
    possible: bool
    reason: AccessReason
    message: str
    chosen: bool = False

    def wire(self) -> AccessOption:
        """As the loan API answers it."""
        return AccessOption(
            access=self.access.value,
            possible=self.possible,
            chosen=self.chosen,
            reason=self.reason.value,
            message=self.message,
        )

    def record(self) -> AccessExplanation:
        """As the GPULoan keeps it."""
        return AccessExplanation.model_validate(self.wire().model_dump())


@dataclass(frozen=True, slots=True)
class Access:
    """The answer: every strategy, at most one of them chosen."""

    options: tuple[Option, ...]
    gpus: tuple[str, ...]
    """The lent GPUs, those of one request next to each other."""
    claims: tuple[LentClaim, ...] = ()
    """With SharedClaim: what the borrowers name."""

    @property
    def chosen(self) -> LoanAccess | None:
        """The strategy of the loan; None where the wanted one is not possible."""
        return next((option.access for option in self.options if option.chosen), None)


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a strategy is not possible, and what to change."""

    reason: AccessReason
    message: str
