"""The little HTTP that the emulator needs, as ASGI: requests, JSON answers, event streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NoReturn
from urllib.parse import parse_qs

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class BrokenConnectionError(Exception):
    """Raised out of the application, so that the server closes the connection in mid-answer."""


class Request:
    """One request, read."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.content = b""
        self._scope = scope
        self._receive = receive
        self._send = send

    async def read(self) -> None:
        """Take the body in."""
        parts = []
        while True:
            message = await self._receive()
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                break
        self.content = b"".join(parts)

    def header(self, name: str) -> str | None:
        """A header by its lower-case name."""
        wanted = name.encode()
        found = next((value for key, value in self._scope["headers"] if key == wanted), None)
        return None if found is None else found.decode("latin-1")

    def query(self, name: str) -> list[str]:
        """All values of a query parameter."""
        return parse_qs(self._scope.get("query_string", b"").decode("latin-1")).get(name, [])

    async def gone(self) -> None:
        """Returns when the client has left."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def answer(self, content: bytes, status: int = 200, kind: str | None = "application/json") -> None:
        """Send a whole answer."""
        headers = [(b"content-length", str(len(content)).encode())]
        if kind is not None:
            headers.append((b"content-type", kind.encode()))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": content})

    async def answer_json(self, body: Any, status: int = 200) -> None:
        """Send a JSON answer."""
        await self.answer(json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(), status)

    async def break_off(self) -> NoReturn:
        """Begin an answer and close the connection.

        Raises:
            BrokenConnectionError: always; it has to reach the server.
        """
        headers = [(b"content-length", b"1000")]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        raise BrokenConnectionError

    async def open_stream(self) -> None:
        """Begin a stream of events."""
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def event(self, body: Any) -> None:
        """One event of the stream."""
        await self.raw_event(json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode())

    async def raw_event(self, content: bytes, *, last: bool = False) -> None:
        """One event with this text; `last` closes the stream."""
        await self._send({"type": "http.response.body", "body": b"data: " + content + b"\n\n", "more_body": not last})


async def unless_gone(request: Request, work: Awaitable[Any]) -> bool:
    """Do `work` while the client is there; False if it left, then the work was cancelled."""
    doing = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(request.gone())
    try:
        await asyncio.wait((doing, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            return False
        doing.result()
        return True
    finally:
        for task in (doing, leaving):
            task.cancel()
        await asyncio.gather(doing, leaving, return_exceptions=True)
