"""HTTP/1.1 calls to engines: one request on a kept connection, its answer as it comes, broken off at any time.

Every turn is one such call. What general clients offer beside it (redirects, cookies, proxies, compression) would cost
a turn more than everything else that the gateway does for it.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pearl_gateway.engine_connection import Address, CallError, EngineConnection, NeverBegunError

if TYPE_CHECKING:
    from collections.abc import Mapping

IDLE_SECONDS = 2.0
"""Idle connections are closed before engines do it (uvicorn, after 5 s): a request that meets the closing end of one
would look like a dead engine."""
_REST_SECONDS = 0.05
"""How long the rest of an answer that nobody wants may take before its connection is given up."""
_MOST_UNREAD = 1 << 18
"""Bytes of an answer that wait for their reader before the engine has to wait too."""


class Calls:
    """Makes calls and keeps their connections for the next ones; one per process."""

    def __init__(self, connect_seconds: float) -> None:
        self._connect_seconds = connect_seconds
        self._kept: dict[Address, list[EngineConnection]] = {}
        self._sweeping: asyncio.TimerHandle | None = None
        self.open: set[EngineConnection] = set()
        """All connections, kept or not."""

    def post(self, url: str, headers: Mapping[str, str], content: bytes) -> Call:
        """A call that `begin` sends; `headers` are further ones."""
        address, target, head = _parts(url)
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        text = f"POST {target} HTTP/1.1\r\n{head}{lines}Content-Length: {len(content)}\r\n\r\n"
        return Call(self, address, text.encode() + content)

    async def close(self) -> None:
        """Close all connections; calls that are under way fail."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        self._kept.clear()
        for one in list(self.open):
            one.drop()
        await asyncio.sleep(0)  # their transports close in the loop's next round

    def take(self, address: Address) -> EngineConnection | None:
        """A kept connection that is still good, if there is one."""
        kept = self._kept.get(address)
        while kept:
            found = kept.pop()
            if found.usable:
                return found
        return None

    def keep(self, connection: EngineConnection) -> None:
        """It can be used again."""
        loop = asyncio.get_running_loop()
        connection.kept_at = loop.time()
        self._kept.setdefault(connection.address, []).append(connection)
        if self._sweeping is None:
            self._sweeping = loop.call_later(IDLE_SECONDS, self._sweep)

    async def connect(self, address: Address) -> EngineConnection:
        """A new connection.

        Raises:
            CallError: there is none within the time for it.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_seconds):
                _, made = await loop.create_connection(
                    lambda: EngineConnection(self, address), address.host, address.port, ssl=address.tls or None
                )
        except TimeoutError:
            raise CallError(f"no connection within {self._connect_seconds:g} s") from None
        except OSError as error:
            raise CallError(f"no connection: {error}") from error
        return made

    def _sweep(self) -> None:
        """Close what was not used for the idle time."""
        loop = asyncio.get_running_loop()
        until = loop.time() - IDLE_SECONDS
        for address, kept in list(self._kept.items()):
            fresh = []
            for one in kept:
                if one.usable and one.kept_at > until:
                    fresh.append(one)
                else:
                    one.abort()
            if fresh:
                self._kept[address] = fresh
            else:
                del self._kept[address]
        oldest = min((one.kept_at for kept in self._kept.values() for one in kept), default=None)
        self._sweeping = None if oldest is None else loop.call_at(oldest + IDLE_SECONDS, self._sweep)


class Call:
    """One request and its answer."""

    def __init__(self, calls: Calls, address: Address, request: bytes) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        """By lower-case name; where one comes twice, the last."""
        self._calls = calls
        self._address = address
        self._request = request
        self._connecting: asyncio.Task[EngineConnection] | None = None
        self._connection: EngineConnection | None = None
        self._body: list[bytes] = []
        self._unread = 0
        self._ended = False
        self._broken = False
        self._error: CallError | None = None
        self._news: asyncio.Future[None] | None = None
        self._giving_up: asyncio.TimerHandle | None = None

    async def begin(self) -> None:
        """Send the request; return with the answer's head and the first of its body.

        A kept connection that the engine closed meanwhile is no dead engine: then the request goes over a new one.

        Raises:
            CallError: no connection, or it ended before.
        """
        kept = self._calls.take(self._address)
        if kept is not None:
            try:
                await self._ask(kept)
            except NeverBegunError:
                if self._broken:
                    raise
                self._error = None
            else:
                return
        await self._ask(await self._connect())

    async def _connect(self) -> EngineConnection:
        self._connecting = asyncio.ensure_future(self._calls.connect(self._address))
        try:
            return await self._connecting
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._error is None or (task is not None and task.cancelling()):
                raise
            raise self._error from None
        finally:
            self._connecting = None

    async def _ask(self, connection: EngineConnection) -> None:
        if self._error is not None:
            connection.abort()
            raise self._error
        self._connection = connection
        connection.send(self, self._request)
        while not (self._body or self._ended):
            await self._wait()

    async def read_any(self) -> bytes:
        """What has come since the last time, at least a byte; empty at the end.

        Raises:
            CallError: the connection ended before the answer, or was broken off.
        """
        while not self._body:
            if self._ended:
                return b""
            await self._wait()
        data = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body.clear()
        if self._unread > _MOST_UNREAD and self._connection is not None:
            self._connection.go_on()
        self._unread = 0
        return data

    async def read(self) -> bytes:
        """The rest of the answer; raises as `read_any` does."""
        found = []
        while data := await self.read_any():
            found.append(data)
        return b"".join(found)

    def let_go(self) -> None:
        """Nothing more of it is wanted; its connection is kept if the rest comes soon."""
        if self._connection is not None and self._giving_up is None:
            self._connection.go_on()
            self._giving_up = asyncio.get_running_loop().call_later(_REST_SECONDS, self._break)

    def close(self) -> None:
        """Break it off, unless it has ended or was let go: the engine stops, and whoever waits gets a CallError."""
        if not self._ended and self._giving_up is None:
            self._break()

    def _break(self) -> None:
        self._broken = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            self._connection.abort()
        self.failed(CallError("broken off"))

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        self._news = asyncio.get_running_loop().create_future()
        try:
            await self._news
        finally:
            self._news = None

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def came(self, body: bytes) -> None:
        """The connection has a part of the body."""
        if self._giving_up is not None:
            return
        self._body.append(body)
        self._unread += len(body)
        if self._unread > _MOST_UNREAD and self._connection is not None:
            self._connection.pause()
        self._wake()

    def ended(self) -> None:
        """The answer is whole; the connection is not this call's any more, and waits for no reader of it."""
        if self._connection is not None and self._unread > _MOST_UNREAD:
            self._connection.go_on()
        self._ended, self._connection = True, None
        if self._giving_up is not None:
            self._giving_up.cancel()
        self._wake()

    def failed(self, error: CallError) -> None:
        """There will be no more."""
        self._error, self._connection = self._error or error, None
        if self._giving_up is not None:
            self._giving_up.cancel()
        if self._news is not None and not self._news.done():
            self._news.set_exception(self._error)


@lru_cache(maxsize=4096)
def _parts(url: str) -> tuple[Address, str, str]:
    """Where a URL leads, its path, and the lines that every request to it has."""
    found = urlsplit(url)
    tls = found.scheme == "https"
    if not found.hostname or found.scheme not in ("http", "https"):
        raise CallError(f"{url} is no address: it must begin with http:// and a host")
    port = found.port or (443 if tls else 80)
    return Address(tls, found.hostname, port), found.path or "/", f"Host: {found.netloc}\r\nAccept: */*\r\n"
