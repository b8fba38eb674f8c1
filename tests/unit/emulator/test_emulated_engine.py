"""The emulated engine on virtual time: how long things take and who has to wait, all worked out by hand."""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from pearl_planner.engine.model import EngineTable
from pearl_simulator.emulator import EngineConfig, LocalPeers, LoopClock, Perturbation, tokens
from pearl_simulator.emulator.app import EmulatorApp
from pearl_simulator.emulator.engine import Engine
from pearl_simulator.emulator.errors import EngineDeadError, EngineFaultError
from pearl_simulator.emulator.sequence import Sampling, Sequence

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.looptime

TABLE = EngineTable(
    name="round/numbers",
    decode_fixed_seconds=0.010,
    decode_per_sequence_seconds=0.001,
    decode_per_context_token_seconds=0.000_001,
    prefill_fixed_seconds=0.020,
    prefill_per_token_seconds=0.000_1,
    prefill_per_token_pair_seconds=0.000_000_1,
    kv_bytes_per_token=1000.0,
    transfer_bytes_per_second=1e6,
    transfer_fixed_seconds=0.5,
)
CONFIG = EngineConfig(
    table=TABLE, block_tokens=10, kv_tokens=10_000, max_batched_tokens=500, max_model_len=4000, max_sequences=8
)


class Fleet:
    """Engines that know each other."""

    def __init__(self) -> None:
        self.peers = LocalPeers()
        self.engines: list[Engine] = []
        self._numbers = itertools.count()

    def engine(self, config: EngineConfig = CONFIG, perturbation: Perturbation | None = None) -> Engine:
        name = f"engine-{len(self.engines)}"
        made = Engine(
            config,
            engine_id=name,
            clock=LoopClock(),
            peers=self.peers,
            draw=random.Random(0),
            perturbation=perturbation,
        )
        self.peers.engines[name] = made
        self.engines.append(made)
        made.start()
        return made

    def ask(self, engine: Engine, prompt: list[int], count: int, **more: Any) -> Sequence:
        name = f"r{next(self._numbers)}"
        kv = more.pop("kv", None)
        sequence = Sequence(name, f"{name}-x", 0, prompt, Sampling(count, **more), engine.clock.now(), kv)
        engine.submit([sequence])
        return sequence


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    made = Fleet()
    yield made
    for engine in made.engines:
        await engine.stop()


def now() -> float:
    """Seconds of the test so far, rounded by looptime to microseconds."""
    return asyncio.get_running_loop().time()


async def ended(*sequences: Sequence) -> None:
    for sequence in sequences:
        while (await sequence.deltas.get()).finish_reason is None:
            pass


def plain(prompt: list[int], count: int, version: str = "default") -> list[int]:
    """The token function, called directly."""
    state, salt, answer = tokens.prompt_state(prompt), tokens.weights_salt(version), []
    for _ in range(count):
        answer.append(tokens.next_token(state, salt))
        state = tokens.push(state, answer[-1])
    return answer


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return [(7 * at + 13 * seed) % 90 for at in range(length)]


GIVE = {"do_remote_decode": True, "do_remote_prefill": False}


async def test_prefill_and_decode_last_as_long_as_the_formula_says(fleet: Fleet) -> None:
    engine = fleet.engine()
    await ended(fleet.ask(engine, prompt_of(100), 3))
    # Prefill: 0.020 + 100·1e-4 + (100²/2)·1e-7 = 0.0305. Then two decode steps over 101 and 102 tokens.
    assert now() == pytest.approx(0.0305 + (0.011 + 101e-6) + (0.011 + 102e-6), abs=1e-5)


async def test_long_prompt_comes_in_chunks_that_all_attend_to_what_was_before(fleet: Fleet) -> None:
    engine = fleet.engine()
    await ended(fleet.ask(engine, prompt_of(900), 1))
    # 500 tokens, then 400 behind them: fixed twice, 900 tokens, 500²/2 + 400·500 + 400²/2 pairs.
    assert now() == pytest.approx(2 * 0.020 + 0.09 + (125_000 + 200_000 + 80_000) * 1e-7, abs=1e-5)


async def test_sequences_that_decode_meanwhile_wait_for_the_chunk(fleet: Fleet) -> None:
    engine = fleet.engine()
    first = fleet.ask(engine, prompt_of(100), 3)
    await asyncio.sleep(0.0301)  # within its prefill
    second = fleet.ask(engine, prompt_of(200, seed=1), 1)
    await ended(first, second)
    mixed = 0.011 + 101e-6 + (0.020 - 0.010) + 200e-4 + 20_000e-7
    assert now() == pytest.approx(0.0305 + mixed + (0.011 + 102e-6), abs=1e-5)


async def test_answer_does_not_depend_on_company_chunks_or_preemption(fleet: Fleet) -> None:
    prompts = [prompt_of(40 + 30 * at, seed=at) for at in range(6)]
    # Room for 60 blocks of 10 tokens: all prompts (690 tokens) and their answers do not fit at once.
    tight = fleet.engine(replace(CONFIG, kv_tokens=600, max_batched_tokens=64))
    asked = [fleet.ask(tight, prompt, 60) for prompt in prompts]
    await ended(*asked)
    assert [one.answer for one in asked] == [plain(prompt, 60) for prompt in prompts]
    assert tight.metrics.value("num_preemptions") > 0
    assert tight.pool.used_share == 0


