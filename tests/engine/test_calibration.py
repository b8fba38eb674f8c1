"""The step recorder inside real vLLM: its records are the work that was sent, and they calibrate."""

from __future__ import annotations

import json
import random
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from pearl_planner.engine.calibrate import calibrate
from pearl_planner.engine.step_records import parse_steps
from pearl_planner.engine.tables import load_table

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.engine

GIVE: dict[str, Any] = {"do_remote_decode": True, "do_remote_prefill": False}


def prompt_of(tokens: int, seed: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(250) for _ in range(tokens)]


def steps_since(worker: Any, began: float) -> list[dict[str, Any]]:
    answer = worker.call("GET", f"/v1/steps?since={began}&limit=2000")
    assert answer.is_success, answer.text
    found: list[dict[str, Any]] = answer.json()["steps"]
    return found


def of(step: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(step[name] for name in names)


def test_a_request_is_one_prefill_step_and_a_decode_step_per_further_token(workers: Any) -> None:
    worker, began = workers[0], time.time()
    prompt = prompt_of(300, seed=41)
    worker.tokens(prompt, 5)
    first, *decodes = steps_since(worker, began)
    assert of(first, "decodes", "prefills", "prefill_tokens", "prefix_tokens") == (0, 1, 300, 0)
    assert of(first, "prefill_pairs", "prompt_tokens", "cached_tokens") == (300 * 300 / 2, 300, 0)
    work = [of(step, "decodes", "context_tokens", "prefill_tokens") for step in decodes]
    assert work == [(1, 301, 0), (1, 302, 0), (1, 303, 0), (1, 304, 0)]
    steps = [first, *decodes]
    assert all(0 < step["cpu_seconds"] <= step["seconds"] * 1.05 for step in steps)
    assert sum(step["seconds"] for step in steps) <= time.time() - began
    assert of(decodes[-1], "running", "waiting") == (0, 0)

    began = time.time()
    worker.tokens(prompt, 1)  # nine full blocks of 32 tokens are cached
    (again,) = steps_since(worker, began)
    assert of(again, "prefill_tokens", "prefix_tokens", "prompt_tokens", "cached_tokens") == (12, 288, 300, 288)
    assert again["prefill_pairs"] == 12 * 288 + 12 * 12 / 2


def test_kv_from_another_worker_is_decoded_without_prefill(workers: Any) -> None:
    prefill, decode = workers
    began = time.time()
    prompt = prompt_of(200, seed=42)
    handed = prefill.generate(prompt, 1, kv_transfer_params=GIVE).json()
    decode.tokens(prompt, 3, kv_transfer_params=handed["kv_transfer_params"])
    assert [of(step, "decodes", "prefill_tokens") for step in steps_since(prefill, began)] == [(0, 200)]
    steps = steps_since(decode, began)
    work = [of(step, "decodes", "context_tokens", "prefill_tokens") for step in steps]
    assert work == [(1, 200, 0), (1, 201, 0), (1, 202, 0)]
    assert steps[0]["cached_tokens"] == 199


def test_records_of_a_mixed_load_add_up_and_calibrate(workers: Any) -> None:
    worker, began = workers[0], time.time()
    sizes = [(40 + 60 * k, 6 + 5 * k) for k in range(10)] + [(1200, 2), (24, 40)]
    threads = [
        threading.Thread(target=_send, args=(worker, prompt_of(size, seed=100 + k), tokens, 0.04 * k))
        for k, (size, tokens) in enumerate(sizes)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    steps = steps_since(worker, began)
    assert sum(step["prefill_tokens"] for step in steps) == sum(size for size, _ in sizes)
    assert sum(step["prompt_tokens"] for step in steps) == sum(size for size, _ in sizes)
    assert sum(step["decodes"] for step in steps) == sum(tokens - 1 for _, tokens in sizes)
    # Σ over requests of the contexts p+1 … p+g-1 that their decode steps have
    contexts = sum((tokens - 1) * size + tokens * (tokens - 1) // 2 for size, tokens in sizes)
    assert sum(step["context_tokens"] for step in steps) == contexts
    found = calibrate(parse_steps(map(json.dumps, steps), "fresh", "cpu_seconds"), load_table("tiny/cpu"))
    assert found.steps == len(steps)
    assert 0.2 < found.table.decode_fixed_seconds / load_table("tiny/cpu").decode_fixed_seconds < 10


def _send(worker: Any, prompt: Sequence[int], tokens: int, after: float) -> None:
    time.sleep(after)
    worker.tokens(prompt, tokens)
