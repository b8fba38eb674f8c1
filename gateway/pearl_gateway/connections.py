"""The gateway's port: what one connection and one client address may cost before a request is there.

uvicorn knows no bound on request heads, on their time, or on connections; this is its protocol class with these added.
Bodies of requests that are being answered are bounded in `bodies`.

| while                                                | the client has                         | then |
|------------------------------------------------------|----------------------------------------|------|
| nothing was sent, or the last answer was taken       | `client_idle_seconds`                  | closed |
| a head has begun, or a body goes on after its answer | `head_seconds`                         | 408 (head), closed |
| an answer is under way                               | `client_stall_seconds` to take of it   | reset by the kernel |
"""

from __future__ import annotations

import contextlib
import socket
from collections import Counter
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pearl_gateway.asgi import openai_error
from pearl_gateway.bodies import WHOLE
from pearl_gateway.errors import GatewayError, bad_request, try_later
from pearl_gateway.jsons import dumps

if TYPE_CHECKING:
    from asyncio import Transport
    from asyncio.events import TimerHandle

    from starlette.types import ASGIApp

    from pearl_gateway.settings import Limits

_PIPELINED = 16
"""Requests that one connection may send ahead of an answer; OpenAI's and Python's HTTP clients send none."""
_PROBE_SECONDS = 15
"""How often the kernel asks a silent client whether its machine is still there."""


class _RefusedError(Exception):
    """Raised within the parser's callbacks: it ends the parsing, and `send_400_response` says why."""


