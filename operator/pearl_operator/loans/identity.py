"""Who calls: the pod that a projected ServiceAccount token is bound to, as the API server reviews it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from pearl_operator import kinds
from pearl_operator.loans.problems import LoanProblem, LoanReason

if TYPE_CHECKING:
    from pearl_operator.ports import Kube

AUDIENCE: Final = "pearl"
_ACCOUNT: Final = re.compile(r"system:serviceaccount:(?P<namespace>[^:]+):[^:]+")
_PREFIX: Final = "authentication.kubernetes.io/"
_HOW: Final = (
    "mount a projected ServiceAccount token (volume source `serviceAccountToken` with audience `pearl`) "
    "in the trainer pod"
)


@dataclass(frozen=True, slots=True)
class Caller:
    """A trainer pod; `node` is None where the API server does not say."""

    namespace: str
    pod: str
    uid: str
    node: str | None


async def review(kube: Kube, token: str) -> Caller:
    """The pod behind a token.

    Raises:
        LoanProblem: the token is not valid for PEARL, or bound to no pod.
        RetryAfter: the API server did not answer.
    """
    body = {
        "apiVersion": kinds.TOKEN_REVIEW.api_version,
        "kind": kinds.TOKEN_REVIEW.kind,
        "metadata": {},
        "spec": {"token": token, "audiences": [AUDIENCE]},
    }
    reviewed = await kube.create(kinds.TOKEN_REVIEW, body)
    return caller_of(reviewed.get("status") or {})


def caller_of(status: dict[str, Any]) -> Caller:
    """Reads the status of a TokenReview; raises LoanProblem as `review` does."""
    if not status.get("authenticated") or AUDIENCE not in (status.get("audiences") or []):
        said = status.get("error") or "it is not valid for the audience `pearl`"
        raise LoanProblem(
            LoanReason.NOT_AUTHENTICATED, f"the token was refused ({said}): {_HOW}", HTTPStatus.UNAUTHORIZED
        )
    user = status.get("user") or {}
    extra = user.get("extra") or {}
    pod, uid = _first(extra, "pod-name"), _first(extra, "pod-uid")
    account = _ACCOUNT.fullmatch(user.get("username") or "")
    if pod is None or uid is None or account is None:
        raise LoanProblem(LoanReason.NOT_A_POD, f"the token is bound to no pod: {_HOW}", HTTPStatus.UNAUTHORIZED)
    return Caller(namespace=account["namespace"], pod=pod, uid=uid, node=_first(extra, "node-name"))


def _first(extra: dict[str, Any], name: str) -> str | None:
    values = extra.get(_PREFIX + name) or []
    return values[0] if values else None
