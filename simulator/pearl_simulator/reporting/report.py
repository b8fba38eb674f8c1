"""What an experiment answers: a flat summary, tables and plots as data; JSON for machines, tables for people."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table as RichTable

from pearl_simulator.errors import InputError
from pearl_simulator.reporting.statistics import Interval

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

FORMAT = 1
"""Of the JSON file; grows when a key changes its meaning."""

Cell = str | int | float | bool | Interval | None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows for people."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    """Of `Cell`."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """One colour of a plot; every tuple is as long as the groups (or the x values)."""

    label: str
    values: tuple[float | None, ...]
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Plot:
    """Bars over named groups, or lines over numbers."""

    name: str
    """Of its file."""
    title: str
    y: str
    """Axis label with its unit."""
    series: tuple[Series, ...]
    groups: tuple[str, ...] = ()
    """Bars: the names on the x axis."""
    x: tuple[float, ...] = ()
    """Lines: the numbers on the x axis."""
    x_label: str = ""
    reference: float | None = None
    """A horizontal line to compare with, e.g. 1 = no difference."""
    log_x: bool = False
    markers: bool = False
    """Lines: points alone, with error bars."""
    dots: bool = True
    """Lines: mark the points."""
    slanted: bool = False
    """Bars: long names below the axis."""


@dataclass(frozen=True, slots=True)
class Report:
    """All that one experiment found."""

    experiment: str
    title: str
    about: str
    """One paragraph: what is compared, under which conditions."""
    summary: dict[str, float | int | None]
    """Flat, documented in docs/simulator-cli.md; None = could not be measured in this run."""
    tables: tuple[Table, ...]
    plots: tuple[Plot, ...] = ()
    findings: tuple[str, ...] = ()
    """What to know, losses first."""
    seeds: tuple[int, ...] = ()
    parameters: dict[str, Any] = field(default_factory=dict)
    """Everything that determines the result besides the seeds."""
    runs: tuple[dict[str, Any], ...] = ()
    """One flat record per simulated run."""


def to_json(report: Report, *, version: str, command: str) -> str:
    """The file of `--json`; numbers that are no numbers become null."""
    body = {"format": FORMAT, "version": version, "command": command, **_plain(report)}
    lines = ",\n".join(f" {json.dumps(key)}: {_lines(value)}" for key, value in body.items())
    return f"{{\n{lines}\n}}\n"


def _lines(value: Any) -> str:
    """A long list has a line per entry: readable, and a tenth of the size of full indentation."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(f"  {json.dumps(one, allow_nan=False)}" for one in value) + "\n ]"
    return json.dumps(value, allow_nan=False)


def load_json(path: Path) -> tuple[Report, str, str]:
    """The report of a file with its version and command.

    Raises:
        InputError: the file is missing or not one of `to_json`.
    """
    try:
        data = json.loads(path.read_text())
        tables = tuple(_table_in(table) for table in data["tables"])
        plots = tuple(_plot_in(plot) for plot in data["plots"])
        plain = ("experiment", "title", "about", "summary", "parameters")
        report = Report(
            **{key: data[key] for key in plain},
            tables=tables,
            plots=plots,
            findings=tuple(data["findings"]),
            seeds=tuple(data["seeds"]),
            runs=tuple(data["runs"]),
        )
        return report, str(data["version"]), str(data["command"])
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; give a file that --json wrote") from error
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not a result of pearl-sim ({error}); write it again with --json") from error


def show(report: Report, console: Console) -> None:
    """Tables, findings and the summary."""
    console.print(f"\n[bold]{report.title}[/bold]\n{report.about}\n", highlight=False)
    for table in report.tables:
        rich_table = RichTable(title=table.title, title_justify="left", box=box.SIMPLE_HEAD, caption=table.note or None)
        for position, column in enumerate(table.columns):
            rich_table.add_column(column, justify="left" if position == 0 else "right")
        for row in table.rows:
            rich_table.add_row(*(text(cell) for cell in row))
        console.print(rich_table)
    for finding in report.findings:
        console.print(f"• {finding}", highlight=False)
    width = max((len(key) for key in report.summary), default=0)
    console.print("\n[bold]summary[/bold]")
    for key, value in report.summary.items():
        console.print(f"  {key.ljust(width)}  {text(value)}", highlight=False)


def text(cell: Cell) -> str:
    """A cell for people: three or four digits that matter, `–` for unknown, `value [low, high]` for intervals."""
    if cell is None:
        return "–"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, Interval):
        bounds = "" if cell.low is None or cell.high is None else f" [{_number(cell.low)}, {_number(cell.high)}]"
        return f"{_number(cell.value)}{bounds}"
    return _number(cell) if isinstance(cell, float) else str(cell)


def markdown(table: Table) -> str:
    """The table as GitHub shows it."""
    lines = [f"| {' | '.join(table.columns)} |", f"|---|{'--:|' * (len(table.columns) - 1)}"]
    lines += [f"| {' | '.join(text(cell) for cell in row)} |" for row in table.rows]
    note = [f"\n{table.note}"] if table.note else []
    return "\n".join([f"**{table.title}**\n", *lines, *note])


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "–"
    size = abs(value)
    if size >= 1000:  # noqa: PLR2004
        return f"{value:,.0f}"
    digits = 1 if size >= 100 else 2 if size >= 10 else 3  # noqa: PLR2004
    return f"{value:.{digits}f}" if size >= 0.001 or size == 0 else f"{value:.2g}"  # noqa: PLR2004


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _table_in(data: dict[str, Any]) -> Table:
    rows = tuple(tuple(Interval(**cell) if isinstance(cell, dict) else cell for cell in row) for row in data["rows"])
    return Table(data["title"], tuple(data["columns"]), rows, data["note"])


def _plot_in(data: dict[str, Any]) -> Plot:
    series = tuple(
        Series(one["label"], tuple(one["values"]), tuple(one["low"]), tuple(one["high"])) for one in data["series"]
    )
    return Plot(**{**data, "series": series, "groups": tuple(data["groups"]), "x": tuple(data["x"])})
