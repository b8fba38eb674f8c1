"""Refusals of the loan API: a closed reason, a status, and a sentence that says what to change."""

from __future__ import annotations

from enum import StrEnum
from http import HTTPStatus


class LoanReason(StrEnum):
    """Why a call of the loan API or an offer was refused, or that it was granted; closed, documented for users."""

    # answers to offers
    GRANTED = "Granted"
    NO_ANSWER = "NoAnswer"
    """The planner gave no answer in time; the trainer's SDK offers again."""
    BORROWERS_STARTING = "BorrowersStarting"
    COOLING_DOWN = "CoolingDown"
    AGENT_UNAVAILABLE = "AgentUnavailable"
    GROUP_INCOMPLETE = "GroupIncomplete"
    SUPERSEDED = "Superseded"
    WITHDRAWN = "Withdrawn"
    """The trainer took its GPUs back while the offer waited."""
    # ends of loans that nobody asked for
    BORROWERS_GONE = "BorrowersGone"
    """No borrower pod of the loan exists any more: deleted by hand, evicted, or gone with its node."""
    # refused calls
    NOT_AUTHENTICATED = "NotAuthenticated"
    NOT_A_POD = "NotAPod"
    WRONG_TOKEN = "WrongToken"  # noqa: S105 - a reason
    NOT_A_TRAINER_NAMESPACE = "NotATrainerNamespace"
    TRAINER_NOT_SELECTED = "TrainerNotSelected"
    TRAINER_POD_GONE = "TrainerPodGone"
    NAME_TOO_LONG = "NameTooLong"
    ROLLOUT_NOT_FOUND = "RolloutNotFound"
    ROLLOUT_INVALID = "RolloutInvalid"
    BORROWING_DISABLED = "BorrowingDisabled"
    TOO_FEW_GPUS = "TooFewGpus"
    TOO_MANY_GPUS = "TooManyGpus"
    GPU_ALREADY_ENROLLED = "GpuAlreadyEnrolled"
    ENROLLED_DIFFERENTLY = "EnrolledDifferently"
    LOAN_NOT_FOUND = "LoanNotFound"
    ACCESS_NOT_SUPPORTED = "AccessNotSupported"
    LOANS_DISABLED = "LoansDisabled"
    INVALID_BORROWER = "InvalidBorrower"
    WRONG_NODE = "WrongNode"
    UNKNOWN_GPU = "UnknownGpu"
    MEMBER_OF_GROUP = "MemberOfGroup"
    GROUP_OF_ANOTHER_ROLLOUT = "GroupOfAnotherRollout"
    GROUP_NOT_FOUND = "GroupNotFound"
    INVALID_BODY = "InvalidBody"
    TOO_MANY_CALLS = "TooManyCalls"
    BUSY = "Busy"
    REFUSED = "Refused"
    """The API server does not take what had to be written; the message is its own."""


class LoanProblem(Exception):  # noqa: N818 - named for the wire message that it becomes
    """A call that cannot be done.

    Args:
        reason: Closed reason.
        message: What is wrong and what to change.
        status: HTTP status of the answer.
        retry_after_seconds: When the same call may succeed; None = not by waiting.
    """

    def __init__(
        self,
        reason: LoanReason,
        message: str,
        status: HTTPStatus = HTTPStatus.UNPROCESSABLE_ENTITY,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.status = status
        self.retry_after_seconds = retry_after_seconds
