"""Turns come in great numbers and take long; the calls of a loan never wait for them."""

from __future__ import annotations

import asyncio

from pearl_trainer.aio import Driver
from pearl_trainer.sansio import Reply, Request, send

TURNS = 300
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


async def test_a_reclaim_passes_by_hundreds_of_turns_in_flight() -> None:
    turns, over = 0, asyncio.Event()
    waiting = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal turns
        head = await reader.readuntil(b"\r\n\r\n")
        if b"/turn" in head:
            turns += 1
            if turns == TURNS:
                waiting.set()
            await over.wait()
        writer.write(ANSWER)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        driver = Driver()
        slow = [driver.run(send(Request("GET", f"{url}/turn", timeout_seconds=60.0, bulk=True))) for _ in range(TURNS)]
        playing = asyncio.gather(*slow)
        await asyncio.wait_for(waiting.wait(), 30)
        outcome = await asyncio.wait_for(driver.run(send(Request("GET", f"{url}/reclaim", timeout_seconds=5.0))), 10)
        assert outcome == Reply(200, {})
        over.set()
        assert all(one == Reply(200, {}) for one in await playing)
        await driver.close()
