"""What clients do wrong at the edge of HTTP, and what they are told."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pearl_api.gateway_openapi import gateway_api
from pearl_gateway.app import create_app
from pearl_gateway.identity import Identity
from pearl_gateway.inference import Inference
from pearl_gateway.settings import Limits
from pearl_gateway.tokens_in import Rendered

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from conftest import Bench

    Benches = Callable[..., AbstractAsyncContextManager[Bench]]

LIMITS = Limits(queue_seconds=5.0, max_model_len=2048, max_body_bytes=4000, body_seconds=0.2)


@pytest.mark.parametrize(
    ("path", "body", "status", "named"),
    [
        ("/inference/v1/generate", {"token_ids": [1], "sampling_params": {"max_tokens": "9"}}, 400, "max_tokens"),
        ("/inference/v1/generate", {"token_ids": [1], "sampling_params": {"max_tokens": 0}}, 400, "max_tokens"),
        ("/inference/v1/generate", {"token_ids": [1], "sampling_params": {"stop": 7}}, 400, "stop"),
        ("/inference/v1/generate", {"token_ids": [1], "stream": "yes"}, 400, "stream"),
        ("/inference/v1/generate", {"token_ids": [True]}, 400, "token_ids"),
        ("/v1/completions", {"prompt": "a", "n": 10**9}, 400, "n"),
        ("/v1/completions", {"prompt": "a", "stream": True, "stream_options": "x"}, 400, "stream_options"),
        ("/v1/completions", {"prompt": "a", "pearl": {"turn": 1.5}}, 400, "X-Pearl-Turn"),
        ("/v1/completions", {"prompt": "a", "pearl": {"step": 1e999}}, 400, None),
        ("/v1/chat/completions", {"messages": "x"}, 400, "messages"),
        ("/v1/batches", {"step": 1, "groups": 0, "groupSize": 1}, 422, "groups"),
        ("/v1/batches/x/close", {}, 422, "step"),
        ("/v1/permits", {"group": "a b", "size": 1}, 422, "group"),
        ("/v1/nothing", {}, 404, None),
    ],
)
async def test_errors_have_openais_shape_and_name_the_field(
    bench: Bench, path: str, body: dict[str, Any], status: int, named: str | None
) -> None:
    await bench.engine()
    answer = await bench.client.post(path, content=json.dumps(body))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, status, named)
    assert named is None or named in error["message"]
    assert bench.gateway.sessions.live == {}


async def test_bodies_that_are_too_long_or_too_slow_are_not_waited_for(benches: Benches) -> None:
    async def slowly() -> Any:
        yield b"{"
        await asyncio.sleep(30)

    async def endless() -> Any:
        while True:
            yield b"[" * 1000

    async with benches(LIMITS) as bench, bench.served() as url, asyncio.timeout(10):
        ask = bench.client.post
        assert (await ask(url + "/v1/completions", content=b"x" * 5000)).json()["error"]["type"] == "BodyTooLarge"
        assert (await ask(url + "/v1/completions", content=endless())).json()["error"]["type"] == "BodyTooLarge"
        assert (await ask(url + "/v1/completions", content=slowly())).status_code == 408


async def test_a_stream_that_is_refused_is_answered_by_status_and_not_by_an_event(bench: Bench) -> None:
    await bench.engine(refuse=True)
    answer = await bench.generate([1], 2, stream=True)
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "bad token")
    bench.engines[0].refuse = False
    # Nothing came of it, so its key is free for the request that is mended.
    assert bench.tokens(await bench.generate([1, 2], 2, turn=0)) == bench.continuation([1, 2], 2)


async def test_turns_whose_client_left_before_it_began_to_read_are_stopped(bench: Bench) -> None:
    engine = await bench.engine(stall_after=1)
    turn = Inference(bench.gateway).open_turn(Identity(), Rendered([1], {"max_tokens": 5}, {}))
    await bench.until(lambda: len(turn.token_ids) == 1)
    bench.gateway.sessions.sweep(turn.accepted_at)
    assert turn.running
    bench.gateway.sessions.sweep(turn.accepted_at + 60)
    async with asyncio.timeout(2):
        await engine.left.wait()
    assert bench.gateway.sessions.live == {}


def test_the_documented_paths_are_the_served_ones(benches: Benches) -> None:
    async def paths() -> set[str]:
        async with benches(replace(LIMITS)) as bench:
            return {route.path for route in create_app(bench.gateway).routes}  # type: ignore[attr-defined]

    served = {path.replace("{name:path}", "{id}") for path in asyncio.run(paths())}
    documented = set(gateway_api()["paths"])
    # The rest of SGLang's paths is in docs/integrations/slime.md.
    assert documented <= served
    assert not [path for path in served - documented if path.startswith(("/v1/b", "/v1/p", "/v1/t", "/v1/m", "/inf"))]
