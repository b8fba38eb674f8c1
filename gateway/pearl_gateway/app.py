"""Routes of the gateway (port 8080): who may call what, and which part answers. See `pearl_api.wire.gateway`."""

from __future__ import annotations

import re
from functools import wraps
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from pearl_api.gateway_openapi import gateway_api
from pearl_api.wire.gateway import (
    HEADER_IDEMPOTENCY,
    AbortTrajectory,
    FinishTrajectory,
    OpenBatch,
    PermitRequest,
)
from pearl_gateway.asgi import CLIENT_LEFT, check_token, error_response, json_response, while_connected
from pearl_gateway.bodies import BoundedBodies
from pearl_gateway.errors import EngineRefusedError, GatewayError, bad_request, try_later
from pearl_gateway.identity import NAME
from pearl_gateway.inference import Inference
from pearl_gateway.metrics import render_metrics
from pearl_gateway.sglang import sglang_routes
from pearl_gateway.stats import gateway_stats

if TYPE_CHECKING:
    from starlette.requests import Request

    from pearl_gateway.gateway import Gateway

Handler = "Callable[[Request], Awaitable[Response]]"
M = TypeVar("M", bound=BaseModel)
_STEP = re.compile(r"[0-9]{1,10}")


def create_app(gateway: Gateway) -> Starlette:
    """The ASGI application of one gateway."""
    inference, control = Inference(gateway), _Control(gateway)
    client = (gateway.settings.tokens.client,)
    reader = (gateway.settings.tokens.client, gateway.settings.tokens.gateway)

    def guard(handler: Any, tokens: tuple[str | None, ...]) -> Any:
        return _guarded(handler, () if gateway.settings.open_access else tokens)

    return Starlette(
        routes=[
            Route("/inference/v1/generate", guard(inference.generate, client), methods=["POST"]),
            Route("/v1/completions", guard(inference.completions, client), methods=["POST"]),
            Route("/v1/chat/completions", guard(inference.chat, client), methods=["POST"]),
            Route("/v1/batches", guard(control.open_batch, client), methods=["POST"]),
            Route("/v1/batches/{step}", guard(control.batch, client), methods=["GET"]),
            Route("/v1/batches/{step}/finish", guard(control.finish, client), methods=["POST"]),
            Route("/v1/batches/{step}/abort", guard(control.abort, client), methods=["POST"]),
            Route("/v1/batches/{step}/consume", guard(control.consume, client), methods=["POST"]),
            Route("/v1/batches/{step}/close", guard(control.close, client), methods=["POST"]),
            Route("/v1/permits", guard(control.permit, client), methods=["POST"]),
            Route("/v1/trajectories/{name:path}", guard(control.trajectory, client), methods=["GET"]),
            Route("/v1/stats", guard(control.stats, reader), methods=["GET"]),
            Route("/v1/models", guard(control.models, ()), methods=["GET"]),
            Route("/v1/models/{name:path}", guard(control.model, ()), methods=["GET"]),
            Route("/openapi.json", guard(control.openapi, ()), methods=["GET"]),
            Route("/health", guard(control.health, ()), methods=["GET"]),
            Route("/ready", guard(control.ready, ()), methods=["GET"]),
            Route("/metrics", guard(control.metrics, ()), methods=["GET"]),
            *sglang_routes(gateway, inference, lambda handler: guard(handler, client)),
        ],
        middleware=[Middleware(BoundedBodies, limits=gateway.settings.limits)],
        exception_handlers={HTTPException: _no_route, Exception: _bug},
    )


