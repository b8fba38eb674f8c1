"""Emulated engines as HTTP servers of this process: faults, death, many at once, hand-over between processes."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
from typing import Any

import httpx
import pytest

from pearl_planner.engine.tables import load_table
from pearl_simulator.emulator import EmulatedEngine, EngineConfig, Perturbation, emulated_fleet
from pearl_simulator.emulator.cli import main
from pearl_simulator.emulator.serving import accept_no_more

GREEDY = {"temperature": 0, "ignore_eos": True}
PROMPT = list(range(50))


async def generate(engine: EmulatedEngine, count: int = 5, **more: Any) -> httpx.Response:
    body = {"token_ids": PROMPT, "sampling_params": {"max_tokens": count, **GREEDY}, **more}
    async with httpx.AsyncClient(timeout=10) as client:
        return await client.post(engine.url + "/inference/v1/generate", json=body)


def answer(response: httpx.Response) -> list[int]:
    assert response.status_code == 200, response.text
    found: list[int] = response.json()["choices"][0]["token_ids"]
    return found


async def test_injected_faults() -> None:
    faults = Perturbation(error_share=1.0)
    async with EmulatedEngine(EngineConfig(), perturbation=faults) as engine:
        assert (await generate(engine)).status_code == 500
        faults.error_share, faults.hang_share = 0.0, 1.0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await generate(engine)
        faults.hang_share, faults.drop_share = 0.0, 1.0
        with pytest.raises(httpx.RemoteProtocolError):
            await generate(engine)
        with pytest.raises(httpx.RemoteProtocolError):
            await generate(engine, 40, stream=True)
        faults.drop_share = 0.0
        assert len(answer(await generate(engine))) == 5
        assert engine.engine.load == 0


async def test_dropped_stream_gives_as_many_tokens_as_was_said() -> None:
    faults = Perturbation(drop_share=1.0, drop_after_tokens=7)
    async with EmulatedEngine(EngineConfig(), perturbation=faults) as engine:
        got: list[int] = []

        async def read() -> None:
            body = {"token_ids": PROMPT, "sampling_params": {"max_tokens": 40, **GREEDY}, "stream": True}
            async with (
                httpx.AsyncClient() as client,
                client.stream("POST", engine.url + "/inference/v1/generate", json=body) as response,
            ):
                async for line in response.aiter_lines():
                    got.extend(json.loads(line[6:])["choices"][0]["token_ids"] if line else ())

        with pytest.raises(httpx.RemoteProtocolError):
            await read()
        assert len(got) == 7


async def test_engine_starts_late() -> None:
    slow = EmulatedEngine(EngineConfig(), perturbation=Perturbation(start_seconds=0.3))
    began = asyncio.get_running_loop().time()
    async with slow:
        assert asyncio.get_running_loop().time() - began >= 0.3
        assert len(answer(await generate(slow))) == 5


async def test_failed_weight_load_ends_the_engine_at_the_next_generation(tmp_path: Any) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    async with EmulatedEngine(EngineConfig(), perturbation=Perturbation(fail_weight_load=True)) as engine:
        async with httpx.AsyncClient(base_url=engine.url) as client:
            await client.post("/start_weight_update")
            load = {"update_info": {"paths": [str(file)]}}
            assert (await client.post("/update_weights", json=load)).status_code == 500
        async with httpx.AsyncClient(base_url=engine.url) as client:
            assert (await client.get("/health")).status_code == 200
        assert (await generate(engine)).status_code == 500
        await asyncio.wait_for(engine.died.wait(), 5)
        await asyncio.sleep(0.3)
        with pytest.raises(httpx.ConnectError):
            await generate(engine)


async def test_killed_engine_answers_nobody() -> None:
    config = EngineConfig(table=load_table("Qwen/Qwen3-8B/H100-TP2"))
    async with EmulatedEngine(config) as engine:
        asking = asyncio.create_task(generate(engine, 1000))
        while engine.engine.load == 0:  # noqa: ASYNC110 - tells nobody
            await asyncio.sleep(0.01)
        await engine.kill()
        with pytest.raises(httpx.HTTPError):
            await asking


async def test_client_that_leaves_frees_the_engine() -> None:
    config = EngineConfig(table=load_table("Qwen/Qwen3-8B/H100-TP2"))
    async with EmulatedEngine(config) as engine:
        asking = asyncio.create_task(generate(engine, 1000))
        while engine.engine.load == 0:  # noqa: ASYNC110 - tells nobody
            await asyncio.sleep(0.01)
        asking.cancel()
        async with asyncio.timeout(5):
            while engine.engine.load or engine.engine.pool.used_share:  # noqa: ASYNC110 - tells nobody
                await asyncio.sleep(0.01)


async def test_a_hundred_engines_in_one_process() -> None:
    async with emulated_fleet(EngineConfig(), 100) as engines:
        body = {"token_ids": PROMPT, "sampling_params": {"max_tokens": 5, **GREEDY}}
        async with httpx.AsyncClient(timeout=30) as client:
            urls = [one.url + "/inference/v1/generate" for one in engines]
            answers = await asyncio.gather(*(client.post(url, json=body) for url in urls))
    assert len(set(urls)) == 100
    assert len({tuple(answer(one)) for one in answers}) == 1


async def test_kv_goes_from_process_to_process_over_the_side_channel() -> None:
    # No common registry: they find each other by host and port as two processes do.
    config = EngineConfig(prompt_tokens_details=True)
    async with EmulatedEngine(config) as prefill, EmulatedEngine(config) as decode:
        keep = {"do_remote_decode": True, "do_remote_prefill": False}
        given = (await generate(prefill, 1, kv_transfer_params=keep)).json()["kv_transfer_params"]
        taken = await generate(decode, kv_transfer_params=given)
        assert answer(taken) == answer(await generate(prefill))
        assert decode.engine.metrics.value("prompt_tokens_by_source/external_kv_transfer") == 50
        assert prefill.engine.pool.used_share == 0
        again = await generate(decode)
        assert again.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 32}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--table", "Qwen/Unknown/H100"], "no engine table"),
        (["--speed", "0"], "speed"),
        (["--kv-tokens", "-5"], "kv_tokens"),
    ],
)
def test_command_line_says_what_is_wrong(
    capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    assert main(arguments) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("salt", ["/weights-1", "a@b", "a\\b", 129 * "s"])
async def test_salts_that_vllm_refuses_are_refused(salt: str) -> None:
    async with EmulatedEngine(EngineConfig()) as engine:
        refused = await generate(engine, cache_salt=salt)
        assert (refused.status_code, "'cache_salt' must be" in refused.text) == (400, True)
        assert len(answer(await generate(engine, cache_salt="weights-1"))) == 5


@pytest.mark.parametrize("ticks", range(4))
async def test_nobody_is_left_half_accepted_by_a_server_that_closes(ticks: int) -> None:
    """Two ticks after it connected asyncio has accepted it, and not told the server: its socket stayed open."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    with socket.socket() as client:
        client.connect(server.sockets[0].getsockname())
        for _ in range(ticks):
            await asyncio.sleep(0)
        await accept_no_more([server])
        server.close()
        await asyncio.sleep(0.01)
    gc.collect()  # what is unclosed fails the test here


async def test_events_of_a_stream_do_not_wait_for_the_acknowledgement_of_the_one_before() -> None:
    async with EmulatedEngine(EngineConfig()) as engine:
        assert engine._server is not None
        (server,) = engine._server.servers
        (listener,) = server.sockets
        with socket.create_connection(listener.getsockname()):
            while not engine._server.server_state.connections:  # noqa: ASYNC110 - uvicorn tells nobody
                await asyncio.sleep(0)
            (served,) = engine._server.server_state.connections
            assert served.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
