"""Real vLLM under the agent: guard, hand-over of KV, crashes, weights, sleep, loans. In this order: starts are dear."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

pytestmark = pytest.mark.engine

PROMPT = list(range(1, 40))
GIVE: dict[str, Any] = {"do_remote_decode": True, "do_remote_prefill": False}


def poison(file: Path) -> None:
    """Every number of a safetensors file (its header's length, header, data) becomes NaN."""
    content = file.read_bytes()
    data = 8 + int.from_bytes(content[:8], "little")
    file.write_bytes(content[:data] + b"\x00\x00\xc0\x7f" * ((len(content) - data) // 4))


def prompt_of(tokens: int) -> list[int]:
    return [random.Random(tokens).randrange(250) for _ in range(tokens)]


def test_the_guard_closes_a_real_engine(workers: Any) -> None:
    engine = workers[0].engine
    assert engine("/v1/models").status_code == httpx.codes.OK
    assert engine("/v1/models", token="").status_code == httpx.codes.UNAUTHORIZED
    assert engine("/health", token="").status_code == httpx.codes.OK
    for path in ("/pause", "/sleep", "/collective_rpc", "/update_weights", "/v1/../pause", "//pause", "/pearl/gate"):
        assert (path, engine(path, {}).status_code) == (path, httpx.codes.UNAUTHORIZED)


def test_answers_are_those_of_the_model(
    workers: Any, models: dict[str, Path], greedy: Callable[[Path, Sequence[int], int], list[int]]
) -> None:
    expected = greedy(models["tiny"], PROMPT, 16)
    assert [worker.tokens(PROMPT, 16) for worker in workers] == [expected, expected]


@pytest.mark.parametrize("length", [7, 64, 100, 513, 1025])
@pytest.mark.parametrize("swapped", [False, True])
def test_prefill_on_one_worker_and_decode_on_the_other_equals_colocated(
    workers: Any, length: int, swapped: bool
) -> None:
    prefill, decode = reversed(workers) if swapped else workers
    prompt = prompt_of(2 * length + swapped)[-length:]
    handed = prefill.generate(prompt, 1, kv_transfer_params=GIVE).json()
    before = decode.metric('vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="external')
    disaggregated = decode.tokens(prompt, 24, kv_transfer_params=handed["kv_transfer_params"])
    after = decode.metric('vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="external')
    assert after - before == length
    assert disaggregated == prefill.tokens(prompt, 24)


def test_a_killed_engine_serves_again(workers: Any) -> None:
    worker = workers[0]
    expected, before = worker.tokens(PROMPT, 16), worker.state()
    os.kill(before.engine_pid, signal.SIGKILL)
    worker.wait(lambda: worker.state().engine_starts == before.engine_starts + 1, "a new engine")
    assert not worker.call("GET", "/readyz").is_success
    worker.wait_for_phase("Ready")
    assert worker.tokens(PROMPT, 16) == expected


def test_a_weight_update_changes_answers_and_versions(
    workers: Any,
    publish: Callable[..., Path],
    models: dict[str, Path],
    greedy: Callable[[Path, Sequence[int], int], list[int]],
) -> None:
    worker = workers[0]
    old = worker.generate(PROMPT, 8).json()["choices"][0]
    publish(1, "tiny-b")
    worker.wait(lambda: worker.state().weight_version == 1 and worker.state().phase == "Ready", "version 1")
    new = worker.generate(PROMPT, 8).json()["choices"][0]
    assert [choice["weight_versions"][0]["version"] for choice in (old, new)] == ["0", "1"]
    assert new["token_ids"] == greedy(models["tiny-b"], PROMPT, 8) != old["token_ids"]


def test_a_sleeping_worker_refuses_and_serves_again_when_woken(workers: Any) -> None:
    worker = workers[0]
    expected = worker.tokens(PROMPT, 8)
    worker.call("POST", "/v1/activity", {"activity": "asleep", "deadlineSeconds": 5})
    worker.wait_for_phase("Asleep")
    assert worker.generate(PROMPT, 8).status_code == httpx.codes.SERVICE_UNAVAILABLE
    worker.call("POST", "/v1/activity", {"activity": "active"})
    worker.wait_for_phase("Ready")
    assert worker.tokens(PROMPT, 8) == expected


def test_weights_that_break_the_engine_are_never_served(workers: Any, publish: Callable[..., Path]) -> None:
    worker = workers[0]
    good = worker.tokens(PROMPT, 8)
    served, over = [], threading.Event()

    def ask() -> None:
        while not over.is_set():
            try:
                answer = worker.generate(PROMPT, 8)
            except httpx.TransportError:
                continue
            if answer.status_code == httpx.codes.OK:
                choice = answer.json()["choices"][0]
                served.append((choice["weight_versions"][0]["version"], choice["token_ids"], choice["finish_reason"]))
            over.wait(0.02)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        starts = worker.state().engine_starts
        publish(2, "tiny-b", damage=lambda file: os.truncate(file, 700_000))
        worker.wait_for_phase("WeightsFailed")
        worker.wait(lambda: worker.state().engine_starts == starts + 1, "a restart")
        worker.wait(lambda: worker.state().weight_version == 0, "whole weights")
        assert worker.state().phase == "WeightsFailed"
        publish(3, "tiny-b")
        worker.wait_for_phase("Ready")
    finally:
        over.set()
        asking.join()
    assert {version for version, _, _ in served} <= {"1", "3"}
    assert all(tokens == good[: len(tokens)] for _, tokens, _ in served)
    assert worker.tokens(PROMPT, 8) == good


def test_weights_that_change_on_the_disk_after_they_were_published_never_reach_the_engine(
    workers: Any, publish: Callable[..., Path]
) -> None:
    worker = workers[0]
    good = worker.tokens(PROMPT, 8)
    starts = worker.state().engine_starts
    file = publish(4, "tiny")
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    worker.wait(lambda: "model.safetensors does not have the hash" in worker.state().message, "a refusal")
    assert (worker.state().phase, worker.tokens(PROMPT, 8)) == ("Ready", good)
    publish(5, "tiny-b")
    worker.wait(lambda: worker.state().weight_version == 5 and worker.state().phase == "Ready", "version 5")
    assert (worker.tokens(PROMPT, 8), worker.state().engine_starts) == (good, starts)


def test_weights_that_are_no_numbers_load_and_are_never_served(workers: Any, publish: Callable[..., Path]) -> None:
    worker = workers[0]
    good = worker.tokens(PROMPT, 8)
    publish(6, "tiny-b", damage=poison)
    failed = worker.wait_for_phase("WeightsFailed")
    assert "the weights are damaged" in failed.message
    publish(7, "tiny-b")
    worker.wait(lambda: worker.state().weight_version == 7 and worker.state().phase == "Ready", "version 7")
    assert worker.tokens(PROMPT, 8) == good


def test_reclaim_with_requests_inside_and_kv_pinned_keeps_its_deadline(workers: Any) -> None:
    worker = workers[1]
    answers: list[httpx.Response] = []
    inside = [threading.Thread(target=lambda: answers.append(worker.generate(prompt_of(20), 2000))) for _ in range(3)]
    for thread in inside:
        thread.start()
    worker.wait(lambda: worker.metric("vllm:num_requests_running") == 3, "three running requests")
    assert worker.generate(prompt_of(300), 1, kv_transfer_params=GIVE).is_success
    began = time.monotonic()
    answer = worker.call("POST", "/v1/loan/reclaim", {"epoch": 1, "withinSeconds": 10}, purpose="loan").json()
    assert time.monotonic() - began < 10
    for thread in inside:
        thread.join()
    assert answer["free"], answer
    # The partial tokens came back, for the gateway to resume elsewhere.
    choices = [reply.json()["choices"][0] for reply in answers]
    assert all(choice["finish_reason"] == "abort" for choice in choices)
    assert all(choice["token_ids"] for choice in choices)
    again = worker.call("POST", "/v1/loan/grant", {"epoch": 1, "ttlSeconds": 60})
    assert again.status_code == httpx.codes.CONFLICT
