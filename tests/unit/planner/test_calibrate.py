"""Recorded steps become constants: right ones, with honest error bars, or a sentence that says what is missing."""

from __future__ import annotations

import gzip
import json
import math
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pearl_planner.engine.calibrate import CONSTANTS, calibrate, calibrate_file, predicted_seconds
from pearl_planner.engine.model import EngineTable
from pearl_planner.engine.step_records import CalibrationError, Step, merge
from pearl_planner.engine.tables import load_table, table_from_dict

if TYPE_CHECKING:
    from pathlib import Path

TRUE = EngineTable(
    name="true",
    decode_fixed_seconds=0.010,
    decode_per_sequence_seconds=2e-4,
    decode_per_context_token_seconds=1e-7,
    prefill_fixed_seconds=0.014,
    prefill_per_token_seconds=5e-5,
    prefill_per_token_pair_seconds=1e-9,
)


def step(decodes: int, context: float, tokens: float = 0, prefix: float = 0, table: EngineTable = TRUE) -> Step:
    bare = Step(decodes, decodes * context, tokens, tokens * prefix + tokens**2 / 2, 1.0)
    return replace(bare, seconds=predicted_seconds(table, bare))


def grid(table: EngineTable = TRUE) -> list[Step]:
    """Steps of all three kinds."""
    decode = [step(n, context, table=table) for n in (1, 2, 5, 12, 30) for context in (100, 1000, 8000)]
    prefill = [step(0, 0, c, prefix, table) for c in (30, 200, 900, 2000) for prefix in (0, 1000, 9000)]
    mixed = [step(n, 500, c, 300, table) for n in (1, 10, 25) for c in (50, 800)]
    return decode + prefill + mixed


def noisy(steps: list[Step], seed: int, times: int = 12) -> list[Step]:
    """Each step several times: 5 % of noise, and one in ten steps held up by something else for up to ten times."""
    chance = random.Random(seed)
    return [
        replace(one, seconds=one.seconds * math.exp(chance.gauss(0, 0.05)) * (chance.choice([1] * 9 + [10])))
        for one in steps
        for _ in range(times)
    ]


def test_exact_steps_give_the_constants_that_made_them() -> None:
    found = calibrate(grid())
    # 10 ms + n·0.2 ms + context·0.1 µs; 14 ms + c·50 µs + pairs·1 ns
    for name, value in zip(CONSTANTS, (0.010, 0.014, 5e-5, 2e-4, 1e-7, 1e-9, 0.0), strict=True):
        assert getattr(found.table, name) == pytest.approx(value, rel=1e-3), name
    assert found.heldout_error is not None
    assert found.heldout_error < 1e-3
    assert not any(one.identified for one in found.constants if one.name == "decode_per_root_sequence_seconds")


def test_a_mixed_step_costs_the_larger_fixed_time_once() -> None:
    faster_prefill = replace(TRUE, prefill_fixed_seconds=0.004)
    found = calibrate(grid(faster_prefill))
    assert found.table.prefill_fixed_seconds == pytest.approx(0.004, rel=1e-2)
    assert found.table.decode_fixed_seconds == pytest.approx(0.010, rel=1e-3)


def test_error_bars_cover_the_truth_though_one_step_in_ten_is_disturbed() -> None:
    inside = []
    for seed in range(20):
        found = calibrate(noisy(grid(), seed))
        for one in found.constants[:6]:
            assert one.error is not None
            inside.append(abs(one.value - getattr(TRUE, one.name)) <= 2 * one.error)
    assert sum(inside) >= 0.85 * len(inside)
    assert found.table.decode_fixed_seconds == pytest.approx(0.010, rel=0.05)


def test_held_out_error_is_that_of_steps_not_fitted() -> None:
    bent = [replace(one, seconds=one.seconds * (1.5 if one.decodes == 12 else 1.0)) for one in grid()]
    found = calibrate(bent)
    assert found.heldout_by_kind["decode"] > 0.03  # a step time that the formula cannot have is not explained away
    assert found.heldout_by_kind["prefill"] < 0.03


def test_what_the_records_do_not_say_comes_from_the_base_scaled_like_the_rest() -> None:
    base = TRUE.scaled(0.5)
    found = calibrate([one for one in grid() if one.kind == "decode"], base)
    assert found.scale == pytest.approx(2.0)
    prefill = {one.name: one for one in found.constants if one.name.startswith("prefill")}
    assert all(not one.identified and one.error is None for one in prefill.values())
    assert found.table.prefill_per_token_seconds == pytest.approx(5e-5)
    assert found.table.decode_per_sequence_seconds == pytest.approx(2e-4, rel=0.01)


