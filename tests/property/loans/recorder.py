"""The operator as far as the protocol needs it: the real record of a GPULoan, stored before any agent hears of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pearl_api.loan import GPULoanSpec, GPULoanStatus, LoanSlot, PodRef, RolloutRef
from pearl_api.wire.loans import ReclaimedNotice
from pearl_operator.facts import LoanFact
from pearl_operator.loans import record
from pearl_operator.ports import RolloutKey
from pearl_trainer.sansio import Reply, Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from flows import Message

TTL_SECONDS = 8.0
BASE = "http://operator"
SPEC = GPULoanSpec(
    trainer=PodRef(name="trainer", uid="u"),
    node="n",
    gpus=["GPU-a", "GPU-b"],
    rollout_ref=RolloutRef(name="r", namespace="p"),
)


@dataclass
class Grant:
    """A lend that waits for the agents."""

    message: Message
    request_id: str
    epoch: int
    waiting: set[str]
    deadline: float
    refused: bool = False


@dataclass
class Operator:
    """One process over what the API server keeps; `restart` loses the rest."""

    agents: tuple[str, ...]
    clock: Callable[[], float]
    answer: Callable[[Message, Any], None]
    send: Callable[[Request, Callable[[Any], None]], None]
    up: bool = True
    grants_offers: bool = True
    status: GPULoanStatus = field(default_factory=GPULoanStatus)
    """Stored in the API server."""
    epochs: list[int] = field(default_factory=list)
    """Every epoch that was stored."""
    _answers: dict[str, Any] = field(default_factory=dict)
    _grant: Grant | None = None

    def __post_init__(self) -> None:
        slots = [LoanSlot(pod=name) for name in self.agents]
        self.status = record.enrolled(GPULoanStatus(), slots, gpus=len(self.agents))

    @property
    def busy(self) -> bool:
        """A call that changes the loan holds its lock."""
        return self._grant is not None

    def restart(self) -> None:
        self._answers, self._grant = {}, None

    def receive(self, message: Message) -> None:
        """One request of the trainer."""
        body, call = message.request.body or {}, message.request.url.rsplit("/", 1)[-1]
        if call == "register":
            self.answer(message, Reply(200, self._registration()))
        elif call == "lend":
            self._lend(message, body)
        elif message.request.method == "POST":
            now = self.clock()
            if call == "reclaiming":
                self._store(record.reclaiming(self.status, body["epoch"], now=now))
            else:
                self._store(record.reclaimed(self.status, ReclaimedNotice.model_validate(body), now=now))
            self.answer(message, Reply(200, self._view()))
        else:
            self.answer(message, Reply(200, self._view()))

    def _store(self, status: GPULoanStatus) -> None:
        if status.epoch != self.status.epoch:
            self.epochs.append(status.epoch)
        self.status = status

    def _lend(self, message: Message, body: dict[str, Any]) -> None:
        request_id = body["requestId"]
        if request_id in self._answers:
            self.answer(message, Reply(200, self._answers[request_id]))
            return
        before = record.answered_before([self._fact()], request_id)
        stale = before is None and self.status.epoch > body.get("afterEpoch", 0)
        if before is record.Before.OVER or stale or not self.grants_offers:
            self._tell(message, request_id, granted=False)
            return
        if before is None:
            offered = record.offered(
                self.status, request_id=request_id, cap_seconds=None, reason="Granted", now=self.clock()
            )
            epoch = max(self.status.epoch, body.get("afterEpoch", 0)) + 1
            self._store(record.granting(offered, epoch, now=self.clock()))
        self._grant = Grant(message, request_id, self.status.epoch, set(self.agents), self.clock() + 2.0)
        for name in self.agents:
            body = {"epoch": self.status.epoch, "ttlSeconds": TTL_SECONDS}
            request = Request("POST", f"http://{name}/v1/loan/grant", None, body, 2.0, 1.0)
            self.send(request, self._granted(self._grant, name))

    def _granted(self, grant: Grant, name: str) -> Callable[[Any], None]:
        def heard(outcome: Any) -> None:
            grant.waiting.discard(name)
            grant.refused |= not (isinstance(outcome, Reply) and outcome.status == 200)
            if self._grant is grant and not grant.waiting:
                self._end(grant)

        return heard

    def next_timer(self) -> float | None:
        return None if self._grant is None else self._grant.deadline

    def tick(self) -> None:
        """Agents that do not answer in time refuse."""
        if self._grant is not None and self.clock() >= self._grant.deadline:
            self._grant.refused = True
            self._end(self._grant)

    def _end(self, grant: Grant) -> None:
        self._grant = None
        self._tell(grant.message, grant.request_id, granted=not grant.refused)

    def _tell(self, message: Message, request_id: str, *, granted: bool) -> None:
        reason = "Granted" if granted else "AgentUnavailable"
        agents = self._view()["agents"]
        answer = {"epoch": self.status.epoch, "granted": granted, "reason": reason, "agents": agents}
        self._answers[request_id] = answer
        self.answer(message, Reply(200, answer))

    def _fact(self) -> LoanFact:
        return LoanFact(
            namespace="n",
            name="trainer",
            uid="u",
            resource_version="1",
            deleting=False,
            rollout=RolloutKey("p", "r"),
            spec=SPEC,
            status=self.status,
        )

    def _view(self) -> dict[str, Any]:
        agents = [{"pod": name, "uid": name, "url": f"http://{name}"} for name in self.agents]
        phase = self.status.phase.value
        return {"namespace": "n", "name": "trainer", "epoch": self.status.epoch, "phase": phase, "agents": agents}

    def _registration(self) -> dict[str, Any]:
        return {
            **self._view(),
            "token": "t",
            "slots": len(self.agents),
            "gatewayUrl": "http://gateway",
            "gatewayToken": "g",
            "weightsSource": None,
            "reclaimSeconds": 10.0,
            "heartbeatSeconds": 1.0,
            "ttlSeconds": TTL_SECONDS,
        }
