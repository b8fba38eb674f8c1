"""Draws the plots of a report as PNG and SVG. Imported only where something is drawn: matplotlib is slow to load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from pearl_simulator.reporting.report import Plot, Report, Series

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C8C8C", "#F0E442", "#000000", "#7A4EA3")
"""Okabe and Ito's palette, told apart with any colour vision, with grey and violet added."""
HATCHES = ("", "//", "..", "\\\\", "xx", "--", "", "oo", "", "++")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "h", "<")
STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 10.0,
    "grid.color": "#DDDDDD",
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "pearl",  # the same data gives the same file
}
PNG_DOTS_PER_INCH = 150


def draw(report: Report, folder: Path) -> list[Path]:
    """`EXPERIMENT-PLOT.png` and `.svg` of every plot; the paths written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for plot in report.plots:
        with mpl.rc_context(STYLE):
            figure = _figure(plot)
            written += save(figure, folder, f"{report.experiment}-{plot.name}")
    return written


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """`NAME.png` and `NAME.svg` without dates and versions; the paths written."""
    written = []
    for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
        path = folder / f"{name}.{kind}"
        figure.savefig(path, dpi=PNG_DOTS_PER_INCH, metadata=metadata)
        written.append(path)
    return written


def _figure(plot: Plot) -> Figure:
    columns = len(plot.groups) * (len(plot.series) + 1)
    figure = Figure(figsize=(min(13.0, max(7.0, 0.22 * columns)), 4.4), layout="constrained")
    axes = figure.subplots()
    if plot.groups:
        _bars(axes, plot)
    else:
        _lines(axes, plot)
    axes.set_title(plot.title, loc="left")
    axes.set_ylabel(plot.y)
    if plot.x_label:
        axes.set_xlabel(plot.x_label)
    if plot.reference is not None:
        axes.axhline(plot.reference, color="#444444", linewidth=1.0, linestyle=":")
    if len(plot.series) > 1:
        figure.legend(loc="outside lower center", ncols=min(5, len(plot.series)), frameon=False)
    return figure


def _bars(axes: Axes, plot: Plot) -> None:
    width = 0.84 / len(plot.series)
    for index, series in enumerate(plot.series):
        places = [group + width * (index - (len(plot.series) - 1) / 2) for group in range(len(plot.groups))]
        known = [(place, i) for i, place in enumerate(places) if series.values[i] is not None]
        xs, ys = [place for place, _ in known], [series.values[i] or 0.0 for _, i in known]
        look: dict[str, Any] = {"color": COLOURS[index % len(COLOURS)], "hatch": HATCHES[index % len(HATCHES)]}
        axes.bar(xs, ys, width, label=series.label, edgecolor="white", linewidth=0.3, **look)
        errors = _errors(series, [i for _, i in known])
        if errors:
            axes.errorbar(xs, ys, errors, fmt="none", ecolor="#222222", elinewidth=0.9, capsize=1.5)
    axes.set_xticks(range(len(plot.groups)), plot.groups)
    if plot.slanted:
        axes.tick_params(axis="x", labelsize=8)
        for label in axes.get_xticklabels():
            label.set(rotation=60, rotation_mode="anchor", horizontalalignment="right")
    axes.grid(visible=False, axis="x")


def _lines(axes: Axes, plot: Plot) -> None:
    for index, series in enumerate(plot.series):
        known = [i for i, value in enumerate(series.values) if value is not None]
        xs, ys = [plot.x[i] for i in known], [series.values[i] or 0.0 for i in known]
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)] if plot.dots else ""
        line = "none" if plot.markers else "-"
        axes.plot(xs, ys, label=series.label, color=colour, marker=marker, markersize=4, linestyle=line)
        errors = _errors(series, known)
        if errors:
            axes.errorbar(xs, ys, errors, fmt="none", ecolor=colour, elinewidth=0.9, capsize=2)
    if plot.log_x:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_formatter(NullFormatter())


def _errors(series: Series, places: Sequence[int]) -> list[list[float]] | None:
    """Lengths below and above the value, 0 where there is no interval."""
    if not series.low or not places:
        return None
    below, above = [], []
    for i in places:
        value, low, high = series.values[i], series.low[i], series.high[i]
        below.append(0.0 if value is None or low is None else max(0.0, value - low))
        above.append(0.0 if value is None or high is None else max(0.0, high - value))
    return [below, above]
