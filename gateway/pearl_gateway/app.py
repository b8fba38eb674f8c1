"""Routes of the gateway (port 8080): who may call what, and which part answers. See `pearl_api.wire.gateway`."""

from __future__ import annotations

from functools import wraps
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from pearl_api.wire.gateway import AbortTrajectory, FinishTrajectory, OpenBatch, PermitRequest
from pearl_gateway.asgi import CLIENT_LEFT, check_token, error_response, json_response, while_connected
from pearl_gateway.errors import EngineRefusedError, GatewayError
from pearl_gateway.inference import Inference
from pearl_gateway.metrics import render_metrics
from pearl_gateway.sglang import sglang_routes
from pearl_gateway.stats import gateway_stats

if TYPE_CHECKING:
    from starlette.requests import Request

    from pearl_gateway.gateway import Gateway

Handler = "Callable[[Request], Awaitable[Response]]"
M = TypeVar("M", bound=BaseModel)


def create_app(gateway: Gateway) -> Starlette:
    """The ASGI application of one gateway."""
    inference, control = Inference(gateway), _Control(gateway)
    client = (gateway.settings.tokens.client,)
    reader = (gateway.settings.tokens.client, gateway.settings.tokens.gateway)

    def guard(handler: Any, tokens: tuple[str | None, ...], *, openai: bool = False) -> Any:
        return _guarded(handler, () if gateway.settings.open_access else tokens, openai=openai)

    return Starlette(
        routes=[
            Route("/inference/v1/generate", guard(inference.generate, client, openai=True), methods=["POST"]),
            Route("/v1/completions", guard(inference.completions, client, openai=True), methods=["POST"]),
            Route("/v1/chat/completions", guard(inference.chat, client, openai=True), methods=["POST"]),
            Route("/v1/batches", guard(control.open_batch, client), methods=["POST"]),
            Route("/v1/batches/{step:int}", guard(control.batch, client), methods=["GET"]),
            Route("/v1/batches/{step:int}/finish", guard(control.finish, client), methods=["POST"]),
            Route("/v1/batches/{step:int}/abort", guard(control.abort, client), methods=["POST"]),
            Route("/v1/batches/{step:int}/consume", guard(control.consume, client), methods=["POST"]),
            Route("/v1/batches/{step:int}/close", guard(control.close, client), methods=["POST"]),
            Route("/v1/permits", guard(control.permit, client), methods=["POST"]),
            Route("/v1/trajectories/{name:path}", guard(control.trajectory, client), methods=["GET"]),
            Route("/v1/stats", guard(control.stats, reader), methods=["GET"]),
            Route("/v1/models", guard(control.models, ()), methods=["GET"]),
            Route("/health", guard(control.health, ()), methods=["GET"]),
            Route("/ready", guard(control.ready, ()), methods=["GET"]),
            Route("/metrics", guard(control.metrics, ()), methods=["GET"]),
            *sglang_routes(gateway, inference, lambda handler: guard(handler, client, openai=True)),
        ]
    )


def _guarded(handler: Any, tokens: tuple[str | None, ...], *, openai: bool) -> Any:
    """Check the token and turn the known errors into answers; anything else is a bug and a 500."""

    @wraps(handler)
    async def guarded(request: Request) -> Response:
        try:
            if tokens:
                check_token(request, *tokens)
            response: Response = await handler(request)
        except GatewayError as error:
            return error_response(error, openai=openai)
        except EngineRefusedError as error:
            refused = GatewayError(error.status, "Refused", str(error))
            return json_response(error.body, error.status) if error.body else error_response(refused, openai=openai)
        return response

    return guarded


class _Control:
    """Batches, permits, export and statistics."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def open_batch(self, request: Request) -> Response:
        return _message(self._gateway.batches.open(await _parse(request, OpenBatch)))

    async def batch(self, request: Request) -> Response:
        return _message(self._gateway.batches.progress(request.path_params["step"]))

    async def finish(self, request: Request) -> Response:
        message = await _parse(request, FinishTrajectory)
        return _message(self._gateway.finish(request.path_params["step"], message))

    async def abort(self, request: Request) -> Response:
        message = await _parse(request, AbortTrajectory)
        return _message(self._gateway.abort(request.path_params["step"], message))

    async def consume(self, request: Request) -> Response:
        exports = self._gateway.consume(request.path_params["step"])
        return json_response([export.model_dump(mode="json", by_alias=True) for export in exports])

    async def close(self, request: Request) -> Response:
        return _message(self._gateway.batches.close(request.path_params["step"]))

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
        name = self._gateway.settings.model or self._gateway.settings.rollout
        length = self._gateway.settings.limits.max_model_len
        model = {"id": name, "object": "model", "owned_by": "pearl", "max_model_len": length}
        return json_response({"object": "list", "data": [model]})

    async def health(self, _request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(self, _request: Request) -> Response:
        if self._gateway.membership_known:
            return PlainTextResponse("ok\n")
        return PlainTextResponse("the list of workers was not read yet\n", HTTPStatus.SERVICE_UNAVAILABLE)

    async def metrics(self, _request: Request) -> Response:
        text = render_metrics(gateway_stats(self._gateway, self._gateway.clock()), self._gateway.tally)
        return Response(text, media_type="text/plain; version=0.0.4")


async def _parse(request: Request, model: type[M]) -> M:
    try:
        return model.model_validate_json(await request.body())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        raise GatewayError(HTTPStatus.UNPROCESSABLE_ENTITY, "BadField", f"{where}: {first['msg']}") from None


def _message(message: BaseModel) -> Response:
    return Response(message.model_dump_json(by_alias=True), media_type="application/json")
