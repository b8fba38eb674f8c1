"""How long the gateway waits for an engine that is silent, and for whom it is not."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import aiohttp
import pytest
from aiohttp.base_protocol import BaseProtocol

from pearl_gateway.chunks import read_chunks
from pearl_gateway.errors import EngineStalledError, EngineUnreachableError

CHUNK = b'data: {"choices": [{"token_ids": [5, 6], "finish_reason": null}]}\n\n'
LAST = b'data: {"choices": [{"token_ids": [7], "finish_reason": "length"}]}\n\ndata: [DONE]\n\n'


class Answer:
    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        protocol = BaseProtocol(loop)
        protocol.transport = asyncio.Transport()
        self.content = aiohttp.StreamReader(protocol, 2**16, loop=loop)
        self.closed_at: float | None = None

    def close(self) -> None:
        self.closed_at = asyncio.get_running_loop().time()
        self.content.set_exception(aiohttp.ClientConnectionError("Connection closed"))


async def read(answer: Answer, first: float, stall: float, slowly: float = 0.0) -> list[int]:
    found: list[int] = []
    deadline = asyncio.get_running_loop().time() + first
    async for chunk in read_chunks(cast("Any", answer), "http://e", deadline, stall):
        found += chunk.token_ids
        await asyncio.sleep(slowly)
    return found


async def test_silence_before_the_first_token() -> None:
    answer = Answer()
    started = asyncio.get_running_loop().time()
    with pytest.raises(EngineStalledError):
        await read(answer, 0.05, 5.0)
    assert answer.closed_at == pytest.approx(started + 0.05, abs=0.04)


async def test_silence_later() -> None:
    answer = Answer()
    loop = asyncio.get_running_loop()
    started = loop.time()
    for at in range(1, 6):
        loop.call_later(at * 0.04, answer.content.feed_data, CHUNK)
    with pytest.raises(EngineStalledError):
        await read(answer, 0.1, 0.1)
    assert answer.closed_at == pytest.approx(started + 0.3, abs=0.08)


async def test_a_slow_reader_is_no_silence() -> None:
    answer = Answer()
    answer.content.feed_data(CHUNK)
    reading = asyncio.ensure_future(read(answer, 0.05, 0.05, slowly=0.15))
    await asyncio.sleep(0.02)
    answer.content.feed_data(LAST)
    answer.content.feed_eof()
    assert await reading == [5, 6, 7]
    assert answer.closed_at is None


async def test_a_broken_connection_is_no_silence() -> None:
    answer = Answer()
    answer.content.feed_data(CHUNK)
    asyncio.get_running_loop().call_later(0.02, answer.close)
    with pytest.raises(aiohttp.ClientConnectionError):
        await read(answer, 1.0, 1.0)
    ended = Answer()
    ended.content.feed_eof()
    with pytest.raises(EngineUnreachableError):
        await read(ended, 1.0, 1.0)
