"""What a process answers the others, on its Unix socket; see `messages`. Everything else there is the application."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount, Route

from pearl_gateway.asgi import error_response, json_response, while_connected
from pearl_gateway.control import Control, message_response
from pearl_gateway.errors import GatewayError
from pearl_gateway.processes.local import end_here, exports_here
from pearl_gateway.processes.messages import Command, Count, End, Ending, Names, Prime, Primed, State, Sync

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp

    from pearl_gateway.gateway import Gateway
    from pearl_gateway.processes.member import Member, MemberBooks
    from pearl_gateway.processes.owner import Owner
    from pearl_gateway.processes.pausing import Pausing

M = TypeVar("M", bound=BaseModel)
_NOTHING = b"{}"


def owner_app(app: ASGIApp, gateway: Gateway, owner: Owner, pausing: Pausing) -> Starlette:
    """Of the owner."""

    async def sync(request: Request) -> Response:
        return message_response(owner.sync(await _body(request, Sync)))

    async def prime(request: Request) -> Response:
        answer = await while_connected(request, owner.prime(await _body(request, Prime)))
        return Response(_NOTHING) if answer is None else message_response(answer)

    async def primed(request: Request) -> Response:
        owner.primed(await _body(request, Primed))
        return Response(_NOTHING)

    routes = [_post("sync", sync), _post("prime", prime), _post("primed", primed)]
    return _internal(app, [*routes, *_common(gateway, pausing)])


def member_app(app: ASGIApp, gateway: Gateway, member: Member, books: MemberBooks, pausing: Pausing) -> Starlette:
    """Of any other process."""

    async def state(request: Request) -> Response:
        member.adopt_state(await _body(request, State))
        return Response(_NOTHING)

    async def part(_request: Request) -> Response:
        return message_response(member.part())

    async def end(request: Request) -> Response:
        message = await _body(request, End)
        ended = end_here(gateway, message)
        books.finished(message.trajectory, message.step if message.cause is None else None)
        return message_response(Ending.of(ended))

    async def exports(request: Request) -> Response:
        return json_response(exports_here(gateway, (await _body(request, Names)).names))

    async def consumed(request: Request) -> Response:
        for name in (await _body(request, Names)).names:
            books.finished(name, None)
        return Response(_NOTHING)

    routes = [
        Route("/_/state", state, methods=["PUT"]),
        Route("/_/part", part, methods=["GET"]),
        _post("end", end),
        _post("exports", exports),
        _post("consumed", consumed),
    ]
    return _internal(app, [*routes, *_common(gateway, pausing)])


def _common(gateway: Gateway, pausing: Pausing) -> list[Route]:
    async def running(request: Request) -> Response:
        return message_response(Count(count=pausing.do(await _body(request, Command))))

    alone = Control(gateway)
    return [
        _post("running", running),
        Route("/_/ready", alone.ready, methods=["GET"]),
        Route("/_/health", alone.health, methods=["GET"]),
    ]


def _post(name: str, handler: Any) -> Route:
    return Route(f"/_/{name}", handler, methods=["POST"])


def _internal(app: ASGIApp, routes: list[Route]) -> Starlette:
    return Starlette(routes=[*routes, Mount("/", app)], exception_handlers={GatewayError: _refused})


async def _refused(_request: Request, error: Exception) -> Response:
    if isinstance(error, GatewayError):
        return error_response(error)
    return Response(status_code=HTTPStatus.INTERNAL_SERVER_ERROR)


async def _body(request: Request, model: type[M]) -> M:
    return model.model_validate_json(await request.body())
