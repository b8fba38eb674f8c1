from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import pytest

from pearl_simulator.errors import InputError
from pearl_simulator.reporting.pages import write
from pearl_simulator.reporting.parallel import Pool
from pearl_simulator.reporting.plots import draw
from pearl_simulator.reporting.report import Plot, Report, Series, Table, load_json, markdown, text, to_json
from pearl_simulator.reporting.statistics import Interval

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def report() -> Report:
    series = (
        Series("pearl", (1.2, None), (1.1, None), (1.3, None)),
        Series("roll", (1.0, 1.0)),
    )
    return Report(
        "toy",
        "A toy",
        "Nothing is compared.",
        {"gain_min": 1.2, "unknown": None},
        (Table("Gains", ("cell", "gain"), (("8B S1", Interval(1.2, 1.1, 1.3, 3)), ("8B S2", None))),),
        (
            Plot("bars", "Gain", "throughput / roll", series, groups=("S1", "S2"), reference=1.0),
            Plot("lines", "Gain", "tokens/s", series, x=(1.0, 2.0), x_label="batch (trajectories)"),
        ),
        ("It loses nowhere.",),
        (1000, 1001),
        {"horizon_seconds": 7200.0},
    )


def test_a_report_survives_its_json_file(tmp_path: Path) -> None:
    path = tmp_path / "toy.json"
    path.write_text(to_json(report(), version="1.0", command="pearl-sim toy"))
    assert load_json(path) == (report(), "1.0", "pearl-sim toy")


def test_a_number_that_is_none_becomes_null() -> None:
    bad = Report("toy", "", "", {"x": float("nan")}, ())
    assert json.loads(to_json(bad, version="", command=""))["summary"] == {"x": None}


def test_another_file_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text("{}")
    with pytest.raises(InputError, match=r"other\.json: not a result"):
        load_json(path)
    with pytest.raises(InputError, match="give a file that --json wrote"):
        load_json(tmp_path / "missing.json")


def test_cells_show_the_digits_that_matter() -> None:
    assert [text(cell) for cell in (None, True, 3, 12345.6, 123.4, 12.34, 1.2345, 0.00012, float("inf"))] == [
        "–",
        "yes",
        "3",
        "12,346",
        "123.4",
        "12.34",
        "1.234",
        "0.00012",
        "–",
    ]
    assert text(Interval(1.2, 1.1, 1.3, 3)) == "1.200 [1.100, 1.300]"
    assert text(Interval(1.2, None, None, 1)) == "1.200"


def test_a_table_in_markdown() -> None:
    assert markdown(report().tables[0]).splitlines() == [
        "**Gains**",
        "",
        "| cell | gain |",
        "|---|--:|",
        "| 8B S1 | 1.200 [1.100, 1.300] |",
        "| 8B S2 | – |",
    ]


def test_plots_are_written_as_png_and_svg_and_the_same_data_gives_the_same_file(tmp_path: Path) -> None:
    first, second = draw(report(), tmp_path / "a"), draw(report(), tmp_path / "b")
    assert [path.name for path in first] == ["toy-bars.png", "toy-bars.svg", "toy-lines.png", "toy-lines.svg"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    svg = first[1].read_text()
    assert all(word in svg for word in ("throughput / roll", "pearl", "S1", "S2"))


def test_pages_hold_the_command_the_seeds_and_a_persons_explanation(tmp_path: Path) -> None:
    results, out = tmp_path / "results", tmp_path / "pages"
    results.mkdir()
    (out / "why").mkdir(parents=True)
    (out / "why" / "toy.md").write_text("## Why\n\nBecause.\n")
    (results / "toy.json").write_text(to_json(report(), version="1.0", command="pearl-sim toy"))
    write(results, out)
    page = (out / "toy.md").read_text()
    assert "```\npearl-sim toy\n```\n\nSeeds 1000 to 1001 (2). Version 1.0." in page
    assert "Because." in page
    assert "[A toy](toy.md)" in (out / "README.md").read_text()


def test_pages_of_a_folder_without_results_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no JSON file"):
        write(tmp_path, tmp_path / "out")


def test_results_come_in_the_order_of_the_items_whatever_the_number_of_processes() -> None:
    items = [9.0, 4.0, 1.0]
    assert Pool(1).map(_root, items, "roots") == [3.0, 2.0, 1.0]
    assert Pool(2).map(_imported_root(), items, "roots") == [3.0, 2.0, 1.0]


def test_an_error_of_a_run_reaches_the_caller() -> None:
    with pytest.raises(ValueError, match="math domain"):
        Pool(2).map(_imported_root(), [1.0, -1.0], "roots")


def _root(value: float) -> float:
    return value**0.5


def _imported_root() -> Callable[[float], float]:
    """A function that another process can import, which one of a test file is not."""

    return math.sqrt
