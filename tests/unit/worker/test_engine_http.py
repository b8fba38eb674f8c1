"""What the agent's calls are on the engine's wire."""

from __future__ import annotations

import aiohttp
import pytest
from aiohttp import web

from pearl_worker.engine_http import HttpEngineClient


@pytest.mark.parametrize(
    ("mode", "query"), [("abort", {"mode": "abort"}), ("keep", {"mode": "keep", "clear_cache": "false"})]
)
async def test_a_pause_that_keeps_requests_keeps_their_kv_too(mode: str, query: dict[str, str]) -> None:
    seen: list[dict[str, str]] = []

    async def pause(request: web.Request) -> web.Response:
        seen.append(dict(request.query))
        return web.json_response({"status": "paused"})

    app = web.Application()
    app.router.add_post("/pause", pause)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession() as session:
        await HttpEngineClient(session, f"http://127.0.0.1:{runner.addresses[0][1]}", "m", "admin").pause(mode)
    await runner.cleanup()
    assert seen == [query]