def test_a_wrong_base_is_outvoted_by_many_steps() -> None:
    wrong = replace(TRUE, decode_per_context_token_seconds=3e-7, prefill_per_token_seconds=2e-5)
    found = calibrate(noisy(grid(), 1, times=30), wrong)
    assert found.table.decode_per_context_token_seconds == pytest.approx(1e-7, rel=0.25)
    assert found.table.prefill_per_token_seconds == pytest.approx(5e-5, rel=0.1)


def test_the_root_term_of_a_mixture_of_experts_is_fitted() -> None:
    moe = load_table("Qwen3-30B-A3B/H100-TP2")
    assert moe.decode_per_root_sequence_seconds > 0
    steps = [step(n, context, table=moe) for n in (1, 2, 4, 8, 16, 32, 64, 128) for context in (500, 4000, 16000)]
    steps += [step(0, 0, c, prefix, moe) for c in (100, 1000, 4000) for prefix in (0, 8000)]
    found = calibrate(steps, moe.scaled(1.3))
    for n, context in ((3, 1000), (50, 2000), (100, 12000)):
        probe = step(n, context, table=moe)
        assert predicted_seconds(found.table, probe) == pytest.approx(probe.seconds, rel=0.03)


def test_constants_are_never_negative() -> None:
    shrinking = [replace(one, seconds=0.02 - 1e-7 * one.context_tokens / max(one.decodes, 1)) for one in grid()]
    found = calibrate(shrinking)
    assert all(one.value >= 0 for one in found.constants)


def test_equal_steps_become_their_median() -> None:
    merged = merge([Step(2, 1000, 0, 0, seconds) for seconds in (0.01, 0.011, 0.5)])
    assert [(one.seconds, one.count) for one in merged] == [(0.011, 3)]


def test_without_a_base_missing_kinds_of_steps_are_named() -> None:
    with pytest.raises(CalibrationError, match="decode_per_sequence_seconds needs decode steps with different numbers"):
        calibrate([one for one in grid() if one.decodes in (0, 5)])
    with pytest.raises(CalibrationError, match="prefill_fixed_seconds needs steps that only prefill"):
        calibrate([one for one in grid() if one.kind == "decode"])


LINE = {"decodes": 1, "context_tokens": 9, "prefill_tokens": 0, "prefill_pairs": 0, "seconds": 0.01}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "s.jsonl holds no steps: send requests"),
        (json.dumps(LINE) + "\n\n{", "s.jsonl line 3 is no JSON"),
        ("[1]", "line 1 is no JSON object"),
        (json.dumps(LINE | {"seconds": "fast"}), "line 1: seconds must be a finite number of at least 0, got 'fast'"),
        (json.dumps(LINE | {"seconds": float("nan")}), "seconds must be a finite number of at least 0, got nan"),
        (json.dumps(LINE | {"decodes": -1}), "decodes must be a finite number of at least 0, got -1"),
        (json.dumps({k: v for k, v in LINE.items() if k != "prefill_pairs"}), "prefill_pairs must be .* got nothing"),
        (json.dumps(LINE | {"seconds": 0}), "line 1: a step has work and takes time"),
        (json.dumps(LINE), "the records do not determine 5 constants"),
    ],
)
def test_a_file_that_cannot_be_used_says_where_and_what_to_do(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "s.jsonl").write_text(text)
    with pytest.raises(CalibrationError, match=message):
        calibrate_file(tmp_path / "s.jsonl")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match=r"nowhere\.jsonl"):
        calibrate_file(tmp_path / "nowhere.jsonl")


def test_a_packed_file_gives_a_table_that_the_planner_takes(tmp_path: Path) -> None:
    lines = [json.dumps({name: getattr(one, name) for name in LINE} | {"at": 1.0, "kv_usage": 0.1}) for one in grid()]
    (tmp_path / "s.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    answer = json.loads(json.dumps(calibrate_file(tmp_path / "s.jsonl.gz").as_dict()))
    again = table_from_dict(answer["table"], name="mine")
    assert again.decode_fixed_seconds == pytest.approx(0.010, rel=1e-3)
    assert answer["constants"]["prefill_per_token_seconds"]["identified"] is True
