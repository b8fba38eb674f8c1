"""Batches, permits, export, statistics: all paths of the gateway that generate nothing."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.responses import PlainTextResponse, Response

from pearl_api.gateway_openapi import gateway_api
from pearl_api.wire.gateway import HEADER_IDEMPOTENCY, AbortTrajectory, FinishTrajectory, OpenBatch, PermitRequest
from pearl_gateway.asgi import CLIENT_LEFT, json_response, while_connected
from pearl_gateway.errors import GatewayError, bad_request, try_later
from pearl_gateway.identity import NAME
from pearl_gateway.metrics import render_metrics
from pearl_gateway.stats import gateway_stats

if TYPE_CHECKING:
    from starlette.requests import Request

    from pearl_gateway.batches import Ended
    from pearl_gateway.gateway import Gateway

M = TypeVar("M", bound=BaseModel)
_STEP = re.compile(r"[0-9]{1,10}")


class Control:
    """Handlers of batches, permits, export and statistics, where one process has them all.

    Several processes add to `_decided` and `_end`, and answer what they have together.
    """

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway

    async def open_batch(self, request: Request) -> Response:
        """A batch begins."""
        progress = self.gateway.batches.open(await parse(request, OpenBatch))
        await self._decided()
        return message_response(progress)

    async def batch(self, request: Request) -> Response:
        """How far it is."""
        return message_response(self.gateway.batches.progress(step_of(request)))

    async def finish(self, request: Request) -> Response:
        """A trajectory of it reached its end."""
        message, step = await parse(request, FinishTrajectory), step_of(request)
        self.gateway.batches.get(step)
        ended = await self._end(message.trajectory, step, reward=message.reward)
        return message_response(self.gateway.finished(step, message, ended))

    async def abort(self, request: Request) -> Response:
        """A trajectory of it ended early."""
        message, step = await parse(request, AbortTrajectory), step_of(request)
        self.gateway.batches.get(step)
        ended = await self._end(message.trajectory, step, cause=message.cause)
        return message_response(self.gateway.aborted(step, message, ended))

    async def consume(self, request: Request) -> Response:
        """Its finished trajectories, once."""
        exports = self.gateway.consume(step_of(request), consumption_key(request))
        return json_response([export.model_dump(mode="json", by_alias=True) for export in exports])

    async def close(self, request: Request) -> Response:
        """It is over."""
        progress = self.gateway.batches.close(step_of(request))
        await self._decided()
        return message_response(progress)

    async def permit(self, request: Request) -> Response:
        """Waits for admission of a group."""
        message = await parse(request, PermitRequest)
        answer = await while_connected(request, self.gateway.permits.ask(message))
        if answer is None:
            return Response(status_code=CLIENT_LEFT)
        if answer.granted:
            await self._decided()
        return message_response(answer)

    async def _decided(self) -> None:
        """Return when everybody knows what was decided, before it is answered."""

    async def _end(
        self, name: str, step: int, *, reward: float | None = None, cause: str | None = None
    ) -> Ended | None:
        """End the log of a trajectory, wherever it is; None if it never sent a turn."""
        del step
        return self.gateway.end_trajectory(name, reward=reward, cause=cause)

    async def trajectory(self, request: Request) -> Response:
        """The log of one trajectory."""
        name = request.path_params["name"]
        export = self.gateway.export(name)
        if export is None:
            raise GatewayError(HTTPStatus.NOT_FOUND, "TrajectoryUnknown", f"no trajectory {name!r} was seen")
        return message_response(export)

    async def stats(self, _request: Request) -> Response:
        """What the operator observes."""
        return message_response(gateway_stats(self.gateway, self.gateway.clock()))

    async def models(self, _request: Request) -> Response:
        """The one model."""
        return json_response({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        """The same by name."""
        found = self._model()
        if request.path_params["name"] != found["id"]:
            message = (
                f"model {request.path_params['name']!r:.200} is not served here; this rollout serves {found['id']!r}"
            )
            raise GatewayError(HTTPStatus.NOT_FOUND, "ModelUnknown", message, param="model")
        return json_response(found)

    def _model(self) -> dict[str, Any]:
        name = self.gateway.settings.model or self.gateway.settings.rollout
        length, created = self.gateway.settings.limits.max_model_len, int(self.gateway.started_wall)
        return {"id": name, "object": "model", "created": created, "owned_by": "pearl", "max_model_len": length}

    async def openapi(self, _request: Request) -> Response:
        """The document of all this."""
        return json_response(gateway_api())

    async def health(self, _request: Request) -> Response:
        """The process answers."""
        return PlainTextResponse("ok\n")

    async def ready(self, _request: Request) -> Response:
        """It knows the workers."""
        if self.gateway.membership_known:
            return PlainTextResponse("ok\n")
        raise try_later("NotReady", "the list of workers was not read yet", 1.0)

    async def metrics(self, _request: Request) -> Response:
        """For Prometheus."""
        text = render_metrics(gateway_stats(self.gateway, self.gateway.clock()), self.gateway.tally.totals())
        return Response(text, media_type="text/plain; version=0.0.4")


def consumption_key(request: Request) -> str | None:
    """Raises GatewayError where it cannot be meant."""
    key = request.headers.get(HEADER_IDEMPOTENCY)
    if key is not None and not NAME.fullmatch(key):
        message = f"{HEADER_IDEMPOTENCY}: use 1 to 200 of letters, digits and . _ : / @ -"
        raise bad_request(message, param=HEADER_IDEMPOTENCY)
    return key


def step_of(request: Request) -> int:
    """Raises GatewayError where the path names none."""
    step = request.path_params["step"]
    if not _STEP.fullmatch(step):
        message = f"step in the path: {step!r:.80} must be a whole number from 0"
        raise GatewayError(HTTPStatus.UNPROCESSABLE_ENTITY, "BadField", message, param="step")
    return int(step)


async def parse(request: Request, model: type[M]) -> M:
    """The body; raises GatewayError that names the field where it is none."""
    try:
        return model.model_validate_json(await request.body())
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        message = f"{where or 'the body'}: {first['msg']}"
        raise GatewayError(HTTPStatus.UNPROCESSABLE_ENTITY, "BadField", message, param=where or None) from None


def message_response(message: BaseModel) -> Response:
    """A message of the wire as an answer."""
    return Response(message.model_dump_json(by_alias=True), media_type="application/json")
