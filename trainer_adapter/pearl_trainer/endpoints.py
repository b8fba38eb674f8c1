"""The requests of the loan protocol: which URL, token, body and timeout each call has."""

from __future__ import annotations

from dataclasses import dataclass

from pearl_trainer.messages import (
    AccessRequest,
    AgentEndpoint,
    GroupRequest,
    HeartbeatRequest,
    LendRequest,
    ReclaimedNotice,
    ReclaimingNotice,
    ReclaimRequest,
    RegisterAnswer,
    RegisterRequest,
)
from pearl_trainer.sansio import Request

REGISTER_SECONDS = 15.0
LEND_SECONDS = 6.0
"""The operator itself waits at most 3 s for its planner, then 2 s for the agents."""
NOTICE_SECONDS = 1.0
HEARTBEAT_SECONDS = 1.0
CONNECT_SECONDS = 1.0
ANSWER_MARGIN_SECONDS = 0.1
"""An agent is asked to be done this much before the trainer's own deadline: the answer needs its way back."""


@dataclass(frozen=True)
class LoanApi:
    """The operator's loan API for one registered loan."""

    base: str
    registration: RegisterAnswer

    def lend(self, message: LendRequest) -> Request:
        """Offers the GPUs."""
        return self._request("POST", "/lend", message.to_wire(), LEND_SECONDS)

    def reclaiming(self, message: ReclaimingNotice) -> Request:
        """Tells that a reclaim began."""
        return self._request("POST", "/reclaiming", message.to_wire(), NOTICE_SECONDS)

    def reclaimed(self, message: ReclaimedNotice) -> Request:
        """Tells how a reclaim ended."""
        return self._request("POST", "/reclaimed", message.to_wire(), NOTICE_SECONDS)

    def view(self, within_seconds: float = NOTICE_SECONDS) -> Request:
        """Asks what is recorded, and which borrower pods exist."""
        return self._request("GET", "", None, min(within_seconds, NOTICE_SECONDS))

    def deregister(self) -> Request:
        """Ends the enrolment."""
        return self._request("DELETE", "", None, REGISTER_SECONDS)

    def _request(self, method: str, tail: str, body: dict[str, object] | None, timeout: float) -> Request:
        loan = self.registration
        path = loan.path or f"/v1/loans/{loan.namespace}/{loan.name}"
        return Request(method, f"{self.base}{path}{tail}", loan.token, body, timeout, min(CONNECT_SECONDS, timeout))


def register(
    base: str, token: str, message: RegisterRequest | GroupRequest, within_seconds: float = REGISTER_SECONDS
) -> Request:
    """Enrols this pod, or takes the handle of a group; the token is the projected one."""
    kind = "groups" if isinstance(message, GroupRequest) else "loans"
    seconds = min(within_seconds, REGISTER_SECONDS)
    return Request("POST", f"{base}/v1/{kind}/register", token, message.to_wire(), seconds)


def access(base: str, token: str, message: AccessRequest) -> Request:
    """Asks how borrowers would reach this pod's GPUs; enrols nothing."""
    return Request("POST", f"{base}/v1/loans/access", token, message.to_wire(), REGISTER_SECONDS)


def heartbeat(agent: AgentEndpoint, token: str, epoch: int) -> Request:
    """Renews the loan at one agent; `token` is for agents that have none of their own."""
    body = HeartbeatRequest(epoch).to_wire()
    return Request(
        "POST", f"{agent.url}/v1/loan/heartbeat", agent.token or token, body, HEARTBEAT_SECONDS, CONNECT_SECONDS
    )


def reclaim(agent: AgentEndpoint, token: str, epoch: int, remaining_seconds: float) -> Request:
    """Takes one GPU back within the remaining time."""
    within = max(remaining_seconds - ANSWER_MARGIN_SECONDS, remaining_seconds / 2)
    body = ReclaimRequest(epoch, within).to_wire()
    connect = min(CONNECT_SECONDS, remaining_seconds)
    return Request("POST", f"{agent.url}/v1/loan/reclaim", agent.token or token, body, remaining_seconds, connect)
