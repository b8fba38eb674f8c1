"""Fits engine tables to a grid of step times.

`python -m pearl_simulator.calibration.fit_tables [--tp 4]` prints them as JSON.

The grid (`data/hardware/step_times_grid.csv`) holds milliseconds of decode steps (batch × context) and of prefill steps
(one prompt, nothing cached). The fit is least squares of the *relative* error, with the terms of docs/models.md
("Engine step"); the TP4 tables in `planner/pearl_planner/tables/gpu.json` are its output.
"""

from __future__ import annotations

import argparse
import csv
import json
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np

from pearl_planner.engine.model import decode_seconds, prefill_seconds
from pearl_planner.engine.tables import table_from_dict

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pearl_planner.engine.model import EngineTable

    Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Point:
    """One step of the grid."""

    table: str
    """`MODEL/GPU-TPn`."""
    phase: str
    """`decode` or `prefill`."""
    batch: int
    tokens: int
    """Context per sequence, or new tokens of the prefill."""
    seconds: float


def grid() -> tuple[Point, ...]:
    """Every point that ships."""
    text = (resources.files("pearl_simulator") / "data/hardware/step_times_grid.csv").read_text()
    return tuple(_point(row) for row in csv.DictReader(text.splitlines()))


def _point(row: dict[str, str]) -> Point:
    table = f"{row['model']}/{row['system'].split('_')[0].upper()}-TP{row['tp']}"
    return Point(table, row["phase"], int(row["batch"]), int(row["tokens"]), float(row["ms"]) / 1e3)


def relative_error(table: EngineTable, point: Point) -> float:
    """Of the table's step time against the grid's."""
    if point.phase == "decode":
        return decode_seconds(table, point.batch, point.tokens) / point.seconds - 1.0
    return prefill_seconds(table, point.tokens, 0.0) / point.seconds - 1.0


def fit(name: str, points: tuple[Point, ...]) -> dict[str, Any]:
    """Decode and prefill constants in seconds, as `tables.table_from_dict` reads them."""
    decode = [point for point in points if point.table == name and point.phase == "decode"]
    prefill = [point for point in points if point.table == name and point.phase == "prefill"]
    n = np.array([point.batch for point in decode], dtype=float)
    context = np.array([point.tokens for point in decode], dtype=float)
    columns = [np.ones_like(n), n, n * context]
    if "A3B" in name:  # experts read by a growing batch
        columns.append(np.sqrt(n))
    step = _least_squares(columns, decode)
    new = np.array([point.tokens for point in prefill], dtype=float)
    first = _least_squares([np.ones_like(new), new, new * new / 2], prefill)
    return {
        "decode": {
            "fixed_seconds": _short(step[0]),
            "per_sequence_seconds": _short(step[1]),
            "per_context_token_seconds": _short(step[2]),
            **({"per_root_sequence_seconds": _short(step[3])} if "A3B" in name else {}),
        },
        "prefill": {
            "fixed_seconds": _short(first[0]),
            "per_token_seconds": _short(first[1]),
            "per_token_pair_seconds": _short(first[2]),
        },
    }


def _least_squares(columns: list[Floats], points: list[Point]) -> Floats:
    """Minimum of Σ (fit/measured - 1)²."""
    measured = np.array([point.seconds for point in points])
    scaled = np.stack(columns, axis=1) / measured[:, None]
    size = np.abs(scaled).max(axis=0)  # columns differ by orders of magnitude
    found: Floats = np.linalg.lstsq(scaled / size, np.ones_like(measured), rcond=None)[0] / size
    return found


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def main() -> None:
    """Print the fits of one tensor parallelism with their median error."""
    parser = argparse.ArgumentParser(description="Fit engine tables to the grid of step times.")
    parser.add_argument("--tp", type=int, default=4, help="tensor parallelism (default 4)")
    chosen = parser.parse_args()
    points = grid()
    found: dict[str, Any] = {}
    for name in sorted({point.table for point in points if point.table.endswith(f"TP{chosen.tp}")}):
        constants = fit(name, points)
        table = table_from_dict(constants, name=name)
        errors = [abs(relative_error(table, point)) for point in points if point.table == name]
        found[name] = constants | {"median_error": round(float(np.median(errors)), 4)}
    print(json.dumps(found, indent=2))  # noqa: T201 - a command prints


if __name__ == "__main__":
    main()
