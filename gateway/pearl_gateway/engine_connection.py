"""One connection to an engine: what is sent, and what comes back through the parser, one call at a time."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple, cast

import httptools

if TYPE_CHECKING:
    from asyncio import Transport

    from pearl_gateway.calls import Call, Calls


class CallError(OSError):
    """No connection, or it ended before the answer did."""


class NeverBegunError(CallError):
    """The connection ended without a byte of the answer."""


class Address(NamedTuple):
    """Where an engine listens."""

    tls: bool
    host: str
    port: int


class EngineConnection(asyncio.Protocol):
    """One connection; it has a call at a time, or none while it is kept."""

    def __init__(self, calls: Calls, address: Address) -> None:
        self.address = address
        self.kept_at = 0.0
        self._calls = calls
        self._call: Call | None = None
        self._transport: Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._begun = False
        self._framed = False
        """The answer tells where it ends; else the end of the connection is its end."""

    @property
    def usable(self) -> bool:
        """The engine has not closed it."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, call: Call, request: bytes) -> None:
        """Begin a call."""
        self._call, self._begun = call, False
        if self._transport is not None:
            self._transport.write(request)

    def drop(self) -> None:
        """Close it at once, and tell the call that has it."""
        if self._call is not None:
            self._call.failed(CallError("broken off"))
        self.abort()

    def abort(self) -> None:
        """Close it at once."""
        self._call = None
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Take nothing more from the engine."""
        if self._transport is not None and self.usable:
            self._transport.pause_reading()

    def go_on(self) -> None:
        """Take it again."""
        if self._transport is not None and self.usable:
            self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = cast("Transport", transport)
        self._calls.open.add(self)

    def data_received(self, data: bytes) -> None:
        """Feeds the parser; an engine that speaks without being asked, or no HTTP, is cut off."""
        call = self._call
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.abort()
            if call is not None:
                call.failed(CallError(f"no HTTP: {error}"))
            return
        if call is None:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Its call ends, well only where this is how its answer ends."""
        self._calls.open.discard(self)
        call, self._call = self._call, None
        if call is None:
            return
        if not self._begun:
            call.failed(NeverBegunError(f"the connection ended without an answer: {exc or 'closed'}"))
        elif self._framed or not call.status or exc is not None:
            call.failed(CallError(f"the connection ended in the answer: {exc or 'closed'}"))
        else:
            call.ended()

    def on_message_begin(self) -> None:
        """The first byte of an answer; nobody waits for a second one."""
        if self._call is None:
            self.abort()
        self._begun, self._framed = True, False

    def on_header(self, name: bytes, value: bytes) -> None:
        """One line of its head."""
        lower = name.lower()
        self._framed = self._framed or lower in (b"content-length", b"transfer-encoding")
        if self._call is not None:
            self._call.headers[lower.decode("latin-1")] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """The head is whole; one that only says that the real one comes is forgotten."""
        status = self._parser.get_status_code()
        if self._call is not None and status >= HTTPStatus.OK:
            self._call.status = status
        elif self._call is not None:
            self._call.headers.clear()

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        if self._call is not None:
            self._call.came(body)

    def on_message_complete(self) -> None:
        """The answer is whole."""
        call = self._call
        if call is None or not call.status:
            return
        self._call = None
        call.ended()
        if self._parser.should_keep_alive():
            self._calls.keep(self)
        else:
            self.abort()
