"""Over real sockets: clients that are slow, silent or endless are closed in time, and nobody else notices."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pearl_gateway.connections import listener, server_config
from pearl_gateway.settings import Limits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    import uvicorn

    from conftest import Bench

    Benches = Callable[..., AbstractAsyncContextManager[Bench]]

LIMITS = Limits(
    queue_seconds=5.0,
    stall_seconds=5.0,
    max_model_len=2048,
    body_seconds=1.5,
    head_seconds=0.4,
    client_idle_seconds=0.6,
    max_head_bytes=2000,
    max_body_bytes=4000,
)
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n"
NEXT = HEALTH + 1000 * b"X-A: b\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n"
BODY = b'{"token_ids":[7],"sampling_params":{"max_tokens":3}}'
TURN = b"POST /inference/v1/generate HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n"
TURN += b"Content-Length: %d\r\n" % len(BODY)


@pytest.fixture
async def bench(benches: Benches) -> AsyncIterator[Bench]:
    """Deadlines of half a second."""
    async with benches(LIMITS) as made:
        await made.engine()
        yield made


class Client:
    """One connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self.got = b""

    async def dribble(self, data: bytes) -> None:
        """Send `data` a byte at a time, without end, until the server closes."""
        for at in itertools.count():
            if self._reader.at_eof():
                break
            try:
                self.writer.write(data[at % len(data) : at % len(data) + 1])
                async with asyncio.timeout(0.05):
                    self.got += await self._reader.read(4096)
            except TimeoutError:
                continue
            except ConnectionError:
                break
        self.writer.close()

    async def rest(self) -> bytes:
        """All that comes until the server closes."""
        try:
            while more := await self._reader.read(4096):
                self.got += more
        except ConnectionError:
            pass
        self.writer.close()
        return self.got

    def statuses(self) -> list[int]:
        return [int(part[1:4]) for part in self.got.split(b"HTTP/1.1")[1:]]

    def error(self) -> str:
        found: str = json.loads(self.got[self.got.rindex(b"\r\n\r\n") :])["error"]["type"]
        return found


async def connect(url: str, data: bytes = b"") -> Client:
    host, port = url.removeprefix("http://").split(":")
    client = Client(*await asyncio.open_connection(host, int(port)))
    client.writer.write(data)
    return client


def server(bench: Bench) -> uvicorn.Server:
    assert bench.server is not None
    return bench.server


def held(bench: Bench) -> tuple[int, int, int]:
    """Tasks, open files, connections at the port."""
    return (
        len(asyncio.all_tasks()),
        len(list(Path("/proc/self/fd").iterdir())),
        len(server(bench).server_state.connections),
    )


async def turn(bench: Bench, url: str) -> None:
    """Somebody else's turn."""
    client = await connect(url, TURN + b"Connection: close\r\n\r\n" + BODY)
    answer = await client.rest()
    assert client.statuses() == [200]
    assert json.loads(answer[answer.rindex(b"\r\n\r\n") :])["choices"][0]["token_ids"] == bench.continuation([7], 3)


async def nothing_stays(bench: Bench, before: tuple[int, int, int]) -> None:
    await bench.until(lambda: all(now <= then for now, then in zip(held(bench), before, strict=True)))
    assert not server(bench).config.http_protocol_class.open  # type: ignore[attr-defined]
    assert bench.gateway.sessions.live == {}
    assert bench.gateway.tally.turns_in_flight == 0


