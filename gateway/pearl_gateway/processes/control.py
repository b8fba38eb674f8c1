"""The paths of what there is once, as the owner answers them: with what the other processes have."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.responses import Response

from pearl_api.wire.gateway import AbortTrajectory, FinishTrajectory, GatewayStats, OpenBatch, PermitRequest
from pearl_gateway.asgi import CLIENT_LEFT, json_response, while_connected
from pearl_gateway.control import consumption_key, message_response, parse, step_of
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

    async def open_batch(self, request: Request) -> Response:
        """See `Control`."""
        progress = self.gateway.batches.open(await parse(request, OpenBatch))
        await self._owner.publish()
        return message_response(progress)

    async def close(self, request: Request) -> Response:
        """See `Control`."""
        progress = self.gateway.batches.close(step_of(request))
        await self._owner.publish()
        return message_response(progress)

    async def permit(self, request: Request) -> Response:
        """See `Control`."""
        message = await parse(request, PermitRequest)
        answer = await while_connected(request, self.gateway.permits.ask(message))
        if answer is None:
            return Response(status_code=CLIENT_LEFT)
        if answer.granted:
            await self._owner.publish()
        return message_response(answer)

    async def finish(self, request: Request) -> Response:
        """See `Control`."""
        message, step = await parse(request, FinishTrajectory), step_of(request)
        self.gateway.batches.get(step)
        ended = await self._owner.end(End(trajectory=message.trajectory, step=step, reward=message.reward))
        return message_response(self.gateway.finished(step, message, ended))

    async def abort(self, request: Request) -> Response:
        """See `Control`."""
        message, step = await parse(request, AbortTrajectory), step_of(request)
        self.gateway.batches.get(step)
        ended = await self._owner.end(End(trajectory=message.trajectory, step=step, cause=message.cause))
        return message_response(self.gateway.aborted(step, message, ended))

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
