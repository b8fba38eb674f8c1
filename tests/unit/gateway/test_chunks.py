"""How long the gateway waits for an engine that is silent, and for whom it is not."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from pearl_gateway.chunks import Patience, read_chunks
from pearl_gateway.engine_connection import CallError
from pearl_gateway.errors import EngineUnreachableError

CHUNK = b'data: {"choices": [{"token_ids": [5, 6], "finish_reason": null}]}\n\n'
LAST = b'data: {"choices": [{"token_ids": [7], "finish_reason": "length"}]}\n\ndata: [DONE]\n\n'


class Answer:
    """A call whose body comes as the test says."""

    def __init__(self) -> None:
        self._came: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.closed_at: float | None = None
        self.let_go_at: float | None = None

    def feed(self, data: bytes) -> None:
        self._came.put_nowait(data)

    async def read_any(self) -> bytes:
        data = await self._came.get()
        if data is None:
            raise CallError("broken off")
        return data

    def close(self) -> None:
        self.closed_at = asyncio.get_running_loop().time()
        self._came.put_nowait(None)

    def let_go(self) -> None:
        self.let_go_at = asyncio.get_running_loop().time()


async def read(answer: Answer, first: float, stall: float, slowly: float = 0.0) -> tuple[list[int], bool]:
    """The tokens that came before the end, and whether it was silent for too long."""
    found: list[int] = []
    call = cast("Any", answer)
    patience = Patience(call, asyncio.get_running_loop().time() + first)
    try:
        async for chunk in read_chunks(call, "http://e", patience, stall):
            found += chunk.token_ids
            await asyncio.sleep(slowly)
    except CallError:
        if not patience.over:
            raise
    finally:
        patience.end()
    return found, patience.over


async def test_silence_before_the_first_token() -> None:
    answer = Answer()
    started = asyncio.get_running_loop().time()
    assert await read(answer, 0.05, 5.0) == ([], True)
    assert answer.closed_at == pytest.approx(started + 0.05, abs=0.04)


async def test_silence_later() -> None:
    answer = Answer()
    loop = asyncio.get_running_loop()
    started = loop.time()
    for at in range(1, 6):
        loop.call_later(at * 0.04, answer.feed, CHUNK)
    assert await read(answer, 0.1, 0.1) == ([5, 6] * 5, True)
    assert answer.closed_at == pytest.approx(started + 0.3, abs=0.08)


async def test_a_slow_reader_is_no_silence() -> None:
    answer = Answer()
    answer.feed(CHUNK)
    reading = asyncio.ensure_future(read(answer, 0.05, 0.05, slowly=0.15))
    await asyncio.sleep(0.02)
    answer.feed(LAST)
    assert await reading == ([5, 6, 7], False)
    assert (answer.closed_at, answer.let_go_at is None) == (None, False)


async def test_a_broken_connection_is_no_silence() -> None:
    answer = Answer()
    answer.feed(CHUNK)
    asyncio.get_running_loop().call_later(0.02, answer.close)
    with pytest.raises(CallError):
        await read(answer, 1.0, 1.0)
    ended = Answer()
    ended.feed(b"")
    with pytest.raises(EngineUnreachableError):
        await read(ended, 1.0, 1.0)