async def test_request_waits_for_room_and_is_counted_as_waiting(fleet: Fleet) -> None:
    engine = fleet.engine(replace(CONFIG, max_sequences=1))
    first, second = (fleet.ask(engine, prompt_of(50, seed), 20) for seed in (1, 2))
    await asyncio.sleep(0.1)
    assert [engine.metrics.value(f"num_requests_{what}") for what in ("running", "waiting")] == [1, 1]
    await ended(first, second)
    assert second.first_token is not None
    assert first.last_token is not None
    assert second.first_token > first.last_token


async def test_prefix_cache_saves_whole_blocks_and_is_lost_when_the_room_is_needed(fleet: Fleet) -> None:
    engine = fleet.engine(replace(CONFIG, kv_tokens=300))
    await ended(fleet.ask(engine, prompt_of(105), 1))
    again = fleet.ask(engine, prompt_of(105), 1)
    start = now()
    await ended(again)
    # Ten blocks of ten are there, five tokens are new.
    assert again.cached == 100
    assert now() - start == pytest.approx(0.020 + 5e-4 + (5 * 100 + 12.5) * 1e-7, abs=1e-5)
    await ended(fleet.ask(engine, prompt_of(290, seed=3), 1))
    evicted = fleet.ask(engine, prompt_of(105), 1)
    await ended(evicted)
    # 29 of the 30 blocks were given out again; what is left is the head, which goes last.
    assert evicted.cached == 10


async def test_hand_over_takes_the_transfer_time_and_no_prefill(fleet: Fleet) -> None:
    prefill, decode = fleet.engine(), fleet.engine()
    given = fleet.ask(prefill, prompt_of(200), 1, kv=GIVE)
    await ended(given)
    assert prefill.pool.used_share == pytest.approx(20 / 1000)
    start = now()
    taken = fleet.ask(decode, prompt_of(200), 4, kv=given.kv_answer)
    await ended(taken)
    # 200 kB at 1 MB/s and half a second; then steps over 200, 201, 202 and 203 tokens.
    assert now() - start == pytest.approx(0.7 + 4 * 0.011 + (200 + 201 + 202 + 203) * 1e-6, abs=1e-5)
    assert taken.answer == plain(prompt_of(200), 4)
    assert prefill.pool.used_share == 0


async def test_lease_ends_unless_a_reader_came(fleet: Fleet) -> None:
    prefill = fleet.engine(replace(CONFIG, lease_seconds=10))
    decode = fleet.engine(replace(CONFIG, max_sequences=1))
    given = [fleet.ask(prefill, prompt_of(100, seed), 1, kv=GIVE) for seed in (1, 2)]
    await ended(*given)
    busy = fleet.ask(decode, prompt_of(10), 3000)
    queued = fleet.ask(decode, prompt_of(100, 1), 5, kv=given[0].kv_answer)
    await asyncio.sleep(11)
    assert prefill.metrics.value("nixl_num_kv_expired_reqs") == 1  # of the one that nobody came for
    late = fleet.ask(decode, prompt_of(100, 2), 5, kv=given[1].kv_answer)
    await ended(busy, queued, late)
    assert (queued.external, late.external) == (100, 0)
    assert [queued.answer, late.answer] == [plain(prompt_of(100, seed), 5) for seed in (1, 2)]
    assert decode.metrics.value("nixl_num_failed_transfers") == 1
    assert prefill.metrics.value("nixl_num_notifications_after_expiry") == 1


@pytest.mark.parametrize("corrupts", [False, True])
async def test_kv_of_other_weights_or_of_a_lease_that_is_over(fleet: Fleet, corrupts: bool) -> None:
    prefill = fleet.engine(replace(CONFIG, lease_seconds=1, expired_kv_corrupts=corrupts))
    decode = fleet.engine()
    given = fleet.ask(prefill, prompt_of(100), 1, kv=GIVE)
    await ended(given)
    await asyncio.sleep(2)
    late = fleet.ask(decode, prompt_of(100), 5, kv=given.kv_answer)
    await ended(late)
    assert (late.answer == plain(prompt_of(100), 5)) is not corrupts
    fresh = fleet.ask(prefill, prompt_of(100), 1, kv=GIVE)
    await ended(fresh)
    decode.weights.version = "7"
    mixed = fleet.ask(decode, prompt_of(100), 5, kv=fresh.kv_answer)
    own = fleet.ask(decode, prompt_of(101), 5)
    await ended(mixed, own)
    assert mixed.answer != plain(prompt_of(100), 5, "7")
    assert own.answer == plain(prompt_of(101), 5, "7")


