"""Over real connections: clients that leave, that send rubbish, that never finish."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import TYPE_CHECKING, Any, cast

import pytest

from pearl_gateway.connections import HeadWithBody

if TYPE_CHECKING:
    from conftest import Bench

PATHS: dict[str, dict[str, Any]] = {
    "/inference/v1/generate": {"token_ids": [1], "sampling_params": {"max_tokens": 50}},
    "/v1/completions": {"prompt": "hello", "max_tokens": 50},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 50},
    "/generate": {"input_ids": [1], "sampling_params": {"max_new_tokens": 50}},
}


def raw(path: str, body: bytes, length: int | None = None) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n"
    return f"{head}Content-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body


async def connect(url: str, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    return reader, writer


def nothing_left(bench: Bench) -> bool:
    busy = any(worker.in_flight or worker.reserved for worker in bench.gateway.fleet.workers.values())
    return not bench.gateway.tally.turns_in_flight and not busy and not bench.gateway.sessions.live


ENDINGS = [(path, streamed) for path in PATHS for streamed in (False, True) if path != "/generate" or not streamed]


@pytest.mark.parametrize(("path", "streamed"), ENDINGS)
async def test_a_client_that_hangs_up_stops_its_engine_at_once(bench: Bench, path: str, *, streamed: bool) -> None:
    engine = await bench.engine(stall_after=2)
    async with bench.served() as url:
        body = json.dumps({**PATHS[path], "stream": streamed}).encode()
        _, writer = await connect(url, raw(path, body))
        await bench.until(lambda: len(engine.requests) == 1)
        writer.transport.abort()
        async with asyncio.timeout(1):
            await engine.left.wait()
        await bench.until(lambda: nothing_left(bench))


async def test_a_client_that_hangs_up_while_it_waits_for_a_worker_is_forgotten(bench: Bench) -> None:
    await bench.engine()
    first = bench.tokens(await bench.generate([1], 2))
    bench.gateway.fleet.remove("a")
    async with bench.served() as url:
        body = json.dumps({"token_ids": [1, *first], "pearl": {"trajectory": "t1"}}).encode()
        _, writer = await connect(url, raw("/inference/v1/generate", body))
        await bench.until(lambda: bench.gateway.tally.turns_queued == 1)
        writer.transport.abort()
        await bench.until(lambda: bench.gateway.tally.turns_in_flight == 0)
        assert bench.gateway.tally.turns_queued == 0


async def test_rubbish_and_half_requests_hold_nobody_up(bench: Bench) -> None:
    await bench.engine()
    rubbish = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"A" * 70_000,
        raw("/v1/completions", b'{"prompt": ', 500),
        raw("/v1/completions", b"", 1 << 40),
        raw("/inference/v1/generate", b'{"token_ids":[1],"stream":true,"sampling_params":{"max_tokens":3}}'),
        b"GET /v1/stats HTTP/1.1\r\nHost: x\r\n",
    ]
    async with bench.served() as url:
        writers = [(await connect(url, data))[1] for data in rubbish * 5]
        async with asyncio.timeout(5):
            answer = await bench.client.post(
                url + "/inference/v1/generate", json={"token_ids": [7], "sampling_params": {"max_tokens": 3}}
            )
        assert bench.tokens(answer) == bench.continuation([7], 3)
        for writer in writers:
            writer.transport.abort()
        await bench.until(lambda: nothing_left(bench))
    assert bench.gateway.tally.lost_turns == 0


class Wire:
    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    def close(self) -> None:
        self.closed = True


def test_the_head_of_an_answer_goes_out_with_its_body() -> None:
    wire = Wire()
    answer = HeadWithBody(cast("Any", wire))
    for part in (b"head ", b"one", b"two"):
        answer.write(part)
    assert wire.sent == [b"head one", b"two"]
    refusal = HeadWithBody(cast("Any", wire))
    refusal.write(b"no body")
    refusal.close()
    assert (wire.sent[-1], wire.closed) == (b"no body", True)


async def test_a_client_that_asks_whether_to_send_its_body_is_told(bench: Bench) -> None:
    await bench.engine()
    body = json.dumps(PATHS["/inference/v1/generate"]).encode()
    head, _, _ = raw("/inference/v1/generate", body).partition(b"\r\n\r\n")
    async with bench.served() as url:
        reader, writer = await connect(url, head + b"\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n")
        assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5) == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 200 OK\r\n")
        writer.close()


async def test_answers_go_out_at_once(bench: Bench) -> None:
    """Else what follows the first event waits 40 ms for the client's acknowledgement of it."""
    await bench.engine()
    async with bench.served() as url:
        _, writer = await connect(url, b"")
        await bench.until(lambda: bool(bench.server.server_state.connections))
        (served,) = bench.server.server_state.connections
        assert served.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        writer.close()
