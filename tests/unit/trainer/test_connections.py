"""What a loan needs never waits for anything else: turns in great numbers, or a training step that blocks the loop."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from pearl_double import PearlDouble

from pearl_trainer import AsyncPearlClient
from pearl_trainer.aio import Driver
from pearl_trainer.sansio import Reply, Request, send
from pearl_trainer.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

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
        await asyncio.wait_for(waiting.wait(), 90)
        outcome = await asyncio.wait_for(driver.run(send(Request("GET", f"{url}/reclaim", timeout_seconds=5.0))), 10)
        assert outcome == Reply(200, {})
        over.set()
        assert all(one == Reply(200, {}) for one in await playing)
        await driver.close()


async def test_a_trainer_that_blocks_its_event_loop_keeps_its_lease(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("projected")
    with PearlDouble(tmp_path) as pearl:
        settings = Settings(operator_url=pearl.url, token_file=str(tmp_path / "token"), visible_devices="GPU-a")
        async with AsyncPearlClient(settings) as client, await client.register(rollout="math") as loan:
            for _ in range(2):
                pearl.renewed.clear()
                assert pearl.renewed.wait(5)  # blocks this very loop, as a training step does
            assert loan.lent
        assert pearl.events == ["register mine", "lend lent", "reclaim mine", "deregister mine"]
    assert not any(thread.name == "pearl-loan" for thread in threading.enumerate())
