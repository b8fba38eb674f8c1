"""Equations 1–3 and 7 of the PEARL paper by hand, and its Table 2."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pearl_planner.paper_model import PaperModel, ranked, worth_borrowing
from pearl_planner.types import Shape
from pearl_simulator.experiments.table2 import table2

HAND = PaperModel(
    trajectories=10,
    turns=5,
    new_tokens=1000,
    generated_tokens=100,
    decode_fixed_seconds=0.01,
    decode_per_sequence_seconds=0.001,
    prefill_per_token_seconds=1e-4,
    environment_seconds=20.0,
    overlap_seconds=0.5,
    bubble_ratio=1.0,
    kv_bytes_per_token=1000,
    transfer_bytes_per_second=1e8,
)


def test_table_2_of_the_paper_is_chosen_with_one_set_of_parameters() -> None:
    table = table2()
    assert [row.got for row in table.rows] == ["2P3D", "4P9D", "3P3D", "4P10D", "3P5D", "4P12D"]
    assert [row.workers for row in table.rows] == [5, 13, 6, 14, 8, 16]
    assert table.matches == 6


def test_a_wrong_ratio_does_not_match() -> None:
    no_prompts = replace(table2().model, new_tokens=1.0)  # hardly any prefill: one worker is always enough
    assert {row.got.split("P")[0] for row in table2(no_prompts).rows} == {"1"}
    assert table2(no_prompts).matches == 0


def test_equation_1() -> None:
    # 5·[(10·1000/2)·1e-4 + 100·(0.01 + 0.001·10/2) + 0.5] + 20 = 5·[0.5 + 1.5 + 0.5] + 20
    assert HAND.colocated_seconds(2) == pytest.approx(32.5)


def test_equation_2_bubbles_inflate_only_the_fixed_cost() -> None:
    # 5·100·(0.01 + 0.001·10/(2·2))·2 = 12.5, which is 5·100·(0.01·2 + 0.001·10/2)
    assert HAND.decode_seconds(2) == pytest.approx(12.5)


def test_equation_3_takes_the_slower_stage() -> None:
    # prefill 5·(10·1000/4·1e-4 + 10·1000·1000/1e8) = 5·(0.25 + 0.1)
    assert HAND.prefill_seconds(4) == pytest.approx(1.75)
    assert HAND.disaggregated_seconds(4, 2) == pytest.approx(12.5 + 20)
    slow_prefill = replace(HAND, prefill_per_token_seconds=1e-2)
    assert slow_prefill.disaggregated_seconds(4, 2) == pytest.approx(5 * 25.1 + 20)


def test_equation_7() -> None:
    gate = {"trajectories": 64, "without_seconds": 800.0, "with_seconds": 480.0, "toggle_seconds": 9.5}
    assert worth_borrowing(unfinished=2, **gate)  # 2/64·320 = 10 > 9.5
    assert not worth_borrowing(unfinished=1, **gate)


def test_the_consistent_bubble_ratio_reproduces_its_own_decode_time() -> None:
    model = replace(HAND, bubble_ratio=None)
    f = 1 / (1 + model.bubble_ratio_of(2))
    turn = 100 * (0.01 + 0.001 * f * 10 / 2)
    assert f == pytest.approx(turn / (turn + 20 / 5))
    assert replace(model, environment_seconds=0.0).bubble_ratio_of(2) == 0.0


def test_split_fleets_whose_decode_side_cannot_hold_the_batch_are_left_out() -> None:
    model = replace(HAND, sequence_tokens=1000, worker_kv_tokens=4000)  # 10,000 tokens need three decode workers
    assert [str(shape) for shape, _ in ranked(model, 4, colocated=False)] == ["disaggregated:1P3D"]
    assert ranked(model, 2)[0][0] == Shape(colocated=2)
