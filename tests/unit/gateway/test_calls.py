"""Calls to engines as bytes on a connection: what is kept, what is sent again, what breaks and what waits."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from pearl_gateway.calls import Calls
from pearl_gateway.engine_connection import CallError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

HELLO = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-One: 1\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n"
REST = b"3\r\ntwo\r\n0\r\n\r\n"


class Engine:
    """A server that answers the n-th request of all with what `answer` writes."""

    def __init__(self, answer: Callable[[int, asyncio.StreamWriter], Awaitable[None]]) -> None:
        self._answer = answer
        self.requests: list[bytes] = []
        self.connections = 0
        self.open = 0
        self.quiet = asyncio.Event()
        """Nobody is connected."""
        self.quiet.set()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        self.quiet.clear()
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                await self._answer(len(self.requests), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            if not self.open:
                self.quiet.set()
            writer.close()


@asynccontextmanager
async def engine(*answers: bytes | None) -> AsyncIterator[tuple[Engine, Calls]]:
    """An engine that answers with these bytes, one after the other and the last for good; None = it hangs up."""

    async def answer(number: int, writer: asyncio.StreamWriter) -> None:
        said = answers[min(number, len(answers)) - 1]
        if said is None:
            writer.transport.abort()
        else:
            writer.write(said)

    found = Engine(answer)
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    found.url = f"http://{host}:{port}"
    calls = Calls(1.0)
    try:
        yield found, calls
    finally:
        await calls.close()
        server.close()
        await asyncio.wait_for(found.quiet.wait(), 5)
        await server.wait_closed()


async def ask(calls: Calls, url: str, path: str = "/x") -> bytes:
    call = calls.post(url + path, {"X-Mine": "a"}, b"body")
    try:
        await call.begin()
        return await call.read()
    finally:
        call.close()


async def test_one_connection_serves_calls_one_after_the_other() -> None:
    async with engine(HELLO) as (one, calls):
        for _ in range(3):
            assert await ask(calls, one.url) == b"hello"
        assert one.connections == 1
        host = one.url.removeprefix("http://").encode()
        head = b"POST /x HTTP/1.1\r\nHost: %b\r\nAccept: */*\r\nX-Mine: a\r\nContent-Length: 4\r\n\r\nbody"
        assert one.requests[0] == head % host


async def test_status_and_headers() -> None:
    async with engine(b"HTTP/1.1 503 No\r\nX-A: 1\r\nx-a: 2\r\nContent-Length: 0\r\n\r\n") as (one, calls):
        call = calls.post(one.url + "/", {}, b"")
        await call.begin()
        assert (call.status, call.headers["x-a"], await call.read()) == (503, "2", b"")


async def test_calls_at_once_have_connections_of_their_own() -> None:
    async with engine(HELLO) as (one, calls):
        assert await asyncio.gather(*(ask(calls, one.url) for _ in range(4))) == [b"hello"] * 4
        assert one.connections == 4
        assert await asyncio.gather(*(ask(calls, one.url) for _ in range(4))) == [b"hello"] * 4
        assert one.connections == 4


async def test_a_kept_connection_that_was_closed_meanwhile_is_no_dead_engine() -> None:
    async with engine(HELLO, None, HELLO) as (one, calls):
        assert await ask(calls, one.url) == b"hello"
        assert await ask(calls, one.url) == b"hello"
        assert (one.connections, len(one.requests)) == (2, 3)


async def test_a_new_connection_that_is_closed_is_one() -> None:
    async with engine(None) as (one, calls):
        with pytest.raises(CallError, match="without an answer"):
            await ask(calls, one.url)
        assert len(one.requests) == 1


async def test_an_answer_that_breaks_is_not_sent_again() -> None:
    async with engine(HELLO, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhe") as (one, calls):
        assert await ask(calls, one.url) == b"hello"
        call = calls.post(one.url, {}, b"")
        await call.begin()
        assert await call.read_any() == b"he"
        reading = asyncio.ensure_future(call.read_any())
        await asyncio.sleep(0)
        call.close()
        with pytest.raises(CallError, match="broken off"):
            await reading
        assert len(one.requests) == 2


async def test_the_end_of_the_connection_is_the_end_of_an_answer_that_tells_none() -> None:
    async def close(_: int, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nall of it")
        writer.close()

    async with engine(b"") as (one, calls):
        one._answer = close
        assert await ask(calls, one.url) == b"all of it"


async def test_the_end_of_the_connection_breaks_any_other() -> None:
    async def close(_: int, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED)
        writer.close()

    async with engine(b"") as (one, calls):
        one._answer = close
        with pytest.raises(CallError, match="ended in the answer"):
            await ask(calls, one.url)


async def test_what_only_announces_the_answer_is_none() -> None:
    async with engine(b"HTTP/1.1 100 Continue\r\nX-One: 0\r\n\r\n" + HELLO) as (one, calls):
        assert await ask(calls, one.url) == b"hello"
        assert await ask(calls, one.url) == b"hello"
        assert one.connections == 1


async def test_an_engine_that_says_it_closes_is_believed() -> None:
    async with engine(HELLO.replace(b"X-One: 1", b"Connection: close")) as (one, calls):
        assert await ask(calls, one.url) == b"hello"
        assert await ask(calls, one.url) == b"hello"
        assert one.connections == 2


@pytest.mark.parametrize("more", [b"HTTP/1.1 408 Late\r\nContent-Length: 0\r\n\r\n", b"what?"])
async def test_an_answer_to_no_call_is_given_to_none(more: bytes) -> None:
    async with engine(HELLO + more, HELLO) as (one, calls):
        assert await ask(calls, one.url) == b"hello"
        assert await ask(calls, one.url) == b"hello"
        assert one.connections == 2


async def test_no_http_is_an_error() -> None:
    async with engine(b"220 mail.example ESMTP\r\n") as (one, calls):
        with pytest.raises(CallError, match="no HTTP"):
            await ask(calls, one.url)


async def test_the_rest_of_an_answer_is_not_waited_for_and_its_connection_is_kept() -> None:
    async with engine(CHUNKED) as (one, calls):

        async def late(number: int, writer: asyncio.StreamWriter) -> None:
            writer.write(CHUNKED)
            await asyncio.sleep(0.02 if number == 1 else 0.5)
            writer.write(REST)

        one._answer = late
        for connections in (1, 1, 2):
            call = calls.post(one.url, {}, b"")
            await call.begin()
            assert await call.read_any() == b"one"
            call.let_go()
            call.close()
            # The second one's rest is not here in time.
            await asyncio.sleep(0.1)
            assert one.connections == connections


async def test_an_engine_waits_for_a_slow_reader() -> None:
    sent = 0

    async def flood(_: int, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _at in range(512):
            writer.write(b"10000\r\n" + bytes(1 << 16) + b"\r\n")
            await writer.drain()
            sent += 1 << 16
        writer.write(b"0\r\n\r\n")

    async with engine(b"") as (one, calls):
        one._answer = flood
        call = calls.post(one.url, {}, b"")
        await call.begin()
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.1)
        assert sent < 24 << 20
        assert len(await call.read()) == 32 << 20


async def test_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pearl_gateway.calls.IDLE_SECONDS", 0.1)
    async with engine(HELLO) as (one, calls):
        await asyncio.gather(ask(calls, one.url), ask(calls, one.url))
        await asyncio.wait_for(one.quiet.wait(), 2)
        assert await ask(calls, one.url) == b"hello"
        assert one.connections == 3


async def test_nobody_listens() -> None:
    async with engine(HELLO) as (one, calls):
        url = one.url
    with pytest.raises(CallError, match="no connection: "):
        await ask(calls, url)
    with pytest.raises(CallError, match="must begin with http://"):
        await ask(calls, "host:8000")


async def test_connecting_has_its_time_and_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object, **__: object) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", never)
    with pytest.raises(CallError, match=r"no connection within 0\.05 s"):
        await ask(Calls(0.05), "http://127.0.0.1:1")
    call = Calls(30.0).post("http://127.0.0.1:1", {}, b"")
    begun = asyncio.ensure_future(call.begin())
    await asyncio.sleep(0.01)
    call.close()
    with pytest.raises(CallError, match="broken off"):
        await begun


async def test_whoever_is_cancelled_while_connecting_is(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object, **__: object) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", never)
    call = Calls(30.0).post("http://127.0.0.1:1", {}, b"")
    begun = asyncio.ensure_future(call.begin())
    await asyncio.sleep(0.01)
    begun.cancel()
    with pytest.raises(asyncio.CancelledError):
        await begun


async def test_what_was_let_go_does_not_outlive_the_gateway() -> None:
    async with engine(CHUNKED) as (one, calls):
        call = calls.post(one.url, {}, b"")
        await call.begin()
        await call.read_any()
        call.let_go()
        waiting = calls.post(one.url, {}, b"")
        await waiting.begin()
        await waiting.read_any()
        reading = asyncio.ensure_future(waiting.read_any())
        await asyncio.sleep(0)
        await calls.close()
        assert not calls.open
        with pytest.raises(CallError, match="broken off"):
            await reading


async def test_a_connection_that_had_to_wait_at_the_end_of_its_answer_serves_the_next_call() -> None:
    large = b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n" + bytes(300_000)
    async with engine(large, HELLO) as (one, calls):
        call = calls.post(one.url, {}, b"")
        await call.begin()
        await asyncio.sleep(0.2)
        assert len(await call.read()) == 300_000
        async with asyncio.timeout(2):
            assert await ask(calls, one.url) == b"hello"
        assert one.connections == 1
