"""The lease of one loan as the trainer knows it: which epochs may be in force where, and until when at the latest.

No I/O and no clock of its own; instants are seconds of the caller's monotonic clock. One thread may renew while
another reclaims, so every change happens under a lock that is never held across I/O.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pearl_trainer.messages import AgentEndpoint, LendAnswer, RegisterAnswer

KILL_SECONDS = 2.0
"""Least time that an agent takes between the end of a lease and the hard deadline it was sized for."""


@dataclass(frozen=True)
class Held:
    """What a reclaim has to fence: `epoch` and all below it, at these agents.

    `unheard`: an offer was not answered, so that it may have been granted at agents that are not among these;
    `complete`: no, all that there can be are.
    """

    epoch: int
    agents: tuple[AgentEndpoint, ...]
    unheard: bool = False
    complete: bool = True


class Lease:
    """Epochs, agents and renewals of one loan; empty until it is enrolled."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._length_seconds = 0.0
        self._known = self._fenced = self._unanswered = self._ticket = self._asking = 0
        self._agents: tuple[AgentEndpoint, ...] = ()
        self._live: frozenset[str] = frozenset()
        self._renewed: dict[str, float] = {}
        self._wanted = False
        self._slots = 0

    @property
    def agents(self) -> tuple[AgentEndpoint, ...]:
        """Agents as last heard of."""
        return self._agents

    @property
    def lent(self) -> bool:
        """Granted, not taken back, and at least one agent holds the lease."""
        return bool(self._live)

    @property
    def wanted(self) -> bool:
        """The trainer offers its GPUs and has not taken them back."""
        return self._wanted

    @property
    def asking(self) -> bool:
        """An offer is under way."""
        return self._asking > 0

    @property
    def epoch(self) -> int:
        """Highest epoch heard of."""
        return self._known

    @property
    def over(self) -> bool:
        """Nothing can be in force anywhere: every epoch that may exist is fenced."""
        with self._lock:
            return self._known + self._unanswered <= self._fenced

    def enrolled(self, answer: RegisterAnswer) -> None:
        """The loan was enrolled, perhaps once more; what is known about epochs stays known.

        Its epoch is above the fenced one where a trainer that crashed in this pod has lent: its borrower may run.
        """
        with self._lock:
            self._known = max(self._known, answer.epoch)
            self._agents = answer.agents
            # How many borrowers a group has is known only once all of its pods have registered: with a grant.
            self._slots = answer.slots if answer.path is None or "/groups/" not in answer.path else 0
            self._length_seconds = max(answer.ttl_seconds + KILL_SECONDS, answer.reclaim_seconds)

    def want(self) -> None:
        """The trainer offers its GPUs from now on."""
        with self._lock:
            self._wanted = True

    def offering(self) -> int | None:
        """An offer is about to be sent: until it is answered, one more epoch may be in force.

        Returns its ticket, or None where the trainer has taken the GPUs back meanwhile.
        """
        with self._lock:
            if not self._wanted:
                return None
            self._ticket += 1
            self._unanswered += 1
            self._asking += 1
            return self._ticket

    def asked(self) -> None:
        """The offer came back, answered or not."""
        with self._lock:
            self._asking -= 1

    def answered(self, ticket: int, answer: LendAnswer, now: float) -> bool:
        """The operator answered; False where the trainer has reclaimed meanwhile, so that nothing is lent."""
        with self._lock:
            self._known = max(self._known, answer.epoch)
            self._agents = answer.agents or self._agents
            if ticket != self._ticket or not self._wanted:
                return False
            self._unanswered = 0
            if answer.granted:
                self._slots = len(self._agents)
            self._live = frozenset(agent.uid for agent in self._agents) if answer.granted else frozenset()
            self._renewed = {agent.uid: now for agent in self._agents}
            return True

    def refused(self, ticket: int) -> None:
        """The operator refused the call itself, so it made no epoch for it."""
        with self._lock:
            if ticket == self._ticket:
                self._unanswered = max(self._unanswered - 1, 0)

    def renewed(self, uid: str, now: float) -> None:
        """A heartbeat reached this agent, or may have, at `now` at the latest."""
        with self._lock:
            self._renewed[uid] = max(now, self._renewed.get(uid, now))

    def ended(self, uid: str) -> bool:
        """This agent holds no lease any more; True where it was the last one."""
        with self._lock:
            before, self._live = self._live, self._live - {uid}
            return bool(before) and not self._live

    def take_back(self) -> Held | None:
        """The trainer reclaims: renewals and offers stop. None where nothing can be in force anywhere."""
        with self._lock:
            self._wanted, self._live = False, frozenset()
            self._ticket += 1
            epoch = self._known + self._unanswered
            if epoch <= self._fenced:
                return None
            complete = len(self._agents) >= self._slots > 0
            return Held(epoch, self._agents, unheard=self._unanswered > 0, complete=complete)

    def all_free(self, epoch: int) -> None:
        """Every agent has fenced `epoch` and given its GPU back."""
        with self._lock:
            self._fenced = max(self._fenced, epoch)
            self._known = max(self._known, epoch)
            self._unanswered = 0

    def over_at(self, uid: str, since: float) -> float:
        """Latest instant at which this agent has stopped its engine by itself; from `since` where never renewed."""
        return self._renewed.get(uid, since) + self._length_seconds