SLOW = {
    "a head": (b"", POST + 1000 * b"X-A: b\r\n", [408]),
    "empty lines": (b"", b"\r\n", [408]),
    "a body": (POST + b"Content-Length: 3000\r\n\r\n", b" ", [408]),
    "a chunked body": (POST + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n", [408]),
    "a body that nobody reads": (HEALTH + b"Content-Length: 3000\r\n\r\n", b" ", [200]),
    "a body that was refused": (POST + b"Content-Length: 9000\r\n\r\n", b" ", [413]),
    "the next head": (HEALTH + b"\r\n", NEXT, [200, 408]),
    "nothing": (b"", b"", []),
    "nothing more": (HEALTH + b"\r\n", b"", [200]),
}


@pytest.mark.parametrize("what", SLOW)
async def test_a_client_that_sends_slowly_is_closed_in_time_while_others_are_served(bench: Bench, what: str) -> None:
    whole, slowly, statuses = SLOW[what]
    async with bench.served() as url:
        await turn(bench, url)
        before = held(bench)
        client = await connect(url, whole)
        began = time.monotonic()
        slow = asyncio.create_task(client.dribble(slowly) if slowly else client.rest())
        while not slow.done():
            await turn(bench, url)
            await asyncio.sleep(0.02)
        await slow
        assert client.statuses() == statuses
        assert time.monotonic() - began >= 0.35
        await client.rest()
        await nothing_stays(bench, before)


async def test_hundreds_of_slow_clients_leave_nothing_behind(bench: Bench) -> None:
    async with bench.served() as url:
        await turn(bench, url)
        before = held(bench)
        clients = [await connect(url, whole) for whole, _, _ in SLOW.values() for _ in range(30)]
        await turn(bench, url)
        leaves = clients[::3]
        for client in leaves:
            client.writer.transport.abort()
        await asyncio.gather(*(client.rest() for client in clients if client not in leaves))
        await nothing_stays(bench, before)


@pytest.mark.parametrize(
    "head",
    [
        POST + b"X-Long: " + 1990 * b"a" + b"\r\n\r\n",
        b"GET /" + 3000 * b"a" + b" HTTP/1.1\r\n\r\n",
        POST + b"X-Endless: " + 100_000 * b"a",
        POST + 20_000 * b"a: b\r\n",
    ],
    ids=["too long", "long address", "endless value", "endless many"],
)
async def test_a_long_head_is_refused(bench: Bench, head: bytes) -> None:
    async with bench.served() as url:
        client = await connect(url)
        for at in range(0, len(head), 1000):
            client.writer.write(head[at : at + 1000])
            await asyncio.sleep(0)
        await client.rest()
        # A client that is still sending may find the connection reset before it reads why.
        assert client.statuses() in ([431], [])
        if len(head) < 5000:
            assert client.error() == "HeadTooLarge"


@pytest.mark.parametrize("endless", [b"2;" + 200_000 * b"x", b"0\r\n" + b"X-Trailer: " + 200_000 * b"x"])
async def test_what_is_sent_around_a_body_counts_as_body(bench: Bench, endless: bytes) -> None:
    async with bench.served() as url:
        client = await connect(url, POST + b"Transfer-Encoding: chunked\r\n\r\n" + endless)
        assert b"HTTP/1.1 2" not in await client.rest()


async def test_requests_sent_ahead_are_answered_in_order_and_not_collected_without_end(bench: Bench) -> None:
    async with bench.served() as url:
        ahead = 3 * (HEALTH + b"\r\n") + HEALTH + b"Connection: close\r\n\r\n"
        client = await connect(url, TURN + b"\r\n" + BODY + ahead)
        await client.rest()
        assert client.statuses() == [200] * 5
        assert b"token_ids" in client.got.split(b"HTTP/1.1")[1]
        client = await connect(url, TURN + b"\r\n" + BODY + 100 * (HEALTH + b"\r\n"))
        assert await client.rest() == b""


async def test_a_slow_next_request_does_not_end_the_answer_before_it(bench: Bench) -> None:
    bench.engines[0].pause = 0.3
    async with bench.served() as url:
        client = await connect(url, TURN + b"\r\n" + BODY)
        await client.dribble(NEXT)
        assert client.statuses() == [200, 408]


async def test_deadlines_end_with_what_they_are_for(bench: Bench) -> None:
    bench.engines[0].pause = 0.3
    async with bench.served() as url:
        client = await connect(url, TURN)
        await asyncio.sleep(0.1)
        client.writer.write(b"Connection: close\r\n\r\n")
        await asyncio.sleep(0.5)
        client.writer.write(BODY)
        await client.rest()
        assert client.statuses() == [200], "the head was there in time, the body and the answer may take longer"
        late = await connect(url, HEALTH + b"Content-Length: 3\r\n\r\n-")
        for _ in range(2):
            await asyncio.sleep(0.1)
            late.writer.write(b"-")
        began = time.monotonic()
        await late.rest()
        assert late.statuses() == [200]
        assert time.monotonic() - began > 0.55, "its body is whole, so it may stay as long as any idle client"


async def test_one_address_has_so_many_connections_and_no_more(benches: Benches) -> None:
    async with benches(Limits(max_client_connections=3)) as bench, bench.served() as url:
        clients = [await connect(url) for _ in range(3)]
        await bench.until(lambda: held(bench)[2] == 3)
        refused = await connect(url)
        await refused.rest()
        assert (refused.statuses(), refused.error()) == ([503], "TooManyConnections")
        assert b"PEARL_MAX_CLIENT_CONNECTIONS" in refused.got
        assert b"retry-after: 1" in refused.got
        clients[0].writer.close()
        await bench.until(lambda: held(bench)[2] == 2)
        served = await connect(url, HEALTH + b"Connection: close\r\n\r\n")
        await served.rest()
        assert served.statuses() == [200]
        for client in clients:
            client.writer.close()


async def test_what_is_no_http_is_refused_as_openai_clients_read_it(bench: Bench) -> None:
    async with bench.served() as url:
        client = await connect(url, b"HELLO\r\n\r\n")
        await client.rest()
        assert (client.statuses(), client.error()) == ([400], "BadRequest")


async def test_a_client_whose_machine_is_gone_is_found_by_the_kernel() -> None:
    heard = listener(server_config(None, LIMITS, host="127.0.0.1", port=0), 30.0)
    heard.listen()
    with heard, socket.create_connection(heard.getsockname()), heard.accept()[0] as accepted:
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
