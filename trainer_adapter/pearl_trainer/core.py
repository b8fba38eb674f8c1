"""The loan of one trainer pod, or of all pods of a group, as flows: enrol, offer, renew, leave (`reclaim` takes back).

PEARL being absent or broken never stops training: an offer that fails is an answer with a reason, and a reclaim
needs the agents alone. Agent addresses and the loan token are kept from enrolment and refreshed by every answer.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from pearl_trainer import endpoints
from pearl_trainer.errors import ConfigurationError, NotReturned, PearlError, ProtocolError, Rejected, Unavailable
from pearl_trainer.lease import Lease
from pearl_trainer.messages import (
    AgentEndpoint,
    GroupRequest,
    LendAnswer,
    LendRequest,
    ReclaimingNotice,
    RegisterAnswer,
    RegisterRequest,
)
from pearl_trainer.reclaim import Free, Reclaim
from pearl_trainer.sansio import Flow, Reply, Request, Send, Sleep, Spawn, Together, call, send
from pearl_trainer.usage import IDLE, LENT, TRAINING, Meter

if TYPE_CHECKING:
    from collections.abc import Callable

    from pearl_trainer.gpus import MemoryProbe

log = logging.getLogger("pearl_trainer")

OFFER_SECONDS = 2.0
"""Between two offers while the trainer waits and the last one was refused."""
LEAST_CAP_SECONDS = 1.0
"""Told where a trainer still offers what it wanted back by now."""
COOLING_DOWN, SUPERSEDED = "CoolingDown", "Superseded"
"""Refusals that end by themselves within a second or so, or with what was learned from them: the next heartbeat offers
again."""
EARLIER_SECONDS = 30.0
"""How long an earlier process of this pod may have lent after this one began: its lease, and what its agents take to
end their engines, of rollouts whose `reclaimSeconds` is at most 16. Nothing in a pod proves that there was none: disks
are new after a restart, and this process may be older than the end of the one that it follows (pools, `exec`)."""
NOT_FOUND = 404


@dataclass(frozen=True)
class LendResult:
    """What became of an offer; `reason` is closed and CamelCase, `message` is for people."""

    granted: bool
    reason: str
    message: str = ""
    epoch: int = 0


@dataclass(frozen=True)
class Identity:
    """Who enrols: where the operator is, how to prove who this pod is, and what it lends."""

    operator_url: str | None
    token: Callable[[], str]
    request: RegisterRequest | GroupRequest

    @property
    def members(self) -> int | None:
        """Pods that must have registered before anything is lent; None where the loan is of this pod alone."""
        return self.request.members if isinstance(self.request, GroupRequest) else None


class LoanCore:
    """One enrolled (or not yet enrolled) loan.

    Args:
        identity: Who enrols.
        clock: Seconds that never go back.
        new_id: A fresh unique string at each call.
        probe: Reads the pod's GPUs.
    """

    def __init__(
        self, identity: Identity, *, clock: Callable[[], float], new_id: Callable[[], str], probe: MemoryProbe
    ) -> None:
        self._identity = identity
        self._clock = clock
        self._new_id = new_id
        self._probe = probe
        self._lease = Lease()
        self._api: endpoints.LoanApi | None = None
        self._began = clock()
        self._enrolled = False
        self._wanted_at: float | None = None
        self._next_offer = 0.0
        self._last_warning = ""
        self.meter = Meter(clock)

    @property
    def registration(self) -> RegisterAnswer | None:
        """What enrolling answered last; None while PEARL was never reached."""
        return self._api.registration if self._api else None

    @property
    def lent(self) -> bool:
        """A grant is in force and not taken back."""
        return self._lease.lent

    @property
    def epoch(self) -> int:
        """Highest loan epoch heard of; 0 = none."""
        return self._lease.epoch

    def enrol(self, within_seconds: float = endpoints.REGISTER_SECONDS) -> Flow[None]:
        """Enrols once; PEARL out of reach (for so long) leaves the loan not enrolled, and each offer tries again.

        Raises:
            Rejected: the operator says what is wrong with the request.
            ConfigurationError: the identity token cannot be read.
        """
        base = self._identity.operator_url
        if base is None:
            self._warn("PEARL_OPERATOR_URL is not set: training goes on, and nothing is lent")
            return
        request = endpoints.register(base, self._identity.token(), self._identity.request, within_seconds)
        try:
            answer = RegisterAnswer.from_wire((yield from call(request)))
        except (Unavailable, ProtocolError) as error:
            self._warn(f"cannot enrol with PEARL, training goes on: {error}")
            return
        self._api, self._enrolled = endpoints.LoanApi(base, answer), True
        self._lease.enrolled(answer)
        log.info("enrolled as %s/%s with %d borrower(s)", answer.namespace, answer.name, answer.slots)

    def _enrol_again(self, within_seconds: float = endpoints.REGISTER_SECONDS) -> Flow[None]:
        try:
            yield from self.enrol(within_seconds)
        except PearlError as error:
            # The script's own mistakes were raised at its start; by now training must not end for anything here.
            self._warn(f"cannot enrol with PEARL, training goes on: {error}")

    def _warn(self, message: str) -> None:
        # Offers repeat every two seconds; the same trouble is said once.
        if message != self._last_warning:
            log.warning("%s", message)
        self._last_warning = message

    def lend(self, cap_seconds: float | None = None) -> Flow[LendResult]:
        """Offers the GPUs now; while refused, `keep` goes on offering until they are reclaimed.

        Raises:
            ConfigurationError: `cap_seconds` is not above 0.
        """
        if cap_seconds is not None and not cap_seconds > 0:
            raise ConfigurationError(f"cap_seconds is {cap_seconds}: pass seconds above 0, or None for no limit")
        self._wanted_at = None if cap_seconds is None else self._clock() + cap_seconds
        if self._lease.over:  # an engine that still runs under an earlier offer is no part of the trainer's own use
            self._probe.remember()
        self.meter.mark(IDLE)
        self._lease.want()
        return (yield from self._offer())

    def _offer(self) -> Flow[LendResult]:
        if not self._enrolled:
            yield from self._enrol_again()
        ticket = self._lease.offering() if self._enrolled else None
        if self._api is None or ticket is None:
            self._next_offer = self._clock() + OFFER_SECONDS
            return LendResult(granted=False, reason="NotEnrolled", message=self._last_warning)
        message = LendRequest(self._new_id(), self._cap_seconds(), self._lease.epoch, self._identity.members)
        try:
            result = yield from self._ask(self._api.lend(message), ticket)
        finally:
            self._lease.asked()
            self._next_offer = self._clock() + OFFER_SECONDS
        if result.reason in (COOLING_DOWN, SUPERSEDED):
            self._next_offer = self._clock()
        return result

    def _cap_seconds(self) -> float | None:
        """What is left of it, as all times on the wire: offers are repeated."""
        return None if self._wanted_at is None else max(self._wanted_at - self._clock(), LEAST_CAP_SECONDS)

    def _ask(self, request: Request, ticket: int) -> Flow[LendResult]:
        try:
            answer = LendAnswer.from_wire((yield from call(request)))
        except Rejected as error:
            self._lease.refused(ticket)
            # After 404 the GPULoan was deleted: the next offer enrols anew, and reclaims go on with what is known.
            self._enrolled = error.status != NOT_FOUND
            return self._said(LendResult(granted=False, reason=error.reason or "Rejected", message=str(error)))
        except PearlError as error:
            return self._said(LendResult(granted=False, reason="OperatorUnreachable", message=str(error)))
        if not self._lease.answered(ticket, answer, self._clock()):
            return LendResult(granted=False, reason="Reclaimed", epoch=answer.epoch)
        return self._said(LendResult(answer.granted, answer.reason, answer.message, answer.epoch))

    def _said(self, result: LendResult) -> LendResult:
        if result.granted:
            self.meter.mark(LENT, unless=TRAINING)
            log.info("lent (epoch %d): %s %s", result.epoch, result.reason, result.message)
            self._last_warning = ""
        else:
            self._warn(f"not lent: {result.reason}. {result.message}")
        return result

    def stay_enrolled(self) -> Flow[None]:
        """Runs beside training in a pod whose group's driver lends: enrols as soon as PEARL can be reached."""
        while self._identity.operator_url is not None and not self._enrolled:
            yield Sleep(OFFER_SECONDS)
            yield from self._enrol_again()

    def keep(self) -> Flow[None]:
        """Runs beside training for the life of the loan: renews while lent, offers while refused."""
        while True:
            api, lease = self._api, self._lease
            if api is not None and lease.lent:
                yield Together(tuple(self._beat(api.registration, agent) for agent in lease.agents))
            elif self._should_offer():
                yield from self._offer()
            yield Sleep(api.registration.heartbeat_seconds if api else OFFER_SECONDS)

    def _should_offer(self) -> bool:
        lease = self._lease
        waiting = lease.wanted and not lease.asking and self._clock() >= self._next_offer
        return waiting and self._identity.operator_url is not None

    def _beat(self, registration: RegisterAnswer, agent: AgentEndpoint) -> Flow[None]:
        outcome = yield Send(endpoints.heartbeat(agent, registration.token, self._lease.epoch))
        answered = isinstance(outcome, Reply)
        if not answered or outcome.status == HTTPStatus.OK:
            # Without an answer it may still have arrived, so the lease may run from now on.
            self._lease.renewed(agent.uid, self._clock())
        over = answered and outcome.status == HTTPStatus.CONFLICT
        if answered and outcome.status == HTTPStatus.OK:
            over = isinstance(outcome.body, dict) and outcome.body.get("granted") is False
        if over and self._lease.ended(agent.uid):
            self.meter.mark(IDLE, unless=TRAINING)
            self._warn("the loan has ended at every agent; the GPUs are offered again")

    def reclaim(self, within_seconds: float | None = None, *, last: bool = False) -> Flow[Free]:
        """Takes the GPUs back; `last`: for good, and the operator hears of it before this returns.

        Raises:
            NotReturned: at the hard deadline a GPU is not known to be free.
            ConfigurationError: `within_seconds` is not above 0.
        """
        if within_seconds is not None and not within_seconds > 0:
            raise ConfigurationError(f"within is {within_seconds}: pass seconds above 0, or None for the default")
        free = yield from self._take_back(within_seconds, last=last)
        self.meter.mark(IDLE if last else TRAINING)
        return free

    def _take_back(self, within_seconds: float | None, *, last: bool) -> Flow[Free]:
        began, offered, held = self._clock(), self._lease.wanted, self._lease.take_back()
        self.meter.mark(IDLE)
        if self._in_doubt and not last:  # who leaves does not train
            yield from self._outlive_earlier(within_seconds)
            if self._api is None:
                return Free(self._lease.epoch, via="lease")
            held = self._lease.take_back()
            if within_seconds is not None:
                within_seconds -= self._clock() - began
        api = self._api
        if api is None or held is None:
            if api is not None and offered:
                yield Spawn(send(api.reclaiming(ReclaimingNotice(self._lease.epoch, 0.0))))
            return Free(self._lease.epoch, via="notLent")
        within = api.registration.reclaim_seconds if within_seconds is None else within_seconds
        reclaim = Reclaim(api, self._lease, held, self._clock, self._probe)
        return (yield from reclaim.run(within, last=last))

    @property
    def _in_doubt(self) -> bool:
        """Nobody can say yet whether a process before this one has lent, and to whom."""
        unknown = self._api is None and self._identity.operator_url is not None
        return unknown and self._clock() < self._earlier_over

    @property
    def _earlier_over(self) -> float:
        return self._began + EARLIER_SECONDS

    def settle(self) -> Flow[None]:
        """Ends the doubt: PEARL answers, or whatever an earlier process has lent is over; soon in any case."""
        self._lease.take_back()
        if self._in_doubt:
            yield from self._outlive_earlier(None)

    def _outlive_earlier(self, within_seconds: float | None) -> Flow[None]:
        """Waits until the doubt is over.

        Only a trainer that was started a moment ago waits here, for a PEARL that it cannot reach.

        Raises:
            NotReturned: after `within_seconds` it is not.
        """
        over = self._earlier_over
        until = over if within_seconds is None else min(over, self._clock() + within_seconds)
        log.warning("PEARL cannot be reached: training waits until nothing that was lent before can be lent still")
        while self._in_doubt and (left := until - self._clock()) > 0:
            yield from self._enrol_again(left)
            if self._in_doubt:
                yield Sleep(min(OFFER_SECONDS, max(until - self._clock(), 0.0)))
        if self._in_doubt:
            left = over - self._clock()
            raise NotReturned(
                f"PEARL cannot be reached, and a process that ran in this pod before may have lent its GPUs until "
                f"{left:.0f} s from now: call reclaim() again, or pass a longer `within`",
                epoch=self._lease.epoch,
                agents={},
                lease_over_seconds=-left,
            )

    def leave(self) -> Flow[None]:
        """Ends the enrolment; call it after a reclaim."""
        if self._api is not None:
            yield from send(self._api.deregister())