async def test_kv_that_is_fetched_while_the_weights_change_is_kept_like_any_other(fleet: Fleet) -> None:
    prefill, decode = fleet.engine(), fleet.engine()
    given = fleet.ask(prefill, prompt_of(100), 1, kv=GIVE)
    await ended(given)
    taken = fleet.ask(decode, prompt_of(100), 5, kv=given.kv_answer)
    await asyncio.sleep(0.1)  # the transfer takes 0.6 s
    decode.weights.version = "7"
    await ended(taken)
    assert taken.answer == plain(prompt_of(100), 5, "7")
    assert taken.spans == [("7", 0, 5)]


async def test_without_the_policy_to_recompute_lost_kv_is_an_error(fleet: Fleet) -> None:
    decode = fleet.engine(replace(CONFIG, recompute_lost_kv=False))
    gone = {
        **GIVE,
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [[1]],
        "remote_engine_id": "nobody",
        "remote_request_id": "r",
        "remote_host": "h",
        "remote_port": 1,
    }
    lost = fleet.ask(decode, prompt_of(100), 5, kv=gone)
    await ended(lost)
    assert (lost.finish_reason, decode.pool.used_share) == ("error", 0)


async def test_kv_parameters_without_blocks_are_the_engines_end(fleet: Fleet) -> None:
    engine = fleet.engine()
    fatal = fleet.ask(engine, prompt_of(100), 5, kv={"do_remote_prefill": True})
    await ended(fatal)
    assert (engine.dead, fatal.finish_reason) == (True, "error")
    with pytest.raises(EngineDeadError):
        engine.submit([])


async def test_resumed_answer_goes_on_where_it_was_cut(fleet: Fleet) -> None:
    engine = fleet.engine()
    first = fleet.ask(engine, prompt_of(50), 500)
    await asyncio.sleep(1.0)
    assert engine.abort([first.request_id]) == 1
    rest = fleet.ask(engine, prompt_of(50) + first.answer, 500 - first.generated)
    await ended(rest)
    assert 0 < first.generated < 500
    assert first.answer + rest.answer == plain(prompt_of(50), 500)


async def test_frozen_sequence_changes_its_weights_in_mid_answer(fleet: Fleet, tmp_path: Path) -> None:
    engine = fleet.engine()
    sequence = fleet.ask(engine, prompt_of(50), 100)
    await asyncio.sleep(0.5)
    await engine.pause("keep")
    file = tmp_path / "w"
    file.write_bytes(b"")
    engine.weights.start()
    with pytest.raises(EngineFaultError, match="nothere"):
        engine.weights.load({"paths": [str(file), "/nothere"]})
    engine.weights.start()
    engine.weights.load({"paths": [str(file)]})
    engine.weights.finish("3")
    seam = sequence.generated
    engine.resume()
    await ended(sequence)
    assert sequence.spans == [("default", 0, seam), ("3", seam, 100)]
    old = plain(prompt_of(50), seam)
    assert sequence.answer == old + plain(prompt_of(50) + old, 100 - seam, "3")


async def test_perturbed_steps(fleet: Fleet) -> None:
    slow = fleet.engine(perturbation=Perturbation(step_factor=1.2, host_seconds=0.002))
    await ended(fleet.ask(slow, prompt_of(100), 1))
    assert now() == pytest.approx(1.2 * 0.0305 + 0.002, abs=1e-5)
    noisy = fleet.engine(perturbation=Perturbation(step_noise=0.5))
    start = now()
    await ended(fleet.ask(noisy, prompt_of(10), 1000))
    # The factor has mean 1: a thousand steps of about 11.5 ms differ by 0.5/√1000 = 1.7 % (here within 3 of that).
    assert now() - start == pytest.approx(sum(0.011 + (10 + at) * 1e-6 for at in range(1000)), rel=0.05)


async def test_answers_end_by_themselves_if_wanted(fleet: Fleet) -> None:
    engine = fleet.engine(replace(CONFIG, mean_answer_tokens=20))
    asked = [fleet.ask(engine, prompt_of(30, seed), 1000) for seed in range(200)]
    await ended(*asked)
    mean = sum(one.generated for one in asked) / len(asked)
    assert {one.finish_reason for one in asked} == {"stop"}
    assert mean == pytest.approx(20, rel=0.25)  # geometric: its deviation over 200 is 20/√200 = 7 %
    whole = fleet.ask(engine, prompt_of(30), 100, ignore_eos=True)
    await ended(whole)
    assert whole.generated == 100


async def test_http_application_runs_on_virtual_time_too(fleet: Fleet) -> None:
    app = EmulatorApp(fleet.engine(), lambda: "id", lambda: 0.0)
    body = {"prompt": "hello", "max_tokens": 1000, "ignore_eos": True}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://engine", timeout=60) as client:
        answer = await client.post("/v1/completions", json=body)
    assert answer.json()["usage"]["completion_tokens"] == 1000
    # Prefill of 5 tokens, then 999 steps over 6 … 1004 tokens.
    assert now() == pytest.approx(0.020 + 5e-4 + 12.5e-7 + 999 * 0.011 + sum(range(6, 1005)) * 1e-6, abs=0.002)