async def _no_route(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else HTTPStatus.NOT_FOUND
    reason = "MethodNotAllowed" if status == HTTPStatus.METHOD_NOT_ALLOWED else "PathUnknown"
    message = f"{request.method} {request.url.path} is not served here: see docs/gateway.md"
    return error_response(GatewayError(status, reason, message))


async def _bug(_request: Request, error: Exception) -> Response:
    message = f"a bug of the gateway, its log has the details: {type(error).__name__}"
    return error_response(GatewayError(HTTPStatus.INTERNAL_SERVER_ERROR, "Bug", message))


def _guarded(handler: Any, tokens: tuple[str | None, ...]) -> Any:
    """Check the token and turn the known errors into answers; anything else is a bug and a 500."""

    @wraps(handler)
    async def guarded(request: Request) -> Response:
        try:
            if tokens:
                check_token(request, *tokens)
            response: Response = await handler(request)
        except GatewayError as error:
            return error_response(error)
        except EngineRefusedError as error:
            return json_response(error.body, error.status) if error.body else error_response(error.passed_on())
        except ClientDisconnect:
            return Response(status_code=CLIENT_LEFT)
        return response

    return guarded


class _Control:
    """Batches, permits, export and statistics."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def open_batch(self, request: Request) -> Response:
        return _message(self._gateway.batches.open(await _parse(request, OpenBatch)))

    async def batch(self, request: Request) -> Response:
        return _message(self._gateway.batches.progress(_step(request)))

    async def finish(self, request: Request) -> Response:
        message = await _parse(request, FinishTrajectory)
        return _message(self._gateway.finish(_step(request), message))

    async def abort(self, request: Request) -> Response:
        message = await _parse(request, AbortTrajectory)
        return _message(self._gateway.abort(_step(request), message))

    async def consume(self, request: Request) -> Response:
        key = request.headers.get(HEADER_IDEMPOTENCY)
        if key is not None and not NAME.fullmatch(key):
            message = f"{HEADER_IDEMPOTENCY}: use 1 to 200 of letters, digits and . _ : / @ -"
            raise bad_request(message, param=HEADER_IDEMPOTENCY)
        exports = self._gateway.consume(_step(request), key)
        return json_response([export.model_dump(mode="json", by_alias=True) for export in exports])

    async def close(self, request: Request) -> Response:
        return _message(self._gateway.batches.close(_step(request)))

    async def permit(self, request: Request) -> Response:
        message = await _parse(request, PermitRequest)
        answer = await while_connected(request, self._gateway.permits.ask(message))
        return Response(status_code=CLIENT_LEFT) if answer is None else _message(answer)

    async def trajectory(self, request: Request) -> Response:
        name = request.path_params["name"]
        export = self._gateway.export(name)
        if export is None:
            raise GatewayError(HTTPStatus.NOT_FOUND, "TrajectoryUnknown", f"no trajectory {name!r} was seen")
        return _message(export)

    async def stats(self, _request: Request) -> Response:
        return _message(gateway_stats(self._gateway, self._gateway.clock()))

    async def models(self, _request: Request) -> Response:
        return json_response({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        found = self._model()
        if request.path_params["name"] != found["id"]:
            message = (
                f"model {request.path_params['name']!r:.200} is not served here; this rollout serves {found['id']!r}"
            )
            raise GatewayError(HTTPStatus.NOT_FOUND, "ModelUnknown", message, param="model")
        return json_response(found)

    def _model(self) -> dict[str, Any]:
        name = self._gateway.settings.model or self._gateway.settings.rollout
        length, created = self._gateway.settings.limits.max_model_len, int(self._gateway.started_wall)
        return {"id": name, "object": "model", "created": created, "owned_by": "pearl", "max_model_len": length}

    async def openapi(self, _request: Request) -> Response:
        return json_response(gateway_api())

    async def health(self, _request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(self, _request: Request) -> Response:
        if self._gateway.membership_known:
            return PlainTextResponse("ok\n")
        raise try_later("NotReady", "the list of workers was not read yet", 1.0)

    async def metrics(self, _request: Request) -> Response:
        text = render_metrics(gateway_stats(self._gateway, self._gateway.clock()), self._gateway.tally)
        return Response(text, media_type="text/plain; version=0.0.4")


def _step(request: Request) -> int:
    step = request.path_params["step"]
    if not _STEP.fullmatch(step):
        message = f"step in the path: {step!r:.80} must be a whole number from 0"
        raise GatewayError(HTTPStatus.UNPROCESSABLE_ENTITY, "BadField", message, param="step")
    return int(step)


async def _parse(request: Request, model: type[M]) -> M:
    try:
        return model.model_validate_json(await request.body())
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        message = f"{where or 'the body'}: {first['msg']}"
        raise GatewayError(HTTPStatus.UNPROCESSABLE_ENTITY, "BadField", message, param=where or None) from None


def _message(message: BaseModel) -> Response:
    return Response(message.model_dump_json(by_alias=True), media_type="application/json")