class Connection(HttpToolsProtocol):
    """One connection of a client. A class per server, made by `connection_class`, has its limits and its counts."""

    limits: ClassVar[Limits]
    open: ClassVar[Counter[str]]
    """Connections by client address."""

    _slow: TimerHandle | None = None
    _address = ""
    _in_head = True
    _owes = False
    _wire_bytes = 0
    _why: GatewayError | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """A client connected; it is turned away where its address has too many connections."""
        super().connection_made(transport)
        self.timeout_keep_alive = self.limits.client_idle_seconds  # type: ignore[assignment] # seconds of call_later
        self._address = self.client[0] if self.client else ""
        self.open[self._address] += 1
        if self.open[self._address] > self.limits.max_client_connections:
            self._refuse(_too_many(self.limits.max_client_connections))
        else:
            self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing of the connection stays."""
        self.open[self._address] -= 1
        if not self.open[self._address]:
            del self.open[self._address]
        self._unwatch()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feeds the parser; afterwards whatever is unfinished has a deadline."""
        self._owes = True
        self._wire_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._wire_bytes > self._most_bytes():
            self._refuse(self._head_too_large() if self._in_head else None)
        elif self._answering():
            return
        elif not self._owes:
            self._await_request()
        elif self._slow is None:
            self._slow = self.loop.call_later(self.limits.head_seconds, self._too_slow)

    def on_message_begin(self) -> None:
        """A request's first byte."""
        self._wire_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """A head is whole: refuse it, or begin to answer."""
        self._in_head = False
        self._unwatch()
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > self.limits.max_head_bytes:
            self._why = self._head_too_large()
            raise _RefusedError
        if len(self.pipeline) >= _PIPELINED:
            raise _RefusedError
        super().on_headers_complete()
        if self.scope["method"] == "POST" and not self.expect_100_continue:
            self.cycle.transport = cast("Transport", HeadWithBody(self.transport))

    def on_message_complete(self) -> None:
        """The request has ended."""
        self._in_head, self._owes = True, False
        self._unwatch()
        cast("dict[str, Any]", self.scope)[WHOLE] = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What is sent is no HTTP, or too much of it."""
        self._refuse(self._why or bad_request(msg))

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _most_bytes(self) -> int:
        """Of the request on the wire. Chunk sizes and trailers count, so a body may take double its length."""
        return self.limits.max_head_bytes + (0 if self._in_head else 2 * self.limits.max_body_bytes)

    def _await_request(self) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.limits.client_idle_seconds, self.timeout_keep_alive_handler
        )

    def _unwatch(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None

    def _too_slow(self) -> None:
        seconds = self.limits.head_seconds
        said = f"the head of the request was not here within {seconds:g} s (PEARL_HEAD_SECONDS)"
        self._refuse(GatewayError(HTTPStatus.REQUEST_TIMEOUT, "HeadTooSlow", said) if self._in_head else None)

    def _head_too_large(self) -> GatewayError:
        said = f"the head of the request is longer than {self.limits.max_head_bytes} bytes (PEARL_MAX_HEAD_BYTES)"
        return GatewayError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "HeadTooLarge", said)

    def _refuse(self, error: GatewayError | None) -> None:
        """Close the connection, with an answer where none is under way."""
        if error is not None and not self._answering():
            self.transport.write(_raw_answer(error))
        self.transport.close()


class HeadWithBody:
    """A transport for one answer: its head goes out with the first of its body, which saves the client a wake-up."""

    __slots__ = ("_head", "_sent", "_transport")

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._head = b""
        self._sent = False

    def write(self, data: bytes) -> None:
        """The first is the head."""
        if self._sent:
            self._transport.write(data)
        elif self._head:
            self._sent = True
            self._transport.write(self._head + data)
        else:
            self._head = data

    def close(self) -> None:
        """Close it after what was written."""
        if not self._sent:
            self._transport.write(self._head)
        self._transport.close()

    def is_closing(self) -> bool:
        """It is closed, or will be."""
        return self._transport.is_closing()


def connection_class(limits: Limits) -> type[Connection]:
    """The protocol class of one server."""

    class Served(Connection):
        pass

    Served.limits, Served.open = limits, Counter()
    return Served


def server_config(app: ASGIApp, limits: Limits, **options: Any) -> uvicorn.Config:
    """Uvicorn's configuration of the gateway's port; `options` are its own: `host`, `port` and the like."""
    return uvicorn.Config(
        app,
        http=connection_class(limits),
        ws="none",
        proxy_headers=False,
        access_log=False,
        log_level="warning",
        **options,
    )


def listener(config: uvicorn.Config, stall_seconds: float) -> socket.socket:
    """The socket that the gateway listens on.

    The kernel cuts off clients that take nothing for `stall_seconds`: each would keep its answer in memory for good.
    It also finds those whose machine is gone while they wait for an answer.
    """
    made = config.bind_socket()
    _watch_clients(made, stall_seconds)
    return made


def shared_listener(host: str, port: int, stall_seconds: float) -> socket.socket:
    """The same of one of several processes at one address: the kernel shares connections out among those that listen.

    Raises:
        OSError: the port is somebody else's.
    """
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind((host, port))
    except OSError:
        made.close()
        raise
    _watch_clients(made, stall_seconds)
    return made


def _watch_clients(made: socket.socket, stall_seconds: float) -> None:
    # asyncio leaves it to whoever makes the socket; without, events of a stream wait for each other's acknowledgement.
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_SECONDS)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, int(1000 * stall_seconds)))


def allow_open_files() -> None:
    """Raise the process's limit of open files as far as it may: a turn needs two, and 1024 is a usual default."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource  # noqa: PLC0415 - not on every platform

        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _too_many(most: int) -> GatewayError:
    said = f"this address has {most} connections already (PEARL_MAX_CLIENT_CONNECTIONS): close or share some"
    return try_later("TooManyConnections", said, 1.0)


def _raw_answer(error: GatewayError) -> bytes:
    status = HTTPStatus(error.status)
    later = "" if error.retry_after_seconds is None else f"retry-after: {max(1, round(error.retry_after_seconds))}\r\n"
    body = dumps(openai_error(error))
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n{later}connection: close\r\n\r\n"
    )
    return head.encode() + body
