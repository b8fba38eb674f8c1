"""Routes of the gateway (port 8080): who may call what, and which part answers. See `pearl_api.wire.gateway`."""

from __future__ import annotations

from functools import wraps
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from pearl_gateway.asgi import CLIENT_LEFT, check_token, error_response, json_response
from pearl_gateway.bodies import BoundedBodies
from pearl_gateway.control import Control
from pearl_gateway.errors import EngineRefusedError, GatewayError
from pearl_gateway.inference import Inference
from pearl_gateway.sglang import sglang_routes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.types import Receive, Scope, Send

    from pearl_gateway.gateway import Gateway
    from pearl_gateway.settings import Limits
    from pearl_gateway.sglang.running import Everywhere

Handler = "Callable[[Request], Awaitable[Response]]"


def create_app(gateway: Gateway, control: Control | None = None, running: Everywhere | None = None) -> Starlette:
    """The ASGI application of one gateway.

    Args:
        gateway: What answers.
        control: Other handlers of batches and statistics, where several processes share them.
        running: The same of SGLang's requests under way.
    """
    inference, control = Inference(gateway), control or Control(gateway)
    client = (gateway.settings.tokens.client,)
    reader = (gateway.settings.tokens.client, gateway.settings.tokens.gateway)

    def guard(handler: Any, tokens: tuple[str | None, ...], *, work: bool = False) -> Any:
        allowed = () if gateway.settings.open_access else tokens
        return _guarded(handler, allowed, gateway.note_asked if work else None)

    turns = {
        "/inference/v1/generate": guard(inference.generate, client, work=True),
        "/v1/completions": guard(inference.completions, client, work=True),
        "/v1/chat/completions": guard(inference.chat, client, work=True),
    }
    return App(
        turns,
        gateway.settings.limits,
        routes=[
            *(Route(path, handler, methods=["POST"]) for path, handler in turns.items()),
            Route("/v1/batches", guard(control.open_batch, client, work=True), methods=["POST"]),
            Route("/v1/batches/{step}", guard(control.batch, client), methods=["GET"]),
            Route("/v1/batches/{step}/finish", guard(control.finish, client), methods=["POST"]),
            Route("/v1/batches/{step}/abort", guard(control.abort, client), methods=["POST"]),
            Route("/v1/batches/{step}/consume", guard(control.consume, client), methods=["POST"]),
            Route("/v1/batches/{step}/close", guard(control.close, client), methods=["POST"]),
            Route("/v1/permits", guard(control.permit, client, work=True), methods=["POST"]),
            Route("/v1/trajectories/{name:path}", guard(control.trajectory, client), methods=["GET"]),
            Route("/v1/stats", guard(control.stats, reader), methods=["GET"]),
            Route("/v1/models", guard(control.models, ()), methods=["GET"]),
            Route("/v1/models/{name:path}", guard(control.model, ()), methods=["GET"]),
            Route("/openapi.json", guard(control.openapi, ()), methods=["GET"]),
            Route("/health", guard(control.health, ()), methods=["GET"]),
            Route("/ready", guard(control.ready, ()), methods=["GET"]),
            Route("/metrics", guard(control.metrics, ()), methods=["GET"]),
            *sglang_routes(
                gateway,
                inference,
                lambda handler: guard(handler, client),
                lambda handler: guard(handler, client, work=True),
                running,
            ),
        ],
    )


class App(Starlette):
    """Starlette, but for the paths of turns: finding and wrapping their handlers would cost as much as they do."""

    def __init__(self, turns: Mapping[str, Any], limits: Limits, routes: list[Route]) -> None:
        super().__init__(
            routes=routes,
            middleware=[Middleware(BoundedBodies, limits=limits)],
            exception_handlers={HTTPException: _no_route, Exception: _bug},
        )
        self._turns = turns
        self._direct = BoundedBodies(self._turn, limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in self._turns:
            await self._direct(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    async def _turn(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response: Response = await self._turns[scope["path"]](request)
        except Exception as error:
            await (await _bug(request, error))(scope, receive, send)
            raise
        await response(scope, receive, send)


async def _no_route(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else HTTPStatus.NOT_FOUND
    reason = "MethodNotAllowed" if status == HTTPStatus.METHOD_NOT_ALLOWED else "PathUnknown"
    message = f"{request.method} {request.url.path} is not served here: see docs/gateway.md"
    return error_response(GatewayError(status, reason, message))


async def _bug(_request: Request, error: Exception) -> Response:
    message = f"a bug of the gateway, its log has the details: {type(error).__name__}"
    return error_response(GatewayError(HTTPStatus.INTERNAL_SERVER_ERROR, "Bug", message))


def _guarded(handler: Any, tokens: tuple[str | None, ...], note: Callable[[], None] | None) -> Any:
    """Check the token and turn the known errors into answers; anything else is a bug and a 500.

    `note` is called of every request that is let in.
    """

    @wraps(handler)
    async def guarded(request: Request) -> Response:
        try:
            if tokens:
                check_token(request, *tokens)
            if note is not None:
                note()
            response: Response = await handler(request)
        except GatewayError as error:
            return error_response(error)
        except EngineRefusedError as error:
            return json_response(error.body, error.status) if error.body else error_response(error.passed_on())
        except ClientDisconnect:
            return Response(status_code=CLIENT_LEFT)
        return response

    return guarded
