"""A group's prompt is computed once, whichever processes its members live in: the owner says by whom."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from pearl_gateway.errors import GatewayError
from pearl_gateway.groups import Groups
from pearl_gateway.processes.homes import OWNER
from pearl_gateway.processes.messages import Prime, Primed

if TYPE_CHECKING:
    from pearl_gateway.processes.peers import Peers

_MARGIN_SECONDS = 1.0


class MemberGroups(Groups):
    """See `Groups`. While the owner is away every process computes a prompt for itself."""

    def __init__(self, peers: Peers) -> None:
        super().__init__()
        self._peers = peers
        self._primes: set[str] = set()
        """Groups whose prompt a trajectory of this process computes for all."""
        self._telling: set[asyncio.Task[None]] = set()

    async def wait_or_prime(self, group: str | None, seconds: float) -> bool:
        """See `Groups`."""
        if group is None:
            return False
        known = self.place(group).primed
        if known is not None and known.is_set():
            return False
        asked = Prime(group=group, seconds=seconds)
        try:
            answer = await self._peers.call(OWNER, "POST", "/_/prime", asked, seconds + _MARGIN_SECONDS)
        except GatewayError:
            return await super().wait_or_prime(group, seconds)
        found, place = Primed.model_validate_json(answer), self.obtain(group)
        place.home, place.prefill = place.home or found.home, place.prefill or found.prefill
        place.primed = place.primed or asyncio.Event()
        if found.primes:
            self._primes.add(group)
        else:
            place.primed.set()
        return found.primes

    def primed(self, group: str | None) -> None:
        """See `Groups`."""
        super().primed(group)
        if group is not None and group in self._primes:
            self._primes.discard(group)
            task = asyncio.get_running_loop().create_task(self._tell(group))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def _tell(self, group: str) -> None:
        place = self.place(group)
        with contextlib.suppress(GatewayError):  # then the others have waited for nobody
            told = Primed(group=group, home=place.home, prefill=place.prefill)
            await self._peers.call(OWNER, "POST", "/_/primed", told)
