"""The figures of act 1; minutes of the trace."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from matplotlib import pyplot as plt

from examples.common.plots import COLORS, ROLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from examples.demo.emulated.facts import Record, Sample

ZONES = {"reserved": "#4c72b0", "elastic": "#55a868", "borrowed": "#c44e52"}
LABELS = {"reserved": "reserved", "elastic": "spot", "borrowed": "borrowed from the trainer"}
DOES = {"training": "update", "lent": "lent", "idle": "trainer waits, not lent"}
TRAINER = {"training": "#d95f02", "lent": "#c44e52", "idle": "#e8e8e8"}


def fleet(record: Record) -> Figure:
    """GPUs by zone, workers by role and the training GPUs, one above the other."""
    figure, (zones, roles, trainer) = plt.subplots(
        3, 1, figsize=(10, 7.4), sharex=True, height_ratios=(5, 4, 0.7), layout="constrained"
    )
    _zones(zones, record)
    _roles(roles, record)
    _trainer(trainer, record)
    trainer.set_xlabel("minutes of the trace")
    return figure


def _minutes(record: Record) -> list[float]:
    return [one.at / 60 for one in record.samples]


def _zones(axes: Axes, record: Record) -> None:
    times = _minutes(record)
    rows = [[getattr(one, zone) for one in record.samples] for zone in ZONES]
    axes.stackplot(times, rows, labels=LABELS.values(), colors=list(ZONES.values()), step="post", alpha=0.85)
    there = [one.reserved + one.spot for one in record.samples]
    axes.plot(times, there, color="black", linewidth=1, drawstyle="steps-post", label="reserved and spot GPUs there")
    for at in record.notices:
        axes.plot(at / 60, 0, marker="v", color="black", markersize=6, clip_on=False, zorder=5)
    axes.plot([], [], "v", color="black", label="notice: a spot worker's node ends")
    _phases(axes, record)
    axes.set(ylabel="GPUs", title="GPUs that workers hold")
    axes.set_ylim(0, 1.5 * max((sum(column) for column in zip(*rows, strict=True)), default=1))
    axes.legend(loc="upper right", bbox_to_anchor=(1.0, 0.94), ncols=3, fontsize=8)


def _phases(axes: Axes, record: Record) -> None:
    """What the agents do, above."""
    for at, title in record.phases:
        axes.axvline(at / 60, color="black", linewidth=0.8, linestyle=":")
        name = title.partition(":")[0]
        place, offset = (at / 60, 1.0), (3, -11)
        axes.annotate(
            name, place, xycoords=("data", "axes fraction"), xytext=offset, textcoords="offset points", fontsize=7
        )


def _roles(axes: Axes, record: Record) -> None:
    rows = [[getattr(one, role) for one in record.samples] for role in ROLES]
    colors = [COLORS[role] for role in ROLES]
    axes.stackplot(_minutes(record), rows, labels=ROLES, colors=colors, step="post")
    axes.set(ylabel="workers", title="Workers by role; lines are changes of mode")
    axes.set_ylim(0, 1.25 * max((sum(column) for column in zip(*rows, strict=True)), default=1))
    for one in record.switches:
        axes.axvline(one.at / 60, color="black", linewidth=1)
    axes.legend(loc="upper right", ncols=3, fontsize=8)


def _trainer(axes: Axes, record: Record) -> None:
    spans = list(_spans(record))
    for use, color in TRAINER.items():
        bars = [(start / 60, (end - start) / 60) for start, end, what in spans if what == use]
        axes.broken_barh(bars, (0, 1), color=color, label=DOES[use])
    axes.set_yticks([0.5], ["training GPUs"])
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.9), ncols=3, fontsize=8, frameon=False)


def _spans(record: Record) -> Iterator[tuple[float, float, str]]:
    for one, following in pairwise(record.samples):
        yield one.at, following.at, trainer_does(one)


def trainer_does(one: Sample) -> str:
    """A key of `TRAINER`."""
    return "training" if one.training else "lent" if one.lent else "idle"


def batches(record: Record) -> Figure:
    """Predicted time of a batch, and batches done, beside the reserved GPUs alone."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.2), layout="constrained")
    for name, label, color in (
        ("fixed_seconds", "reserved GPUs alone", COLORS["fixed"]),
        ("predicted_seconds", "shape that PEARL chose", COLORS["decode"]),
    ):
        known = [(one.at / 60, getattr(one, name)) for one in record.samples if getattr(one, name) is not None]
        left.plot([at for at, _ in known], [value / 60 for _, value in known], color=color, label=label)
    left.set(xlabel="minutes of the trace", ylabel="minutes", title="Predicted time of a batch", yscale="log")
    left.legend(fontsize=8)
    for found, label, color in (
        (record.fixed_batches, "reserved GPUs alone", COLORS["fixed"]),
        (record.batches, "PEARL", COLORS["decode"]),
    ):
        minutes = [0.0, *(at / 60 for at in found)]
        right.step(minutes, range(len(minutes)), where="post", color=color, label=label)
    right.set(xlabel="minutes of the trace", title="Batches consumed (simulated)")
    right.legend(fontsize=8)
    return figure


def reclaims(record: Record) -> Figure:
    """How long each took, against its deadline."""
    lent = [one for one in record.reclaims if one.was_lent]
    figure, axes = plt.subplots(figsize=(10, 2.2), layout="constrained")
    axes.scatter([one.at / 60 for one in lent], [one.seconds for one in lent], s=16, color=ZONES["borrowed"])
    if lent:
        axes.axhline(lent[-1].deadline_seconds, color="black", linestyle="--", label="deadline")
        axes.legend(fontsize=8)
    axes.set(
        xlabel="minutes of the trace", ylabel="seconds", title="reclaim() until the GPUs were free", ylim=(0, None)
    )
    return figure
