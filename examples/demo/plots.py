"""The report's plots: matplotlib figures as inline SVG."""

from __future__ import annotations

import io
from itertools import pairwise
from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from examples.demo.facts import FleetSample, Record

COLORS = {"prefill": "#d95f02", "decode": "#1b9e77", "colocated": "#7570b3", "mark": "#222222", "fixed": "#bbbbbb"}


def svg(figure: Figure) -> str:
    """The figure as an `<svg>` element."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight")
    plt.close(figure)
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _marks(axes: Axes, record: Record, *, labels: bool) -> None:
    top = axes.get_ylim()[1]
    for mark in record.marks:
        axes.axvline(mark.at, color=COLORS["mark"], linewidth=0.8, linestyle=":")
        if labels:
            axes.text(mark.at, top, f" {mark.text}", rotation=90, va="top", ha="left", fontsize=7, color=COLORS["mark"])


def shape(record: Record, rollout: str) -> Figure:
    """Workers by role over time, with what happened."""
    rows = [sample for sample in record.samples if sample.rollout == rollout]
    figure, axes = plt.subplots(figsize=(10, 3))
    times = [row.at for row in rows]
    roles = ("prefill", "decode", "colocated")
    axes.stackplot(
        times,
        [[getattr(row, role) for row in rows] for role in roles],
        labels=roles,
        colors=[COLORS[role] for role in roles],
        step="post",
    )
    axes.plot(times, [row.ready for row in rows], color="black", linewidth=1, label="ready", drawstyle="steps-post")
    axes.set_ylim(0, max((row.prefill + row.decode + row.colocated for row in rows), default=1) + 1.5)
    axes.set(xlabel="seconds", ylabel="workers", title=f"Shape of `{rollout}`")
    _marks(axes, record, labels=True)
    axes.legend(loc="upper right", ncols=4, fontsize=8)
    return figure


def throughput(record: Record, rollout: str) -> Figure:
    """Generated and prefilled tokens per second over time."""
    rows = [sample for sample in record.samples if sample.rollout == rollout and sample.generated_tokens is not None]
    figure, axes = plt.subplots(figsize=(10, 2.6))
    for name, color in (("generated_tokens", COLORS["decode"]), ("prefilled_tokens", COLORS["prefill"])):
        times, rates = _rates(rows, name)
        axes.plot(times, rates, color=color, label=name.replace("_", " "))
    axes.set(xlabel="seconds", ylabel="tokens per second", title=f"What the gateway of `{rollout}` measured")
    axes.set_ylim(bottom=0)
    _marks(axes, record, labels=False)
    axes.legend(loc="upper right", fontsize=8)
    return figure


def _rates(rows: Sequence[FleetSample], name: str, window_seconds: float = 5.0) -> tuple[list[float], list[float]]:
    times: list[float] = []
    rates: list[float] = []
    start = 0
    for index, row in enumerate(rows):
        while row.at - rows[start].at > window_seconds and start < index - 1:
            start += 1
        elapsed = row.at - rows[start].at
        if elapsed > 0:
            times.append(row.at)
            rates.append(max(0, getattr(row, name) - getattr(rows[start], name)) / elapsed)
    return times, rates


def comparison(record: Record) -> Figure:
    """Duration of the same work on the fleet that PEARL shaped and on a fixed colocated one."""
    phases = list(dict.fromkeys(load.phase for load in record.loads))
    figure, axes = plt.subplots(figsize=(6, 2.8))
    for offset, (fleet, color) in enumerate((("pearl", COLORS["decode"]), ("fixed colocated", COLORS["fixed"]))):
        seconds = [
            next((load.seconds for load in record.loads if load.phase == phase and load.fleet == fleet), 0.0)
            for phase in phases
        ]
        bars = axes.bar([i + 0.4 * offset for i in range(len(phases))], seconds, 0.38, label=fleet, color=color)
        axes.bar_label(bars, fmt="%.1f s", fontsize=8)
    axes.set_xticks([i + 0.2 for i in range(len(phases))], phases)
    axes.set(ylabel="seconds (less is better)", title="The same sessions")
    axes.margins(y=0.2)
    axes.legend(fontsize=8)
    return figure


def training(record: Record) -> Figure:
    """Reward per step, and what the trainer's GPU did."""
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(10, 4.2), sharex=True, height_ratios=(3, 1))
    top.plot([s.at for s in record.steps], [s.reward for s in record.steps], "o-", color=COLORS["decode"], markersize=3)
    top.set(ylabel="mean reward", title="The trainer's policy, and its GPU between updates")
    for before, step in pairwise(record.steps):
        train_start = step.at - step.train_seconds
        bottom.barh(0, step.train_seconds, left=train_start, color=COLORS["prefill"])
        bottom.barh(0, min(step.lent_seconds, train_start - before.at), left=before.at, color=COLORS["colocated"])
    bottom.set_yticks([0], ["GPU"])
    bottom.set(xlabel="seconds (orange: training, violet: lent)")
    return figure


def reclaims(record: Record) -> Figure:
    """How long each reclaim took, against its deadline."""
    rows = [step for step in record.steps if step.reclaim_seconds is not None]
    figure, axes = plt.subplots(figsize=(6, 2.6))
    axes.scatter([s.step for s in rows], [s.reclaim_seconds or 0.0 for s in rows], s=14, color=COLORS["colocated"])
    if rows:
        axes.axhline(rows[0].deadline_seconds, color=COLORS["prefill"], linestyle="--", label="deadline")
        axes.legend(fontsize=8)
    axes.set(xlabel="step", ylabel="seconds", title="reclaim() until the GPU was free", ylim=(0, None))
    return figure
