from __future__ import annotations

import pytest

from pearl_planner.engine.model import EngineTable, decode_seconds, prefill_seconds, step_seconds, transfer_seconds
from pearl_planner.engine.tables import TableError, find_table, load_table, shipped_tables, table_from_dict

TABLE = EngineTable("t", 0.010, 0.002, 1e-6, 0.015, 1e-4, 1e-8, kv_bytes_per_token=1000.0)


def test_a_decode_step_costs_fixed_plus_sequences_plus_context() -> None:
    # 10 ms + 5 · 2 ms + 5 · 1000 tokens · 1 µs
    assert decode_seconds(TABLE, 5, 1000) == pytest.approx(0.025)
    assert decode_seconds(TABLE, 0, 1000) == 0.0


def test_a_prefill_step_costs_tokens_and_attention_over_the_prefix() -> None:
    # 15 ms + 100 · 0.1 ms + 10 ns · (100 · 400 + 100²/2)
    assert prefill_seconds(TABLE, 100, 400) == pytest.approx(0.02545)


def test_a_mixed_step_pays_the_larger_fixed_time_once() -> None:
    # decode of 5 as above, and 5 ms more fixed time for the chunk, and its tokens and pairs
    assert step_seconds(TABLE, 5, 1000, 100, 400) == pytest.approx(0.025 + 0.005 + 0.01045)


def test_a_mixture_of_experts_batch_never_gets_faster_by_growing() -> None:
    moe = load_table("Qwen/Qwen3-30B-A3B/H100-TP1")
    steps = [decode_seconds(moe, n, 0) for n in (1, 8, 64, 185, 400, 2000)]
    assert steps == sorted(steps)
    # 1.12 − 0.133·64 + 3.62·8 ms
    assert decode_seconds(moe, 64, 0) == pytest.approx(0.021568, rel=1e-4)


def test_a_hand_off_costs_latency_and_bytes_over_bandwidth() -> None:
    assert transfer_seconds(TABLE, 10_000) == pytest.approx(0.005 + 10_000 * 1000 / 1e9)


@pytest.mark.parametrize(
    ("name", "batch", "context", "milliseconds"),
    [("Qwen3-8B/H100-TP2", 64, 16384, 28.8), ("qwen/qwen3-8b/h200-tp1", 32, 16384, 22.7)],
)
def test_shipped_tables_give_the_published_step_times(name: str, batch: int, context: int, milliseconds: float) -> None:
    assert decode_seconds(load_table(name), batch, context) * 1000 == pytest.approx(milliseconds, rel=0.08)


def test_a_missing_table_names_what_there_is() -> None:
    with pytest.raises(TableError, match=r"spec\.engine\.table to one of: .*Qwen/Qwen3-8B/H100-TP2"):
        load_table("Qwen/Qwen3-8B/TPU")
    assert find_table("someone/else") is None
    assert shipped_tables().keys() >= {"Qwen/Qwen3-30B-A3B/A100-TP2", "Qwen/Qwen3-8B/H200-TP1"}


def test_an_impossible_table_is_refused_with_its_name() -> None:
    good = {
        "decode": {"fixed_seconds": 0.01, "per_sequence_seconds": 0.001, "per_context_token_seconds": 0},
        "prefill": {"fixed_seconds": 0.01, "per_token_seconds": 0.001, "per_token_pair_seconds": 0},
    }
    assert table_from_dict(good, name="m/cpu").decode_fixed_seconds == 0.01
    how = {"engine": "vllm 1", "script": "measure", "points": [[1, 2]]}
    assert table_from_dict({**good, "measured_with": how}, name="m/cpu").measured_with == "measure, vllm 1"
    with pytest.raises(TableError, match=r"m/cpu.*finite and positive"):
        table_from_dict({**good, "prefill": {**good["prefill"], "fixed_seconds": -1}}, name="m/cpu")
    with pytest.raises(TableError, match=r"m/cpu.*'fixed_seconds'"):
        table_from_dict({**good, "decode": {}}, name="m/cpu")
