"""Loops that expect an external SGLang engine: the calls that slime makes, against the gateway's own turns."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from pearl_gateway.sglang import running, weights

if TYPE_CHECKING:
    import httpx

    from conftest import Bench

SESSION = {"X-SMG-Routing-Key": "sample-7"}
SAMPLING = {"temperature": 0, "top_p": 1.0, "no_stop_trim": True, "spaces_between_special_tokens": False, "stop": None}


def request(prompt: list[int], count: int, **more: Any) -> dict[str, Any]:
    sampling = {**SAMPLING, "max_new_tokens": count, **more.pop("sampling", {})}
    return {"input_ids": prompt, "sampling_params": sampling, "return_logprob": True, **more}


async def generate(bench: Bench, prompt: list[int], count: int, **more: Any) -> dict[str, Any]:
    headers = more.pop("headers", SESSION)
    answer = await bench.client.post("/generate", json=request(prompt, count, **more), headers=headers)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def post(bench: Bench, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
    return await bench.client.post(path, json=body or {})


async def test_an_answer_has_ids_logprobs_text_and_version(bench: Bench) -> None:
    await bench.engine(version=3)
    answer = await generate(bench, [5, 6], 4)
    expected = bench.continuation([5, 6], 4, version=3)
    assert answer["output_ids"] == expected
    assert answer["text"] == bench.text_of(expected)
    info = answer["meta_info"]
    assert info["output_token_logprobs"] == [[bench.logprob(one), one, None] for one in expected]
    assert (info["prompt_tokens"], info["completion_tokens"], info["weight_version"]) == (2, 4, "3")
    assert info["finish_reason"] == {"type": "length", "length": 4}


async def test_the_routers_session_is_the_trajectory(bench: Bench) -> None:
    await bench.engine()
    first = (await generate(bench, [5, 6], 4))["output_ids"]
    await generate(bench, [5, 6, *first, 9], 2)
    export = await bench.export("sample-7")
    assert export["tokenIds"][:7] == [5, 6, *first, 9]
    assert [one["reason"] for one in export["segments"]] == ["complete", "complete"]


async def test_a_worker_that_dies_in_mid_answer_is_not_noticed(bench: Bench) -> None:
    await bench.engine(stop_after=3)
    await bench.engine()
    answer = await generate(bench, [5, 6], 8)
    assert answer["output_ids"] == bench.continuation([5, 6], 8)


async def test_an_aborted_request_returns_what_it_has_and_goes_on_from_there(bench: Bench) -> None:
    await bench.engine(stall_after=3)
    pending = asyncio.ensure_future(generate(bench, [5, 6], 8, rid="r-1"))
    await bench.until(lambda: bench.received("sample-7") == 3)
    assert (await bench.client.get("/v1/loads")).json()["loads"][0]["num_total_reqs"] == 1
    assert (await post(bench, "/abort_request", {"rid": "r-1"})).json() == {
        "success": True,
        "message": "1 requests aborted",
    }
    answer = await pending
    whole = bench.continuation([5, 6], 8)
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    assert [one[1] for one in answer["meta_info"]["output_token_logprobs"]] == whole[:3]
    assert (await bench.client.get("/v1/loads")).json()["loads"][0]["num_total_reqs"] == 0
    bench.engines[0].stall_after = None
    rest = await generate(bench, [5, 6, *whole[:3]], 5)
    assert rest["output_ids"] == whole[3:]
    export = await bench.export("sample-7")
    assert export["tokenIds"] == [5, 6, *whole]
    assert export["lossMask"] == [0, 0] + 8 * [1]


async def test_a_pause_ends_what_runs_and_holds_new_requests_until_it_is_over(bench: Bench) -> None:
    await bench.engine(stall_after=2)
    first = asyncio.ensure_future(generate(bench, [5, 6], 8))
    await bench.until(lambda: bench.received("sample-7") == 2)
    assert (await post(bench, "/pause_generation")).status_code == 200
    assert (await first)["meta_info"]["completion_tokens"] == 2
    bench.engines[0].stall_after = None
    held = asyncio.ensure_future(generate(bench, [7], 2, headers={}))
    aborted = asyncio.ensure_future(generate(bench, [8], 2, headers={}, rid="gone"))
    await asyncio.sleep(0.05)
    assert len(bench.engines[0].requests) == 1
    await post(bench, "/abort_request", {"rid": "gone"})
    assert (await aborted)["output_ids"] == []
    assert not held.done()
    await post(bench, "/continue_generation")
    assert (await held)["output_ids"] == bench.continuation([7], 2)


async def test_a_pause_that_nobody_ends_is_over_by_itself(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "LONGEST_PAUSE_SECONDS", 0.1)
    await bench.engine()
    await post(bench, "/pause_generation", {"mode": "retract"})
    assert (await generate(bench, [5], 2))["output_ids"] == bench.continuation([5], 2)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (request([5], 2, return_routed_experts=True), "return_routed_experts"),
        (request([5], 2, image_data=["x"]), "image_data"),
        (request([5], 2, sampling={"json_schema": "{}"}), "json_schema"),
        (request([5], 2, sampling={"n": 4}), "n = 1"),
        ({"sampling_params": {}}, "input_ids"),
    ],
)
async def test_what_would_change_the_answer_is_refused_by_name(bench: Bench, body: dict[str, Any], named: str) -> None:
    await bench.engine()
    answer = await post(bench, "/generate", body)
    assert answer.status_code == 400
    assert named in answer.json()["error"]["message"]


async def test_an_update_from_disk_is_served_once_every_worker_has_loaded_it(bench: Bench) -> None:
    await bench.engine()
    (worker,) = bench.gateway.fleet.workers.values()
    worker.weight_version, worker.wanted_version = 1, 2
    body = {"model_path": "/shared/weight_v000002", "weight_version": "2"}
    waiting = asyncio.ensure_future(post(bench, "/update_weights_from_disk", body))
    await asyncio.sleep(0.15)
    assert not waiting.done()
    worker.weight_version = 2
    assert (await waiting).json() == {"success": True, "message": "every worker serves version 2 or a newer one"}
    assert (await bench.client.get("/get_weight_version")).json() == {"weight_version": "2"}


async def test_pushed_weights_are_refused_with_what_to_do(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "NOTICE_SECONDS", 0.0)
    await bench.engine()
    unpublished = await post(bench, "/update_weights_from_disk", {"model_path": "/x", "weight_version": "9"})
    unnamed = await post(bench, "/update_weights_from_disk", {"model_path": "/x"})
    pushed = await post(bench, "/update_weights_from_distributed", {"names": []})
    assert [one.status_code for one in (unpublished, unnamed, pushed)] == [400, 400, 400]
    assert "version 9 is not published, the newest manifest names 0" in unpublished.json()["message"]
    assert "`weight_version`" in unnamed.json()["message"]
    assert "publish_weights" in pushed.json()["message"]
    assert not pushed.json()["success"]


async def test_what_slime_asks_an_external_engine_and_a_router(bench: Bench) -> None:
    assert (await bench.client.get("/health_generate")).status_code == 503
    await bench.engine()
    assert (await bench.client.get("/health_generate", headers={"Authorization": ""})).status_code == 200
    assert (await bench.client.get("/flush_cache")).status_code == 200
    for path in ("/server_info", "/get_server_info"):
        info = (await bench.client.get(path)).json()
        assert (info["disaggregation_mode"], info["tp_size"], info["pearl"]["workers"]) == ("null", 1, 1)
        assert info["internal_states"][0]["world_size"] == 1  # where miles looks for an engine's GPUs
    assert (await bench.client.get("/get_model_info")).json()["is_generation"]
    (worker,) = (await bench.client.get("/workers")).json()["workers"]
    assert worker["url"] == "http://gateway"
    assert (await post(bench, "/workers", {"url": worker["url"]})).status_code == 202
    assert "operator's" in (await post(bench, "/workers", {"url": "http://elsewhere:1"})).json()["message"]
    assert (await bench.client.get("/server_info", headers={"Authorization": ""})).status_code == 401


async def test_a_request_counts_as_asked_for_also_where_nobody_can_answer_it(bench: Bench) -> None:
    assert bench.gateway.tally.asked_at is None
    assert (await bench.client.post("/generate", json=request([1], 2), headers=SESSION)).status_code == 503
    assert bench.gateway.tally.asked_at is not None
