"""Process 0: keeps batches, permits, groups and the profile for all, and tells every process what it must know."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pearl_gateway.elsewhere import NOBODY_TOLD, Elsewhere, Load
from pearl_gateway.errors import GatewayError
from pearl_gateway.processes.homes import home_of
from pearl_gateway.processes.ledger import joined
from pearl_gateway.processes.local import end_here, exports_here
from pearl_gateway.processes.messages import Ending, Names, Part, Primed, State, Told
from pearl_gateway.processes.outbox import Inbox
from pearl_gateway.processes.report import report_of, summed
from pearl_planner.workload.records import TrajectoryRecord, TurnRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pearl_gateway.batches import Ended
    from pearl_gateway.gateway import Gateway
    from pearl_gateway.processes.ledger import Ledger
    from pearl_gateway.processes.messages import End, Prime, Report, Sync
    from pearl_gateway.processes.pausing import Pausing
    from pearl_gateway.processes.peers import Peers

_PATIENCE_SECONDS = 5.0
"""After a start: a process that has not joined by then is away, and uses no worker."""
_STATE_SECONDS = 1.0
_EXPORTS_SECONDS = 60.0
_EXPORTS_AT_ONCE = 64


class Owner:
    """What the others ask and tell; `start` is the unique name of this start of the process."""

    def __init__(self, *, gateway: Gateway, peers: Peers, pausing: Pausing, start: str) -> None:
        self._gateway = gateway
        self._peers = peers
        self._pausing = pausing
        self._start = start
        self._born = gateway.clock()
        self._inbox = Inbox()
        self._reports: dict[int, Report] = {}
        self._all_joined = asyncio.Event()
        self._ledger: Ledger = {}
        self._state = State(
            owner=start, number=0, step=None, min_versions={}, admitted=frozenset(), open_steps=frozenset()
        )
        self._look()

    def sync(self, message: Sync) -> Told:
        """Hear a member and tell it what it must know."""
        self._hear(message.start, message.first, message.notes)
        self._ledger = joined(joined(self._ledger, message.ledger), {message.start: message.totals})
        self._reports[message.process] = message.report
        if len(self._reports) == len(self._peers.others):
            self._all_joined.set()
        self._pausing.adopt(message.report.pause)
        self._look()
        state, others = self.state(), self._reports_but(message.process)
        return Told(
            owner=self._start,
            acked=self._inbox.heard(message.start),
            state=None if message.state == (state.owner, state.number) else state,
            loads=summed(one.loads for one in others),
            served=self._served(others),
            pause=self._pausing.word,
            ledger=self.ledger(),
            waiting=self._waiting(message.process) if message.joins else None,
        )

    async def settle(self) -> None:
        """Return when every process has joined, or is away."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await self._all_joined.wait()

    def ledger(self) -> Ledger:
        """Totals of all starts."""
        return joined(self._ledger, {self._start: self._gateway.tally.totals()})

    def state(self) -> State:
        """What is decided now."""
        batches = self._gateway.batches
        found = State(
            owner=self._start,
            number=self._state.number,
            step=batches.current(),
            min_versions={step: one.spec.min_version for step, one in batches.by_step.items() if one.spec.min_version},
            admitted=self._gateway.permits.admitted(),
            open_steps=frozenset(step for step, one in batches.by_step.items() if not one.closed),
        )
        if found != self._state:
            self._state = found.model_copy(update={"number": found.number + 1})
        return self._state

    async def publish(self) -> None:
        """Return when every process knows what is decided; one that is away hears it when it joins."""
        state = self.state()

        async def tell(process: int) -> None:
            with suppress(GatewayError):
                await self._peers.call(process, "PUT", "/_/state", state, _STATE_SECONDS)

        await asyncio.gather(*(tell(process) for process in self._peers.others))

    async def end(self, message: End) -> Ended | None:
        """End the log of a trajectory in the process it lives in; None if it never sent a turn.

        Raises:
            GatewayError: that process is away (retryable).
        """
        home = home_of(message.trajectory, self._peers.count)
        if home == self._peers.number:
            return end_here(self._gateway, message)
        found = await self._peers.ask(home, "POST", "/_/end", Ending, message)
        return found.ended()

    async def exports(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Exports in the order of their names, those that nobody has left out.

        Raises:
            GatewayError: a process that some live in is away (retryable).
        """
        by_home = self._by_home(names)
        found: dict[str, dict[str, Any]] = {}
        for answers in await asyncio.gather(*(self._exports(home, mine) for home, mine in by_home.items())):
            found |= answers
        return [found[name] for name in names if name in found]

    async def consumed(self, names: Iterable[str]) -> None:
        """Tell the processes that nobody waits for these any more; one that is away hears it when it joins."""

        async def tell(home: int, mine: list[str]) -> None:
            with suppress(GatewayError):
                await self._peers.call(home, "POST", "/_/consumed", Names(names=mine))

        by_home = self._by_home(names)
        by_home.pop(self._peers.number, None)
        await asyncio.gather(*(tell(home, mine) for home, mine in by_home.items()))

    async def parts(self) -> list[Part | GatewayError]:
        """Every member's part of the statistics, or why there is none. All that they have to tell is heard."""
        found = await asyncio.gather(*(self._part(process) for process in self._peers.others))
        for part in found:
            if isinstance(part, Part):
                self._hear(part.start, part.first, part.notes)
                self._ledger = joined(self._ledger, part.ledger)
        return found

    async def prime(self, message: Prime) -> Primed:
        """Say who computes a group's prompt; the others get their answer when it is there."""
        groups = self._gateway.groups
        primes = await groups.wait_or_prime(message.group, message.seconds)
        place = groups.place(message.group)
        return Primed(group=message.group, primes=primes, home=place.home, prefill=place.prefill)

    def primed(self, message: Primed) -> None:
        """A group's prompt is computed, in another process."""
        groups = self._gateway.groups
        place = groups.obtain(message.group)
        place.home, place.prefill = place.home or message.home, place.prefill or message.prefill
        groups.primed(message.group)

    def _hear(self, start: str, first: int, notes: list[dict[str, Any]]) -> None:
        for note in self._inbox.new(start, first, notes):
            kind = note["kind"]
            if kind == "start":
                self._gateway.batches.start(note["step"], note["trajectory"])
            elif kind == "ended":
                over = self._gateway.permits.ended(note["trajectory"], note["group"])
                if over is not None:
                    self._gateway.runner.forget_group(over)
            elif kind == "turn":
                self._gateway.recorder.add(TurnRecord(**note["record"]))
            elif kind == "trajectory":
                self._gateway.recorder.add(TrajectoryRecord(**note["record"]))

    def _look(self) -> None:
        """Take over what the others do."""
        fleet, reports = self._gateway.fleet, list(self._reports.values())
        loads = {uid: Load(*load) for uid, load in summed(one.loads for one in reports).items()}
        changed = loads != fleet.elsewhere.loads
        fleet.elsewhere = Elsewhere(
            loads=loads,
            served=self._served(reports),
            groups=frozenset().union(*(one.groups for one in reports)),
            oldest_version=min((one.oldest_version for one in reports if one.oldest_version is not None), default=None),
        )
        if changed:
            fleet.notify()

    def _served(self, reports: list[Report]) -> int:
        age = self._gateway.clock() - self._born
        if not self._all_joined.is_set() and age < _PATIENCE_SECONDS:
            return NOBODY_TOLD
        return min((one.served for one in reports), default=0)

    def _reports_but(self, process: int) -> list[Report]:
        mine = report_of(self._gateway, self._state.admitted, self._pausing.word)
        return [mine, *(one for at, one in self._reports.items() if at != process)]

    def _waiting(self, process: int) -> dict[str, int]:
        found = self._gateway.batches.waiting()
        return {name: step for name, step in found.items() if home_of(name, self._peers.count) == process}

    def _by_home(self, names: Iterable[str]) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        for name in names:
            found.setdefault(home_of(name, self._peers.count), []).append(name)
        return found

    async def _exports(self, home: int, names: list[str]) -> dict[str, dict[str, Any]]:
        if home == self._peers.number:
            return exports_here(self._gateway, names)
        found: dict[str, dict[str, Any]] = {}
        for at in range(0, len(names), _EXPORTS_AT_ONCE):
            asked = Names(names=names[at : at + _EXPORTS_AT_ONCE])
            found |= json.loads(await self._peers.call(home, "POST", "/_/exports", asked, _EXPORTS_SECONDS))
        return found

    async def _part(self, process: int) -> Part | GatewayError:
        try:
            return await self._peers.ask(process, "GET", "/_/part", Part)
        except GatewayError as error:
            return error
