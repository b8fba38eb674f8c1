"""Real engines of different sizes: KV from one rank to two ranks and back, and the life of a worker of two ranks.

The large worker loads the weights of the reserved one of `test_engine`; the file can be run without it.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

pytestmark = pytest.mark.engine

GIVE: dict[str, Any] = {"do_remote_decode": True, "do_remote_prefill": False}
FETCHED = 'vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="external'
VERSION = 30


@pytest.fixture(scope="module")
def sizes(workers: Any, made: Callable[..., Any]) -> Iterator[tuple[Any, Any]]:
    """A worker of one rank and one of two, ready and with the same weights."""
    small, large = workers[0], made("large", "reserved", PEARL_TENSOR_PARALLEL="2")
    large.start()
    try:
        large.wait_for_phase("Ready")
        # Engines that meet for the first time shake hands, which a busy machine may keep from being in time.
        for number, (prefill, decode) in enumerate([(small, large), (large, small)]):
            decode.wait(lambda p=prefill, d=decode, n=number: handed_over(p, d, prompt_of(33 + n))[1], "a hand-over")
        yield small, large
    finally:
        assert large.stop() == 0


def prompt_of(tokens: int) -> list[int]:
    return [random.Random(tokens).randrange(250) for _ in range(tokens)]


def handed_over(prefill: Any, decode: Any, prompt: list[int]) -> tuple[list[int], float]:
    """The answer to a prompt that another worker prefilled, and how many tokens' KV were fetched from there."""
    handed = prefill.generate(prompt, 1, kv_transfer_params=GIVE).json()
    before = decode.metric(FETCHED)
    tokens = decode.tokens(prompt, 24, kv_transfer_params=handed["kv_transfer_params"])
    return tokens, decode.metric(FETCHED) - before


@pytest.mark.parametrize("length", [7, 100, 1025])
@pytest.mark.parametrize("swapped", [False, True])
def test_kv_goes_between_workers_of_different_sizes(sizes: Any, length: int, swapped: bool) -> None:
    prefill, decode = reversed(sizes) if swapped else sizes
    prompt = prompt_of(3 * length + swapped)[-length:]
    assert handed_over(prefill, decode, prompt) == (prefill.tokens(prompt, 24), length)


def test_a_large_worker_loads_new_weights_on_every_rank(
    sizes: Any,
    publish: Callable[..., Path],
    models: dict[str, Path],
    greedy: Callable[[Path, Sequence[int], int], list[int]],
) -> None:
    large, prompt = sizes[1], prompt_of(40)
    publish(VERSION, "tiny")
    large.wait(lambda: large.state().weight_version == VERSION and large.state().phase == "Ready", "tiny")
    old = large.tokens(prompt, 8)
    publish(VERSION + 1, "tiny-b")
    large.wait(lambda: large.state().weight_version == VERSION + 1 and large.state().phase == "Ready", "tiny-b")
    assert large.tokens(prompt, 8) == greedy(models["tiny-b"], prompt, 8) != old == greedy(models["tiny"], prompt, 8)


def test_a_large_worker_that_loses_a_rank_serves_again(sizes: Any) -> None:
    large, prompt = sizes[1], prompt_of(41)
    expected, before = large.tokens(prompt, 8), large.state()
    ranks = [pid for pid in group(before.engine_pid) if b"Worker_TP" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(ranks) == 2
    os.kill(ranks[1], signal.SIGKILL)
    large.wait(lambda: large.state().engine_starts == before.engine_starts + 1, "a new engine")
    large.wait_for_phase("Ready")
    assert large.tokens(prompt, 8) == expected
    assert group(before.engine_pid) == []


def group(leader: int) -> list[int]:
    """The processes of a process group."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [pid for pid in pids if group_of(pid) == leader]


def group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None
