"""A process that is not the owner: what it tells the owner, and what it believes because the owner told it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import asdict
from typing import TYPE_CHECKING

from pearl_gateway.elsewhere import NOBODY_TOLD, Elsewhere, Load
from pearl_gateway.errors import GatewayError
from pearl_gateway.processes.homes import OWNER
from pearl_gateway.processes.ledger import beyond, joined
from pearl_gateway.processes.messages import Part, State, Sync, Told
from pearl_gateway.processes.report import report_of
from pearl_gateway.stats import gateway_stats
from pearl_planner.workload.records import TurnRecord

if TYPE_CHECKING:
    from pearl_gateway.gateway import Gateway
    from pearl_gateway.processes.ledger import Ledger
    from pearl_gateway.processes.outbox import Outbox
    from pearl_gateway.processes.pausing import Pausing
    from pearl_gateway.processes.peers import Peers
    from pearl_gateway.trajectory import Trajectory
    from pearl_planner.workload.records import TrajectoryRecord

_SYNC_SECONDS = 0.1
_OWNER_SECONDS = 0.02
"""The owner is not asked more often than this by all the others together."""
_LOG = logging.getLogger(__name__)
_NOTHING = State(owner="", number=0, step=None, min_versions={}, admitted=frozenset(), open_steps=frozenset())


class MemberBooks:
    """See `Books`: as the owner told it last, and notes for the owner."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self.state = _NOTHING
        self.waiting: dict[str, int] = {}
        """Finished trajectories of this process that were not handed out → their step."""

    def min_version(self, step: int | None) -> int | None:
        """See `Books`."""
        return self.state.min_versions.get(step) if step is not None else None

    def current(self) -> int | None:
        """See `Books`."""
        return self.state.step

    def is_admitted(self, group: str) -> bool:
        """See `Books`."""
        return group in self.state.admitted

    def started(self, trajectory: Trajectory) -> None:
        """See `Books`."""
        if trajectory.step is not None and trajectory.traffic == "train":
            self._outbox.put("start", step=trajectory.step, trajectory=trajectory.id)

    def ended(self, trajectory: str, group: str | None) -> str | None:
        """See `Books`. That the group is over is told by the state, when it has no permit any more."""
        if group is not None:
            self._outbox.put("ended", trajectory=trajectory, group=group)
        return None

    def waits_for(self, name: str) -> bool:
        """See `Books`."""
        return self.waiting.get(name) in self.state.open_steps

    def finished(self, name: str, step: int | None) -> None:
        """A trajectory of this process waits to be handed out with the batch of `step`; None = it does not."""
        if step is None:
            self.waiting.pop(name, None)
        else:
            self.waiting[name] = step

    def record(self, record: TurnRecord | TrajectoryRecord) -> None:
        """One record for the profile."""
        self._outbox.put("turn" if isinstance(record, TurnRecord) else "trajectory", record=asdict(record))

    def adopt(self, state: State) -> frozenset[str]:
        """Believe `state` if it is newer; the groups that have no permit any more."""
        known = self.state
        if state.owner == known.owner and state.number <= known.number:
            return frozenset()
        self.state = state
        self.waiting = {name: step for name, step in self.waiting.items() if step in state.open_steps}
        return known.admitted - state.admitted


class Member:
    """Keeps in touch with the owner."""

    def __init__(  # noqa: PLR0913 - its parts are made elsewhere
        self, *, gateway: Gateway, books: MemberBooks, outbox: Outbox, peers: Peers, pausing: Pausing, start: str
    ) -> None:
        self._gateway = gateway
        self._books = books
        self._outbox = outbox
        self._peers = peers
        self._pausing = pausing
        self._start = start
        self._ledger: Ledger = {}
        self._untold: Ledger = {}
        self._away = False
        # What the others use is not known before the owner has told it.
        gateway.fleet.elsewhere = Elsewhere(served=NOBODY_TOLD)

    async def join(self) -> None:
        """Return when the owner knows this process; it answers nobody before."""
        while not await self.sync(joins=True):  # noqa: ASYNC110 - an owner that is being started tells nobody
            await asyncio.sleep(_SYNC_SECONDS)

    async def run(self) -> None:
        """Keep in touch until cancelled."""
        while True:
            await asyncio.sleep(max(_SYNC_SECONDS, _OWNER_SECONDS * self._peers.count))
            await self.sync()

    async def sync(self, *, joins: bool = False) -> bool:
        """Tell and be told once; False while the owner is away."""
        outbox, state = self._outbox, self._books.state
        message = Sync(
            process=self._peers.number,
            start=self._start,
            joins=joins,
            state=(state.owner, state.number) if state.owner else None,
            first=outbox.first,
            notes=list(outbox.notes),
            report=report_of(self._gateway, state.admitted, self._pausing.word),
            totals=self._gateway.tally.totals(),
            ledger=self._untold,
        )
        try:
            told = await self._peers.ask(OWNER, "POST", "/_/sync", Told, message)
        except GatewayError as error:
            if not self._away:
                _LOG.warning("the process that keeps batches and permits is away: %s", error)
            self._away = True
            return False
        self._away = False
        self._adopt(told)
        return True

    def _adopt(self, told: Told) -> None:
        self._outbox.acked(told.acked)
        self._untold = beyond(self._ledger, told.ledger)
        self._ledger = joined(self._ledger, told.ledger)
        self._pausing.adopt(told.pause)
        if told.state is not None:
            self.adopt_state(told.state)
        if told.waiting is not None:
            self._books.waiting |= told.waiting
        fleet, loads = self._gateway.fleet, {uid: Load(*load) for uid, load in told.loads.items()}
        changed = (fleet.elsewhere.loads, fleet.elsewhere.served) != (loads, told.served)
        fleet.elsewhere = Elsewhere(loads=loads, served=told.served)
        if changed:
            fleet.notify()

    def adopt_state(self, state: State) -> None:
        """The owner's decisions, if they are newer."""
        for group in self._books.adopt(state):
            self._gateway.runner.forget_group(group)

    def part(self) -> Part:
        """This process's part of the statistics, with all that the owner has not heard."""
        gateway = self._gateway
        return Part(
            start=self._start,
            first=self._outbox.first,
            notes=list(self._outbox.notes),
            stats=gateway_stats(gateway, gateway.clock()),
            ledger=joined(self._ledger, {self._start: gateway.tally.totals()}),
        )
