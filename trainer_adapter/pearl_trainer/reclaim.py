"""Taking GPUs back: every borrower's agent is asked at once, until it is free or the hard deadline has passed.

Never says free falsely. For each agent there are three proofs: its own answer, after it read the device; the
operator's word that this very pod no longer exists; or a lease that is over while the trainer's own reading of the
device is back at what it was.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from pearl_trainer import endpoints
from pearl_trainer.errors import NotReturned, ProtocolError
from pearl_trainer.messages import (
    AgentEndpoint,
    LoanView,
    ReclaimAnswer,
    ReclaimedNotice,
    ReclaimingNotice,
)
from pearl_trainer.sansio import Flow, NoReply, Reply, Send, Sleep, Spawn, Together, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from pearl_trainer.gpus import MemoryProbe
    from pearl_trainer.lease import Held, Lease

log = logging.getLogger("pearl_trainer")

RETRY_SECONDS = 0.1
"""Between the first two tries to reach an agent, and to ask the operator; twice as long after each further one."""
LONGEST_RETRY_SECONDS = 0.4
"""Never longer than this, so that an agent that comes back is seen well within any deadline."""
LONGEST_VIEW_SECONDS = 1.6
"""The same for the operator, whom all agents' flows ask as one."""
UNHEARD = AgentEndpoint("(borrowers that nobody has told of)", "")


@dataclass(frozen=True)
class Free:
    """The GPUs are free.

    `via`: `agents` (each read its device and found the memory back, or its pod no longer exists), `lease` (an agent
    could not be reached, its lease is over and the memory was read here), or `notLent` (nothing was in force).
    """

    epoch: int
    via: str
    killed: bool = False
    total_seconds: float = 0.0


@dataclass(frozen=True)
class _Taken:
    """Outcome at one agent; `why` says why not free."""

    agent: AgentEndpoint
    free: bool
    epoch: int
    via: str = "agents"
    killed: bool = False
    why: str = ""


class _Views:
    """What the operator has recorded since a reclaim began. Asked by one flow at a time, ever more seldom."""

    def __init__(self, api: endpoints.LoanApi, clock: Callable[[], float]) -> None:
        self._api = api
        self._clock = clock
        self._asking = threading.Lock()  # taken or left alone, never waited for
        self._last: LoanView | None = None
        self._pause = RETRY_SECONDS
        self._next = clock()

    def look(self, deadline: float) -> Flow[LoanView | None]:
        """The last answer, anew where it is time to ask; None while the operator has not answered."""
        if self._next <= self._clock() < deadline and self._asking.acquire(blocking=False):
            try:
                self._last = (yield from self._ask(deadline - self._clock())) or self._last
            finally:
                self._next = self._clock() + self._pause
                self._pause = min(2 * self._pause, LONGEST_VIEW_SECONDS)
                self._asking.release()
        return self._last

    def _ask(self, within: float) -> Flow[LoanView | None]:
        outcome = yield Send(self._api.view(within))
        if not isinstance(outcome, Reply) or outcome.status != HTTPStatus.OK:
            return None
        try:
            return LoanView.from_wire(outcome.body)
        except ProtocolError:
            return None


