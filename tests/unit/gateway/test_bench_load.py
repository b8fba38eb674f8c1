"""The figures of `make bench-gateway`, from runs that a person can add up."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from gateway_cells import LONG, PACED, SHORT, THROUGHPUT, Cell
from gateway_page import Result, write_page
from gateway_turns import Measured, Shape


def run(*turn_seconds: float, tokens: int = 0, cpu: float | None = None) -> Measured:
    return Measured("any", 2.0, list(turn_seconds or (0.1,)), tokens=tokens, cpu_seconds=cpu)


def cell(shape: Shape, *, split: bool = False, **runs: list[Measured]) -> Cell:
    names = {
        "ours": "gateway",
        "direct": "direct",
        "hashed": "vllm-router (consistent_hash)",
        "aware": "vllm-router (x)",
    }
    return Cell("site", split, shape, {names[name]: found for name, found in runs.items()})


def shape(start: str) -> Shape:
    return next(one for one in THROUGHPUT if one.name.startswith(start))


def test_added_latency_is_the_worse_difference_of_percentiles() -> None:
    streamed = cell(PACED[0], direct=[run(0.010, 0.020)], ours=[run(0.012, 0.025)], aware=[run(0.011, 0.021)])
    whole = cell(PACED[1], direct=[run(0.010, 0.020)], ours=[run(0.011, 0.030)])
    summary = Result([streamed, whole]).summary()
    # Nearest rank: the median of two is the first. 2 ms and 1 ms; 5 ms and 10 ms.
    assert summary["added_latency_p50_seconds"] == pytest.approx(0.002)
    assert summary["added_latency_p99_seconds"] == pytest.approx(0.010)
    assert Result([streamed]).details()["router_added_latency_p50_seconds"] == pytest.approx(0.001)


def test_throughput_is_compared_with_the_better_policy_and_the_worst_cell_counts() -> None:
    single, multi = shape("single"), shape("multi")
    cells = [
        cell(single, ours=[run(tokens=90)], hashed=[run(tokens=50)], aware=[run(tokens=100)]),
        cell(single, split=True, ours=[run(tokens=80)], hashed=[run(tokens=100)]),
        cell(multi, ours=[run(tokens=120)], hashed=[run(tokens=100)]),
        cell(multi, split=True, ours=[run(tokens=1), run(tokens=110), run(tokens=999)], hashed=[run(tokens=100)]),
    ]
    summary = Result(cells).summary()
    assert summary["throughput_vs_vllm_router_colocated"] == pytest.approx(0.9)
    assert summary["throughput_vs_vllm_router_disaggregated"] == pytest.approx(0.8)
    assert summary["throughput_vs_vllm_router_multiturn"] == pytest.approx(1.1)


def test_cpu_per_turn_and_chunk_come_from_process_time() -> None:
    # Two turns of 256 tokens in 8 ms of CPU are 4 ms a turn, 250 turns/s, 64,000 tokens/s. A turn of 16 tokens
    # takes 1 ms, so 15 further chunks take 3 ms.
    cells = [cell(LONG, ours=[run(9.0, 9.0, cpu=0.008)], aware=[run(9.0, 9.0, cpu=0.002)])]
    result = Result([*cells, cell(SHORT, ours=[run(9.0, 9.0, cpu=0.002)])])
    summary = result.summary()
    assert summary["cpu_microseconds_per_turn"] == pytest.approx(4000)
    assert summary["turns_per_second_per_core"] == pytest.approx(250)
    assert summary["streamed_tokens_per_second_per_core"] == pytest.approx(64_000)
    assert result.details()["cpu_microseconds_per_chunk"] == pytest.approx(200)
    assert result.details()["cpu_vs_vllm_router"] == pytest.approx(4)


def test_memory_growth_counts_from_a_fifth_of_the_run() -> None:
    memory = [(64, 100), (64, 500), (64, 510), (64, 520), (64, 530)]
    assert Result(memory=memory).summary()["memory_growth_bytes"] == 30
    assert Result().summary()["memory_growth_bytes"] is None


def test_failed_turns_and_other_tokens_are_not_good() -> None:
    ours, theirs = run(), run()
    ours.answers, theirs.answers = {"0/0": "a", "0/1": "b"}, {"0/0": "a", "0/1": "c"}
    result = Result([cell(shape("single"), ours=[ours], hashed=[theirs])])
    assert (result.differing, result.good) == (1, False)
    theirs.answers["0/1"] = "b"
    assert result.good
    ours.problems.append("single-turn 3: refused")
    assert not result.good


def test_the_page_has_every_cell_and_its_plots(tmp_path: Path) -> None:
    paced = cell(PACED[0], direct=[run(0.01)], ours=[run(0.02)])
    split = cell(shape("single"), split=True, ours=[run(tokens=200)], hashed=[run(tokens=100)])
    result = Result([paced, split])
    write_page(result, tmp_path)
    text = (tmp_path / "gateway.md").read_text()
    assert "| site, disaggregated, single-turn, streamed | gateway | 100 | 100.0 ms | 100.0 ms | 0 |" in text
    assert "not measured" in text  # what was not run is not 0
    names = {path.name for path in tmp_path.iterdir()}
    assert names >= {f"gateway-{plot}.{kind}" for plot in ("latency", "throughput") for kind in ("png", "svg")}
    assert "answers" not in json.dumps(result.as_dict()["cells"])


def test_a_scaled_shape_is_still_its_cell() -> None:
    small = replace(LONG, trajectories=2)
    assert Result([cell(small, ours=[run(cpu=0.004)])]).summary()["cpu_microseconds_per_turn"] == pytest.approx(4000)
