"""The report's figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib import pyplot as plt

from examples.common import gpu, plots
from examples.common.plots import COLORS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

    from examples.common.timeline import FleetSample
    from examples.demo.facts import Record


def shape(record: Record, rollout: str) -> Figure:
    """Workers by role over time, with what happened."""
    figure, axes = plt.subplots(figsize=(10, 3))
    plots.shape(axes, record.of(rollout))
    axes.set_title(f"Shape of `{rollout}`")
    plots.marks(axes, record.marks, labels=True)
    return figure


def throughput(record: Record, rollout: str) -> Figure:
    """Generated and prefilled tokens per second over time."""
    rows = [sample for sample in record.of(rollout) if sample.generated_tokens is not None]
    figure, axes = plt.subplots(figsize=(10, 2.6))
    for name, color in (("generated_tokens", COLORS["decode"]), ("prefilled_tokens", COLORS["prefill"])):
        times, rates = _rates(rows, name)
        axes.plot(times, rates, color=color, label=name.replace("_", " "))
    axes.set(xlabel="seconds", ylabel="tokens per second", title=f"What the gateway of `{rollout}` measured")
    axes.set_ylim(bottom=0)
    plots.marks(axes, record.marks, labels=False)
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
    """Reward per batch, and what the trainer's GPU did."""
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(10, 4.2), sharex=True, height_ratios=(4, 1))
    plots.reward(top, record.frozen, record.steps)
    top.set_title("The trainer's policy, and its GPU between updates")
    plots.gpu(bottom, gpu.spans(record.loans, record.steps))
    bottom.set_xlabel("seconds")
    return figure


def reclaims(record: Record) -> Figure:
    """How long each reclaim took, against its deadline."""
    rows = [(index, step) for index, step in enumerate(record.steps) if step.was_lent]
    figure, axes = plt.subplots(figsize=(6, 2.6))
    axes.scatter([index for index, _ in rows], [s.reclaim_seconds for _, s in rows], s=14, color=COLORS["colocated"])
    deadline = next((step.deadline_seconds for _, step in rows if step.deadline_seconds is not None), None)
    if deadline is not None:
        axes.axhline(deadline, color=COLORS["prefill"], linestyle="--", label="deadline")
        axes.legend(fontsize=8)
    axes.set(xlabel="step", ylabel="seconds", title="reclaim() until the GPU was free", ylim=(0, None))
    return figure
