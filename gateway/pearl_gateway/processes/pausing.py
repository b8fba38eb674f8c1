"""Pause, continue and abort of SGLang's requests, in all processes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pearl_gateway.errors import GatewayError
from pearl_gateway.processes.messages import Command, Count, Pause
from pearl_gateway.sglang.running import LONGEST_PAUSE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from pearl_gateway.processes.peers import Peers
    from pearl_gateway.sglang.running import Running


class Pausing:
    """One process's requests, and the newest word on whether new ones wait; `clock` is the machine's monotonic one."""

    def __init__(self, running: Running, clock: Callable[[], float]) -> None:
        self.running = running
        self._clock = clock
        self.word = Pause()

    def adopt(self, word: Pause, *, aborts: bool = False) -> None:
        """Do as `word` says, if it is news."""
        if word.number <= self.word.number:
            return
        self.word = word
        left = word.until - self._clock()
        if left > 0:
            self.running.pause(abort=aborts, seconds=left)
        else:
            self.running.go_on()

    def do(self, command: Command) -> int:
        """What a command says; how many requests it concerned."""
        if command.do == "pause":
            self.adopt(command.pause, aborts=command.aborts)
            return 0
        return self.running.abort(command.rid) if command.do == "abort" else self.running.count


class AllRunning:
    """See `Everywhere`: the owner tells all processes."""

    def __init__(self, pausing: Pausing, peers: Peers, clock: Callable[[], float]) -> None:
        self.here = pausing.running
        self._pausing = pausing
        self._peers = peers
        self._clock = clock

    async def pause(self, *, abort: bool) -> None:
        """See `Running.pause`. A process that is away hears it when it joins."""
        await self._everybody(self._word(LONGEST_PAUSE_SECONDS, aborts=abort), must=False)

    async def go_on(self) -> None:
        """See `Running.go_on`."""
        await self._everybody(self._word(0.0, aborts=False), must=False)

    async def abort(self, rid: str | None) -> int:
        """See `Running.abort`. A process that is away has no requests."""
        return await self._everybody(Command(do="abort", rid=rid), must=False)

    async def count(self) -> int:
        """See `Running.count`."""
        return await self._everybody(Command(do="count"), must=True)

    def _word(self, seconds: float, *, aborts: bool) -> Command:
        now = self._clock()
        return Command(do="pause", pause=Pause(number=int(1e6 * now), until=now + seconds), aborts=aborts)

    async def _everybody(self, command: Command, *, must: bool) -> int:
        here = self._pausing.do(command)
        there = await asyncio.gather(*(self._there(at, command, must=must) for at in self._peers.others))
        return here + sum(there)

    async def _there(self, process: int, command: Command, *, must: bool) -> int:
        try:
            return (await self._peers.ask(process, "POST", "/_/running", Count, command)).count
        except GatewayError:
            if must:
                raise
            return 0
