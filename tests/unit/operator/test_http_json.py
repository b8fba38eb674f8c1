"""JSON over HTTP: an answer is read to its end, however it arrives."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiohttp
import pytest
from aiohttp import web

from pearl_operator import http_json
from pearl_operator.calls import Calls, Receiver
from pearl_operator.clock import SystemClock
from pearl_operator.errors import Unavailable
from pearl_operator.http_json import HttpJson

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PIECE, PIECES = b"x" * 50_000, 6


@pytest.fixture
async def base() -> AsyncIterator[str]:
    async def in_pieces(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        for _ in range(PIECES):
            await answer.write(PIECE)
            await asyncio.sleep(0)  # lets the client see each piece by itself
        return answer

    app = web.Application()
    app.router.add_get("/", in_pieces)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    await runner.cleanup()


async def test_a_long_answer_is_whole(base: str) -> None:
    async with aiohttp.ClientSession() as session:
        assert await HttpJson(session, 5.0, Calls(SystemClock())).call(Receiver.AGENT, "GET", base) == PIECE * PIECES


async def test_an_endless_answer_is_refused(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_json, "_MAX_ANSWER_BYTES", len(PIECE))
    async with aiohttp.ClientSession() as session:
        with pytest.raises(Unavailable, match="longer than 50000 bytes"):
            await HttpJson(session, 5.0, Calls(SystemClock())).call(Receiver.AGENT, "GET", base)
