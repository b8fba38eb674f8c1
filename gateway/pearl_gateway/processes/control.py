"""The paths of what there is once, as the owner answers them: with what the other processes have."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.responses import Response

from pearl_gateway.asgi import json_response
from pearl_gateway.control import consumption_key, message_response, step_of
from pearl_gateway.errors import GatewayError, try_later
from pearl_gateway.metrics import Processes, render_metrics
from pearl_gateway.processes.health import SharedControl
from pearl_gateway.processes.ledger import sums
from pearl_gateway.processes.merge import merged
from pearl_gateway.processes.messages import End, Part
from pearl_gateway.processes.status import read_status
from pearl_gateway.stats import gateway_stats
from pearl_gateway.tally import by_cause

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from starlette.requests import Request

    from pearl_api.wire.gateway import GatewayStats
    from pearl_gateway.batches import Ended
    from pearl_gateway.gateway import Gateway
    from pearl_gateway.processes.owner import Owner
    from pearl_gateway.processes.peers import Peers


class OwnerControl(SharedControl):
    """See `Control`. What changes a decision is answered when every process knows it."""

    def __init__(self, gateway: Gateway, owner: Owner, peers: Peers, folder: Path) -> None:
        super().__init__(gateway, peers)
        self._owner = owner
        self._folder = folder
        self._consuming = asyncio.Lock()

    async def _decided(self) -> None:
        await self._owner.publish()

    async def _end(
        self, name: str, step: int, *, reward: float | None = None, cause: str | None = None
    ) -> Ended | None:
        return await self._owner.end(End(trajectory=name, step=step, reward=reward, cause=cause))

    async def consume(self, request: Request) -> Response:
        """See `Control`. Nothing counts as handed out before all of it is here, and one asks at a time."""
        step, key, batches = step_of(request), consumption_key(request), self.gateway.batches
        async with self._consuming:
            again = batches.handed_out(step, key) if key is not None else []
            names = again or list(batches.get(step).unconsumed())
            exports = await self._owner.exports(names)
            if not again:
                batches.hand_out(step, names, key)
                self._count(exports)
        if not again:
            await self._owner.consumed(names)
        return json_response(exports)

    def _count(self, exports: list[dict[str, list[int | None]]]) -> None:
        if exports:
            self.gateway.consumer.fetched(self.gateway.clock())
        self.gateway.count_ages(one["versions"] for one in exports)

    async def stats(self, _request: Request) -> Response:
        """See `Control`.

        Raises:
            GatewayError: a process is away (retryable): what it has is in no other one.
        """
        parts = []
        for part in await self._owner.parts():
            if isinstance(part, GatewayError):
                raise part
            parts.append(part)
        return message_response(self._merged(parts))

    async def metrics(self, _request: Request) -> Response:
        """See `Control`. Totals are whole; gauges are without processes that are away, which are counted."""
        found = await self._owner.parts()
        parts = [part for part in found if isinstance(part, Part)]
        status = read_status(self._folder)
        processes = Processes(self.peers.count, len(found) - len(parts), sum(status.restarts))
        text = render_metrics(self._merged(parts), self._totals(), processes)
        return Response(text, media_type="text/plain; version=0.0.4")

    async def ready(self, request: Request) -> Response:
        """See `Control`; all processes are."""
        try:
            await asyncio.gather(*(self.peers.call(at, "GET", "/_/ready") for at in self.peers.others))
        except GatewayError as error:
            raise try_later("NotReady", error.message, 1.0) from error
        return await super().ready(request)

    def _totals(self) -> dict[str, int]:
        return dict.fromkeys(self.gateway.tally.totals(), 0) | sums(self._owner.ledger())

    def _merged(self, parts: Sequence[Part]) -> GatewayStats:
        gateway, totals = self.gateway, self._totals()
        now = gateway.clock()
        own = gateway_stats(gateway, now).model_copy(
            update={"ages_at_consumption": by_cause(totals, "ages_at_consumption")}
        )
        uptime = now - read_status(self._folder).started
        return merged(own, [part.stats for part in parts], totals, uptime)
