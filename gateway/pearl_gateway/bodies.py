"""Bounds on what a client sends: how much, and how long it may take. A slow or endless body holds nobody else up."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING

from pearl_gateway.asgi import error_response
from pearl_gateway.errors import GatewayError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from pearl_gateway.settings import Limits


WHOLE = "pearl.whole"
"""In the scope of a request whose body came with its head: nothing of it is waited for."""


class BoundedBodies:
    """ASGI middleware: refuses bodies above `max_body_bytes` (413) and those not here in `body_seconds` (408)."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection's request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if announced.isdigit() and int(announced[:20]) > self._limits.max_body_bytes:
            await error_response(self._too_large())(scope, receive, send)
            return
        await self._app(scope, _Body(scope, receive, self._limits, self._too_large()), send)

    def _too_large(self) -> GatewayError:
        most = self._limits.max_body_bytes
        message = f"the body is longer than {most} bytes (PEARL_MAX_BODY_BYTES): send less"
        return GatewayError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "BodyTooLarge", message)


class _Body:
    """Receives one body; after its end the only thing to come is that the client leaves, which may take any time."""

    __slots__ = ("_deadline", "_ended", "_limits", "_read", "_receive", "_scope", "_too_large")

    def __init__(self, scope: Scope, receive: Receive, limits: Limits, too_large: GatewayError) -> None:
        self._scope = scope
        self._receive = receive
        self._limits = limits
        self._too_large = too_large
        self._deadline: float | None = None
        self._ended = False
        self._read = 0

    async def __call__(self) -> Message:
        if self._ended:
            return await self._receive()
        message = await (self._receive() if WHOLE in self._scope else self._in_time())
        self._read += len(message.get("body", b""))
        self._ended = not message.get("more_body", False)
        if self._read > self._limits.max_body_bytes:
            raise self._too_large
        return message

    async def _in_time(self) -> Message:
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().time() + self._limits.body_seconds
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self._receive()
        except TimeoutError:
            said = f"the body was not here within {self._limits.body_seconds:g} s (PEARL_BODY_SECONDS)"
            raise GatewayError(HTTPStatus.REQUEST_TIMEOUT, "BodyTooSlow", said) from None
