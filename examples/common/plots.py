"""Plots of a timeline: each function draws on axes that the caller lays out."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from examples.common.gpu import Use

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from examples.common.gpu import Span
    from examples.common.timeline import FleetSample, Mark
    from examples.common.trainer_pod import Batch

COLORS = {"prefill": "#d95f02", "decode": "#1b9e77", "colocated": "#7570b3", "mark": "#222222", "fixed": "#bbbbbb"}
USES = {Use.TRAINING: "#d95f02", Use.SERVING: "#7570b3", Use.WAKING: "#cbc9e2", Use.IDLE: "#e8e8e8"}
ROLES = ("prefill", "decode", "colocated")


def svg(figure: Figure) -> str:
    """The figure as an `<svg>` element; ends the figure."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def shape(axes: Axes, samples: Sequence[FleetSample]) -> None:
    """Workers by role over time."""
    times = [sample.at for sample in samples]
    rows = [[getattr(sample, role) for sample in samples] for role in ROLES]
    axes.stackplot(times, rows, labels=ROLES, colors=[COLORS[role] for role in ROLES], step="post")
    ready = [sample.ready for sample in samples]
    axes.plot(times, ready, color="black", linewidth=1, label="ready", drawstyle="steps-post")
    axes.set_ylim(0, max((sum(column) for column in zip(*rows, strict=True)), default=1) + 1.5)
    axes.set(xlabel="seconds", ylabel="workers")
    axes.legend(loc="upper right", ncols=4, fontsize=8)


def reward(axes: Axes, frozen: Sequence[Batch], steps: Sequence[Batch]) -> None:
    """Mean reward of each batch over time; hollow where no update followed."""
    axes.plot([b.at for b in frozen], [b.reward for b in frozen], "o-", mfc="white", color="#888888", label="untrained")
    axes.plot([b.at for b in steps], [b.reward for b in steps], "o-", color=COLORS["decode"], label="trained")
    axes.set(ylabel="mean reward", ylim=(0, 1.05))
    axes.legend(loc="lower right", fontsize=8)


def gpu(axes: Axes, spans: Sequence[Span]) -> None:
    """What the trainer's GPU did."""
    for use, color in USES.items():
        bars = [(span.start, span.end - span.start) for span in spans if span.use is use]
        edge = 1.5 if use is Use.TRAINING else 0.0  # an update of half a second must not vanish among minutes
        axes.broken_barh(bars, (0, 1), color=color, linewidth=edge, label=use, zorder=2 + edge)
    axes.set_yticks([0.5], ["trainer's GPU"])
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=4, fontsize=8, frameon=False)


def marks(axes: Axes, found: Sequence[Mark], *, labels: bool) -> None:
    """Dotted lines where something happened on purpose."""
    top = axes.get_ylim()[1]
    for mark in found:
        axes.axvline(mark.at, color=COLORS["mark"], linewidth=0.8, linestyle=":")
        if labels:
            axes.text(mark.at, top, f" {mark.text}", rotation=90, va="top", ha="left", fontsize=7, color=COLORS["mark"])
