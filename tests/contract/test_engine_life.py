"""What engines do between requests, in the same words for vLLM and the emulated engine: abort, pause, sleep, new
weights, hand-over of KV, and how they die. The last test of a kind ends an engine."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    import httpx

    from conftest import RealEngine

pytestmark = pytest.mark.timeout(600)

PROMPT = [(37 * at + 11) % 200 + 32 for at in range(71)]
GREEDY = {"temperature": 0, "ignore_eos": True}


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


def generate(engine: RealEngine, count: int, name: str = "", prompt: list[int] | None = None, **more: Any) -> Any:
    body = {"token_ids": prompt or PROMPT, "sampling_params": {"max_tokens": count, **GREEDY}, **more}
    return engine.call("POST", "/inference/v1/generate", body, {"X-Request-Id": name} if name else {})


def choice(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()["choices"][0]
    return found


def metric(engine: RealEngine, line: str) -> float:
    lines = engine.call("GET", "/metrics").text.splitlines()
    return sum(
        float(one.rsplit(" ", 1)[1]) for one in lines if one.startswith(f"vllm:{line}") and "_created" not in one
    )


def until(condition: Any, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def post(engine: RealEngine, path: str, body: Any = None) -> Any:
    response = engine.call("POST", path, body)
    assert response.status_code == 200, response.text
    return response.json()


def known(engine: RealEngine, path: str) -> Any:
    (value,) = engine.call("GET", path).json().values()
    return value


def running(pool: ThreadPoolExecutor, engine: RealEngine, name: str = "") -> Future[httpx.Response]:
    """A long request that has begun to answer."""
    before = metric(engine, "generation_tokens_total")
    task = pool.submit(generate, engine, 1900, name)
    until(lambda: metric(engine, "generation_tokens_total") > before)
    return task


def test_aborted_by_id_it_keeps_its_tokens(engines: list[RealEngine], pool: ThreadPoolExecutor) -> None:
    engine = engines[0]
    task = running(pool, engine, "long")
    assert post(engine, "/abort_requests", {"request_ids": ["long"]}) == {"status": "aborted", "aborted": 1}
    assert not task.done()  # that was not its whole id
    post(engine, "/abort_requests", {"request_ids": ["generate-tokens-long"]})
    found = choice(task.result(30))
    assert found["finish_reason"] == "abort"
    assert 0 < len(found["token_ids"]) < 1900
    assert found["weight_versions"] == [{"version": "default", "start": 0, "end": len(found["token_ids"])}]


def test_completion_requests_are_aborted_by_their_numbered_id(
    engines: list[RealEngine], pool: ThreadPoolExecutor
) -> None:
    engine = engines[0]
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 1900, **GREEDY}
    before = metric(engine, "generation_tokens_total")
    task = pool.submit(engine.call, "POST", "/v1/completions", body, {"X-Request-Id": "text"})
    until(lambda: metric(engine, "generation_tokens_total") > before)
    post(engine, "/abort_requests", {"request_ids": ["cmpl-text"]})
    assert not task.done()
    post(engine, "/abort_requests", {"request_ids": ["cmpl-text-0"]})
    assert choice(task.result(30))["finish_reason"] == "abort"


def test_pause_ends_what_runs_and_queues_what_comes(engines: list[RealEngine], pool: ThreadPoolExecutor) -> None:
    engine = engines[0]
    task = running(pool, engine)
    assert post(engine, "/pause") == {"status": "paused"}
    assert choice(task.result(30))["finish_reason"] == "abort"
    assert known(engine, "/is_paused") is True
    queued = pool.submit(generate, engine, 3)
    time.sleep(0.3)
    assert not queued.done()
    assert engine.call("GET", "/health").status_code == 200
    assert post(engine, "/resume") == {"status": "resumed"}
    assert len(choice(queued.result(30))["token_ids"]) == 3
    assert known(engine, "/is_paused") is False


def test_waiting_request_that_is_aborted_has_no_tokens_and_no_version(
    engines: list[RealEngine], pool: ThreadPoolExecutor
) -> None:
    engine = engines[0]
    post(engine, "/pause")
    queued = pool.submit(generate, engine, 3)
    time.sleep(0.3)
    post(engine, "/pause")
    found = choice(queued.result(30))
    post(engine, "/resume")
    assert (found["finish_reason"], found["token_ids"], found["weight_versions"]) == ("abort", [], [])


def test_pause_that_waits_returns_when_the_answer_is_there(engines: list[RealEngine], pool: ThreadPoolExecutor) -> None:
    engine = engines[0]
    task = running(pool, engine)
    assert post(engine, "/pause?mode=wait") == {"status": "paused"}
    assert choice(task.result(5))["finish_reason"] == "length"
    post(engine, "/resume")


def test_frozen_request_goes_on_with_the_new_weights_and_says_which_tokens_are_whose(
    engines: list[RealEngine], pool: ThreadPoolExecutor
) -> None:
    engine = engines[0]
    task = running(pool, engine)
    post(engine, "/pause?mode=keep")
    assert post(engine, "/reset_prefix_cache") == {"success": True}  # the pause took the frozen request's KV
    assert post(engine, "/init_weight_transfer_engine", {"init_info": {}}) == {"message": "Weight transfer initialized"}
    assert post(engine, "/start_weight_update") == {"message": "Weight update started"}
    again = engine.call("POST", "/start_weight_update")
    assert (again.status_code, "already active" in again.text) == (500, True)
    files = {"update_info": {"paths": [str(engine.weights("tiny-b"))]}}
    assert post(engine, "/update_weights", files) == {"message": "Weights updated"}
    assert post(engine, "/finish_weight_update", {"weight_version": "5"}) == {"message": "Weight update finished"}
    assert known(engine, "/weight_info") == "5"
    post(engine, "/resume")
    found = choice(task.result(60))
    assert (found["finish_reason"], len(found["token_ids"])) == ("length", 1900)
    old, new = found["weight_versions"]
    assert (old["version"], old["start"], new["version"], new["end"]) == ("default", 0, "5", 1900)
    assert 0 < old["end"] == new["start"] < 1900


def test_whole_update_mends_a_failed_one(engines: list[RealEngine]) -> None:
    engine = engines[0]
    post(engine, "/start_weight_update")
    failed = engine.call("POST", "/update_weights", {"update_info": {"paths": ["/nothere"]}})
    assert (failed.status_code, failed.json()["error"]["message"]) == (
        500,
        "Call to collective_rpc method failed: No such file or directory: /nothere",
    )
    assert engine.call("GET", "/health").status_code == 200
    post(engine, "/start_weight_update")
    post(engine, "/update_weights", {"update_info": {"paths": [str(engine.weights("tiny"))]}})
    post(engine, "/finish_weight_update", {"weight_version": "default"})
    assert choice(generate(engine, 3))["weight_versions"] == [{"version": "default", "start": 0, "end": 3}]


def test_sleep_and_wake_in_parts(engines: list[RealEngine], pool: ThreadPoolExecutor) -> None:
    engine = engines[0]
    states = []

    def note() -> None:
        states.append((known(engine, "/is_sleeping"), known(engine, "/is_paused")))

    task = running(pool, engine)
    assert post(engine, "/sleep?level=1") == {"status": "sleeping", "level": 1}
    note()
    assert choice(task.result(30))["finish_reason"] == "abort"
    assert metric(engine, 'engine_sleep_state{engine="0",model_name="tiny",sleep_state="weights_offloaded"}') == 1
    assert post(engine, "/wake_up?tags=weights") == {"status": "sleeping", "tags": ["weights"]}
    note()
    assert post(engine, "/wake_up?tags=kv_cache") == {"status": "awake", "tags": ["kv_cache"]}
    note()
    post(engine, "/sleep?level=2")
    post(engine, "/resume")
    note()
    assert post(engine, "/wake_up") == {"status": "awake", "tags": None}
    note()
    post(engine, "/sleep?level=0")
    note()
    post(engine, "/wake_up?tags=scheduling")
    note()
    asleep, awake = (True, True), (False, False)
    assert states == [asleep, asleep, awake, (True, False), awake, asleep, awake]


def handed_over(engine: RealEngine, prompt: list[int]) -> dict[str, Any]:
    keep = {"do_remote_decode": True, "do_remote_prefill": False}
    found: dict[str, Any] = generate(engine, 1, prompt=prompt, kv_transfer_params=keep).json()["kv_transfer_params"]
    return found


def test_kv_is_handed_over_and_freed(engines: list[RealEngine]) -> None:
    prefill, decode = engines
    expected = choice(generate(prefill, 8))["token_ids"]
    post(prefill, "/reset_prefix_cache")
    post(decode, "/reset_prefix_cache")
    params = handed_over(prefill, PROMPT)
    assert (params["remote_num_tokens"], len(params["remote_block_ids"][0])) == (71, 3)
    assert metric(prefill, "kv_cache_usage_perc") == pytest.approx(3 / 2047, rel=0.01)
    assert post(prefill, "/reset_prefix_cache") == {"success": False}  # held
    external = 'prompt_tokens_by_source_total{engine="0",model_name="tiny",source="external_kv_transfer"}'
    before = metric(decode, external)
    found = choice(generate(decode, 8, kv_transfer_params=params))
    assert (found["token_ids"], metric(decode, external) - before) == (expected, 71)
    until(lambda: post(prefill, "/reset_prefix_cache") == {"success": True})


def test_kv_that_nobody_has_is_computed(engines: list[RealEngine]) -> None:
    prefill, decode = engines
    prompt = [5, *PROMPT]
    expected = choice(generate(prefill, 8, prompt=prompt))["token_ids"]
    params = handed_over(prefill, PROMPT) | {"remote_engine_id": "nobody"}
    assert choice(generate(decode, 8, prompt=prompt, kv_transfer_params=params))["token_ids"] == expected
    assert metric(decode, "nixl_num_failed_transfers_total") >= 1


def test_kv_of_another_prompt_is_used_as_if_it_were_its_own(engines: list[RealEngine]) -> None:
    prefill, decode = engines
    mine, other = [7] * 71, [9] * 71
    right = choice(generate(prefill, 8, prompt=mine))["token_ids"]
    wrong = choice(generate(decode, 8, prompt=mine, kv_transfer_params=handed_over(prefill, other)))["token_ids"]
    assert wrong != right


def test_lease_that_runs_out_is_counted_and_holds_a_pause_until_then(engines: list[RealEngine]) -> None:
    engine = engines[0]
    before = metric(engine, "nixl_num_kv_expired_reqs_total")
    handed_over(engine, [3] * 40)
    post(engine, "/pause")
    assert metric(engine, "nixl_num_kv_expired_reqs_total") > before
    post(engine, "/resume")
