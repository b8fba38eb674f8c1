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
    SUPERSEDED = "Superseded"
    WITHDRAWN = "Withdrawn"
    """The trainer took its GPUs back while the offer waited."""
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
    BUSY = "Busy"


class LoanProblem(Exception):  # noqa: N818 - named for the wire message that it becomes
    """A call that cannot be done.

    Args:
        reason: Closed reason.
        message: What is wrong and what to change.
        status: HTTP status of the answer.
    """

    def __init__(self, reason: LoanReason, message: str, status: HTTPStatus = HTTPStatus.UNPROCESSABLE_ENTITY) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.status = status
