from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pearl_simulator.errors import InputError
from pearl_simulator.types import CapacityChange
from pearl_simulator.workloads.capacity import (
    SHIPPED,
    constant,
    load_shipped,
    load_trace,
    mean_elastic,
    segments,
    window,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_nodes_are_clipped_and_the_reserved_ones_left_out(tmp_path: Path) -> None:
    lines = [*(f"0,add,n{number}" for number in range(6)), "60000,add,n6", "60000,remove,n0", "120000,remove,n1"]
    lines += [f"{180000 + number},add,m{number}" for number in range(20)]
    (tmp_path / "trace.csv").write_text("\n".join(lines))
    found = load_trace(tmp_path / "trace.csv")
    # 6 nodes are 4 reserved + 2; at 60 s still 6; then 5; and never more than 16 - 4.
    assert found[:2] == (CapacityChange(0.0, 2), CapacityChange(120.0, 1))
    assert found[-1].elastic_gpus == 12


def test_a_trace_of_counts_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("0,3\n1000,10\n\n2000,10\n")
    assert load_trace(tmp_path / "trace.csv") == (CapacityChange(0.0, 0), CapacityChange(1.0, 6))


def test_the_segments_have_the_published_means() -> None:
    found = segments()
    assert [segment.name for segment in found] == ["S1", "S2", "S3"]
    for segment, published in zip(found, (13.6, 9.0, 11.8), strict=True):
        assert segment.published_mean == published
        assert segment.mean_gpus == pytest.approx(published, abs=0.3)
        assert segment.changes[0].at_seconds == 0.0
        assert all(0 <= change.elastic_gpus <= 12 for change in segment.changes)
    changes = [len(segment.changes) for segment in found]
    assert changes[1] > changes[0] >= changes[2]


def test_a_mean_is_weighted_by_time() -> None:
    # 25 s of 0, 75 s of 4 = 3
    assert mean_elastic((CapacityChange(0, 0), CapacityChange(25, 4)), 100) == pytest.approx(3.0)


def test_a_window_starts_with_what_was_there() -> None:
    trace = (CapacityChange(0, 5), CapacityChange(100, 7), CapacityChange(200, 2))
    assert window(trace, 150, 100) == (CapacityChange(0.0, 7), CapacityChange(50.0, 2))
    assert window((CapacityChange(50, 5),), 0, 10) == (CapacityChange(0.0, 0),)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_trace_is_read(name: str) -> None:
    assert len(load_shipped(name)) >= 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no lines"),
        ("0,add,a\nnonsense\n", "line 2: 'nonsense'"),
        ("0,add,a\n-5,add,b\n", "line 2"),
        ("5000,add,a\n4000,add,b\n", "line 2"),
        ("0,kill,a\n", "line 1"),
    ],
)
def test_a_bad_trace_gets_a_sentence_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "trace.csv").write_text(text)
    with pytest.raises(InputError, match=words):
        load_trace(tmp_path / "trace.csv")


def test_what_is_not_there_gets_a_sentence() -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load_trace("/does/not/exist.csv")
    with pytest.raises(InputError, match="choose one of: bamboo_g4dn"):
        load_shipped("mars")
    with pytest.raises(InputError, match="give 0 or more"):
        constant(-1)
    assert constant(3) == (CapacityChange(0.0, 3),)