@dataclass(frozen=True)
class Reclaim:
    """One reclaim of what is `held`; `clock` gives seconds that never go back."""

    api: endpoints.LoanApi
    lease: Lease
    held: Held
    clock: Callable[[], float]
    probe: MemoryProbe

    def run(self, within: float, *, last: bool) -> Flow[Free]:
        """Returns when every GPU is free; `last`: and when the operator has heard of it.

        Raises:
            NotReturned: after `within` seconds one is not known to be free.
        """
        started, held = self.clock(), self.held
        yield Spawn(send(self.api.reclaiming(ReclaimingNotice(held.epoch, within))))
        views = _Views(self.api, self.clock)
        flows = [self._take(agent, started, within, views) for agent in held.agents]
        if held.unheard:
            flows.append(self._take_unheard(started, within, views))
        taken: list[_Taken] = yield Together(tuple(flows))
        total = self.clock() - started
        free, killed = all(item.free for item in taken), any(item.killed for item in taken)
        kept = tuple(item.agent.pod for item in taken if not item.free)
        telling = send(self.api.reclaimed(ReclaimedNotice(held.epoch, free, total, killed, kept)))
        yield Together((telling,)) if last else Spawn(telling)
        if not free:
            raise self._not_returned(taken, total)
        self.lease.all_free(max(item.epoch for item in taken) if taken else held.epoch)
        via = "lease" if any(item.via == "lease" for item in taken) else "agents"
        log.info("reclaimed (epoch %d) in %.3f s via %s", held.epoch, total, via)
        return Free(held.epoch, via, killed, total)

    def _take(self, agent: AgentEndpoint, started: float, within: float, views: _Views) -> Flow[_Taken]:
        deadline, epoch, why, tries = started + within, self.held.epoch, "its address is not known", 0
        while (remaining := deadline - self.clock()) > 0:
            if agent.url is not None:
                outcome = yield Send(endpoints.reclaim(agent, self.api.registration.token, epoch, remaining))
                answer, why = _read(outcome)
                if answer is not None and answer.free:
                    return _Taken(agent, free=True, epoch=epoch, killed=answer.killed)
                # The pod's owner takes back whatever is in force, so a higher epoch than expected is fenced too.
                epoch += isinstance(outcome, Reply) and outcome.status == HTTPStatus.CONFLICT
            tries += 1
            view = (yield from views.look(deadline)) if agent.url is None or tries > 1 else None
            if view is not None:
                there = next((other for other in view.agents if other.uid == agent.uid), None)
                if there is None:  # that very pod is gone
                    return _Taken(agent, free=True, epoch=epoch, via="podGone")
                if agent.url is None and there.url is not None:
                    agent = there  # its address is told with the answer to an offer, and that was lost
                    continue
            if self.clock() >= self.lease.over_at(agent.uid, started) and self.probe.free():
                return _Taken(agent, free=True, epoch=epoch, via="lease")
            yield Sleep(max(min(_pause(tries), deadline - self.clock()), 0.0))
        return _Taken(agent, free=False, epoch=epoch, why=why)

    def _take_unheard(self, started: float, within: float, views: _Views) -> Flow[_Taken]:
        """An offer was not answered: take back from borrowers that only the operator knows of."""
        agent, epoch = UNHEARD, self.held.epoch
        known = {one.uid for one in self.held.agents}
        while self.clock() < started + within:
            view = yield from views.look(started + within)
            if view is not None:
                new = [one for one in view.agents if one.uid not in known]
                taken: list[_Taken] = yield Together(tuple(self._take(one, started, within, views) for one in new))
                left = next((item for item in taken if not item.free), None)
                return left or _Taken(agent, free=True, epoch=max([epoch, *(item.epoch for item in taken)]))
            if self.held.complete:
                return _Taken(agent, free=True, epoch=epoch)
            if self.clock() >= self.lease.over_at(agent.uid, started) and self.probe.free():
                return _Taken(agent, free=True, epoch=epoch, via="lease")
            yield Sleep(RETRY_SECONDS)
        why = "an offer was not answered, and the operator does not say which borrowers exist"
        return _Taken(agent, free=False, epoch=epoch, why=why)

    def _not_returned(self, taken: list[_Taken], total: float) -> NotReturned:
        left = [(item.agent, item.why) for item in taken if not item.free]
        now = self.clock()
        over = now - max(self.lease.over_at(agent.uid, now) for agent, _ in left)
        listed = "; ".join(f"{agent.pod}: {why}" for agent, why in left)
        return NotReturned(
            f"after {total:.1f} s not every GPU of epoch {self.held.epoch} is known to be free ({listed}); "
            "do not train yet, call reclaim() again or look at the named borrower pods",
            epoch=self.held.epoch,
            agents={agent.pod: why for agent, why in left},
            lease_over_seconds=over,
        )


def _pause(tries: int) -> float:
    """Seconds after so many failed tries, at least one."""
    return min(RETRY_SECONDS * 2.0 ** min(tries - 1, 10), LONGEST_RETRY_SECONDS)


def _read(outcome: Reply | NoReply) -> tuple[ReclaimAnswer | None, str]:
    """An agent's answer, or why there is none."""
    if isinstance(outcome, NoReply):
        return None, outcome.error
    if outcome.status != HTTPStatus.OK:
        said = outcome.body.get("message", "") if isinstance(outcome.body, dict) else ""
        return None, f"HTTP status {outcome.status} {said}".strip()
    try:
        answer = ReclaimAnswer.from_wire(outcome.body)
    except ProtocolError as error:
        return None, str(error)
    return answer, answer.message or "the agent could not see the memory come back"
