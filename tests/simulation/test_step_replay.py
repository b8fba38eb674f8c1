"""Agents replayed step by step: batching, chunks, cached blocks and hand-overs, worked out by hand."""

from __future__ import annotations

import pytest

from pearl_planner.engine.model import EngineTable
from pearl_simulator.outside.step_replay import Asked, Setup, turn_seconds

# A decode step lasts 1 s + 0.1 s per sequence, a prefill 2 s + 0.01 s per token; contexts and pairs cost nothing.
TABLE = EngineTable("t", 1.0, 0.1, 0.0, 2.0, 0.01, 0.0)
ALONE = Setup(TABLE, disaggregated=False, max_batched_tokens=100)


def test_one_turn_is_its_prefill_and_its_decode_steps() -> None:
    # 50 tokens: 2.5 s and the first token; two more steps of 1.1 s
    assert turn_seconds([[Asked(50, 3, 0.0)]], ALONE) == [[pytest.approx(2.5 + 2.2)]]


def test_a_long_prompt_takes_chunks() -> None:
    # 100 + 100 + 50 tokens: 3 + 3 + 2.5 s
    assert turn_seconds([[Asked(250, 1, 0.0)]], ALONE) == [[pytest.approx(8.5)]]


def test_the_next_turn_computes_only_what_full_blocks_do_not_hold() -> None:
    # After 64 prompt tokens and 4 generated ones 67 are computed, so two blocks of 32 stay; 100 - 64 = 36 are new.
    first, second = turn_seconds([[Asked(64, 4, 5.0), Asked(100, 1, 0.0)]], ALONE)[0]
    assert first == pytest.approx(2.64 + 3 * 1.1)
    assert second == pytest.approx(2.36)


def test_a_prefill_holds_up_the_sequence_that_decodes() -> None:
    # The second agent's prompt waits for the running prefill (2.1 s) and then shares a step with the first's decode:
    # 1.1 + (2 - 1) + 0.4 s; then both decode: 1.2 s. First: 3 tokens, second: 2 tokens.
    setup = Setup(TABLE, disaggregated=False, max_batched_tokens=10)
    first, second = turn_seconds([[Asked(10, 3, 0.0)], [Asked(9, 2, 0.0)]], setup)
    mixed = 1.1 + 1.0 + 0.09
    assert first == [pytest.approx(2.1 + mixed + 1.2)]
    assert second == [pytest.approx(2.1 + mixed + 1.2)]


def test_disaggregated_turns_pay_the_hand_over_and_decode_every_token_elsewhere() -> None:
    setup = Setup(TABLE, disaggregated=True, max_batched_tokens=100, request_seconds=0.2, handover_seconds=0.5)
    assert turn_seconds([[Asked(50, 3, 0.0)]], setup) == [[pytest.approx(0.2 + 2.5 + 0.5 + 3 * 1.1)]]
