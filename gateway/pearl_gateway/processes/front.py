"""Before the application of a process that is one of several: passes on what belongs to another one.

A trajectory's requests go to the process it lives in, what there is once goes to the owner, and the rest is answered
where it arrives.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect

from pearl_api.wire.gateway import HEADER_TRAJECTORY
from pearl_gateway.asgi import error_response
from pearl_gateway.bodies import BoundedBodies
from pearl_gateway.errors import GatewayError
from pearl_gateway.jsons import loads
from pearl_gateway.processes.forward import forward
from pearl_gateway.processes.homes import OWNER, home_of
from pearl_gateway.sglang.routes import SESSION

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from pearl_gateway.processes.peers import Peers
    from pearl_gateway.settings import Limits

_TURNS = frozenset(("/inference/v1/generate", "/v1/completions", "/v1/chat/completions", "/generate"))
_ONCE = re.compile(
    r"/v1/(batches(/.*)?|permits|stats|loads)|/metrics|/ready|/get_load|/(pause|continue)_generation|/abort_request"
)
_EXPORT = "/v1/trajectories/"
_HEADER, _SESSION_HEADER = HEADER_TRAJECTORY.lower().encode(), SESSION.lower().encode()
_UNSURE = (b"pearl", b"\\u", b"\x00")
"""A body without any of these has no field `pearl`, however it is written and in whichever encoding."""


class Front:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, peers: Peers, limits: Limits) -> None:
        self._app = app
        self._peers = peers
        self._bounded = BoundedBodies(self._serve, limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection's request."""
        await self._bounded(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            where, body = await self._place(scope, receive)
            if where != self._peers.number and body is None:
                body = await _read(receive)
        except GatewayError as error:
            await error_response(error)(scope, receive, send)
            return
        except ClientDisconnect:
            return
        if where != self._peers.number:
            await forward(self._peers, where, scope, body or b"", receive, send)
            return
        await self._app(scope, receive if body is None else _Replayed(body, receive), send)

    async def _place(self, scope: Scope, receive: Receive) -> tuple[int, bytes | None]:
        """The process that answers, and the body if it was read for that."""
        path, count = scope["path"], self._peers.count
        if path in _TURNS:
            said = _header(scope, _HEADER)
            if said:
                return home_of(said, count), None
            body = await _read(receive)
            name = named(body) or (_header(scope, _SESSION_HEADER) if path == "/generate" else "")
            return home_of(name, count) if name else self._peers.number, body
        if path.startswith(_EXPORT):
            return home_of(path.removeprefix(_EXPORT), count), None
        return OWNER if _ONCE.fullmatch(path) else self._peers.number, None


def named(body: bytes) -> str | None:
    """The trajectory that a body names; None where it names none, or nothing that can be meant."""
    if not any(mark in body for mark in _UNSURE):
        return None
    try:
        content: Any = loads(body)
    except (ValueError, RecursionError):
        return None
    fields = content.get("pearl") if isinstance(content, dict) else None
    name = fields.get("trajectory") if isinstance(fields, dict) else None
    return name if isinstance(name, str) and name else None


async def _read(receive: Receive) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def _header(scope: Scope, name: bytes) -> str:
    found: bytes = next((value for key, value in scope["headers"] if key == name), b"")
    return found.decode("latin-1")


class _Replayed:
    """Receives a body that was read already."""

    __slots__ = ("_body", "_receive")

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        body, self._body = self._body, None
        if body is None:
            return await self._receive()
        return {"type": "http.request", "body": body, "more_body": False}
