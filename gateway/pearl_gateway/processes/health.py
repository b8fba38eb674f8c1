"""Health of a gateway of several processes, as any of them answers it."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.responses import PlainTextResponse

from pearl_gateway.control import Control
from pearl_gateway.errors import GatewayError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from pearl_gateway.gateway import Gateway
    from pearl_gateway.processes.peers import Peers

LONGEST_AWAY_SECONDS = 60.0
"""The supervisor has started a process again by then, or is not well itself."""
_ANSWER_SECONDS = 1.0


class SharedControl(Control):
    """See `Control`."""

    def __init__(self, gateway: Gateway, peers: Peers) -> None:
        super().__init__(gateway)
        self.peers = peers
        self._away_since: dict[int, float] = {}

    async def health(self, _request: Request) -> Response:
        """See `Control`. A process that is being started again is named; one that stays away makes it 503."""
        now = self.gateway.clock()
        found = await asyncio.gather(*map(self._answers, self.peers.others))
        away = {at for at, answers in zip(self.peers.others, found, strict=True) if not answers}
        self._away_since = {at: self._away_since.get(at, now) for at in away}
        names = ", ".join(map(str, sorted(away)))
        if any(now - since > LONGEST_AWAY_SECONDS for since in self._away_since.values()):
            message = f"processes {names} have not answered for {LONGEST_AWAY_SECONDS:.0f} s: restart the gateway"
            raise GatewayError(HTTPStatus.SERVICE_UNAVAILABLE, "ProcessAway", message)
        return PlainTextResponse(f"ok, without processes {names}\n" if away else "ok\n")

    async def _answers(self, process: int) -> bool:
        try:
            await self.peers.call(process, "GET", "/_/health", seconds=_ANSWER_SECONDS)
        except GatewayError:
            return False
        return True
