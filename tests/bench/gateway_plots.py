"""The plots of the gateway bench."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.figure import Figure

from pearl_simulator.reporting.plots import COLOURS, STYLE, save

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gateway_cells import Cell


def plot_latency(cells: Sequence[Cell], folder: Path) -> None:
    """How long turns take, directly and through each server."""
    if not cells:
        return
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 3.4), layout="constrained")
        for axes, cell in zip(figure.subplots(1, len(cells), squeeze=False, sharey=True)[0], cells, strict=True):
            for colour, (server, runs) in zip(COLOURS, cell.runs.items(), strict=False):
                ordered = sorted(1e3 * one for run in runs for one in run.turn_seconds)
                share = [(number + 1) / len(ordered) for number in range(len(ordered))]
                axes.step(ordered, share, color=colour, label=server)
            axes.set(xscale="log", xlabel="turn, ms", title=cell.shape.name)
        axes.legend(loc="lower right", frameon=False)
        figure.axes[0].set_ylabel("share of all turns")
        save(figure, folder, "gateway-latency")


def plot_throughput(ratios: Sequence[tuple[str, float | None]], folder: Path) -> None:
    """The gateway's tokens per second over the router's, by cell."""
    known = [(name, one) for name, one in ratios if one is not None]
    if not known:
        return
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 0.6 + 0.4 * len(known)), layout="constrained")
        axes = figure.subplots()
        axes.barh([name for name, _ in reversed(known)], [one for _, one in reversed(known)], color=COLOURS[0])
        axes.axvline(1.0, color="black", linewidth=1)
        axes.axvline(0.9, color="black", linewidth=1, linestyle=":")
        axes.set(xlabel="tokens per second, gateway over vllm-router (dotted: 0.9)")
        save(figure, folder, "gateway-throughput")
