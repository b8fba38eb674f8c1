"""Page and plot of `operator_experiment`."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.figure import Figure

from pearl_simulator.reporting.plots import COLOURS, STYLE, save
from pearl_simulator.reporting.statistics import mean_interval

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from operator_experiment import Achieved, Compared

    from pearl_simulator.reporting.statistics import Interval

ALL_GPUS = 16
COLOCATED = "colocated:8"


def plot(found: Sequence[Compared], first: Achieved, folder: Path) -> None:
    """`operator-phases.png` and `.svg`: the fleet of the first seed over time, and throughput by phase below it."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.0, 6.4), layout="constrained")
        above, below = figure.subplots(2, 1)
        _fleet(above, found, first)
        _rates(below, found)
        save(figure, folder, "operator-phases")


def _fleet(axes, found: Sequence[Compared], first: Achieved) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    end = first.ends[-1]
    times = [*(one[0] / 60.0 for one in first.fleet if one[0] < end), end / 60.0]
    counts = [one[1:] for one in first.fleet if one[0] < end]
    stacks = [[*(one[k] for one in counts), counts[-1][k]] for k in range(3)]
    labels = ("prefill", "decode", "colocated")
    axes.stackplot(times, stacks, labels=labels, colors=COLOURS[:3], step="post", linewidth=0)
    for name, stop, start in zip([one.name for one in found], first.ends, (0.0, *first.ends[:-1]), strict=True):
        axes.axvline(stop / 60.0, color="#444444", linewidth=0.8, linestyle=":")
        axes.text((start + stop) / 120.0, 8.3, name, ha="center", fontsize=9)
    axes.set_ylim(0, 9)
    axes.set_xlim(0, end / 60.0)
    axes.set_ylabel("workers that serve")
    axes.set_xlabel("minutes (first seed)")
    axes.set_title("Fleet that the operator made", loc="left")
    axes.legend(loc="center right", frameon=True)


def _rates(axes, found: Sequence[Compared]) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    kinds = ("operator", "best fixed shape", "colocated", "worst fixed shape")
    for index, kind in enumerate(kinds):
        places = [group + 0.2 * (index - 1.5) for group in range(len(found))]
        values, errors = zip(*(_bar(one, kind) for one in found), strict=True)
        axes.bar(places, values, 0.19, yerr=errors, capsize=2, label=kind, color=COLOURS[index])
    axes.set_xticks(range(len(found)), [one.name for one in found])
    axes.set_ylabel("relative to the best fixed shape")
    axes.set_title("Trajectories per hour after settling", loc="left")
    axes.axhline(1.0, color="#444444", linewidth=1.0, linestyle=":")
    axes.grid(visible=False, axis="x")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=4, frameon=False)


def _bar(one: Compared, kind: str) -> tuple[float, float]:
    best = fmean(one.best)
    if kind == "operator":
        ratio = mean_interval([1.0 - value for value in one.regrets])
        return ratio.value, 0.0 if ratio.high is None else ratio.high - ratio.value
    value = {
        "best fixed shape": best,
        "colocated": one.by_shape[COLOCATED],
        "worst fixed shape": min(one.by_shape.values()),
    }[kind]
    return value / best, 0.0


def _percent(value: Interval) -> str:
    if value.low is None or value.high is None:
        return f"{value.value:+.1%}"
    return f"{value.value:+.1%} ({value.low:+.1%} … {value.high:+.1%})"


def page(found: Sequence[Compared], slow: Sequence[Compared], total: Interval, seeds: Sequence[int]) -> str:
    """The text of docs/results/operator.md."""
    rows = "\n".join(_row(one) for one in [*found, *slow])
    by_seed = "\n".join(_seed_row(one) for one in [*found, *slow])
    shapes = "\n".join(_shape_row(label, [*found, *slow]) for label in found[0].by_shape)
    return f"""# The operator itself in the simulator

The real operator (index, rollout loop, planner, actor, status) runs behind its ports on one virtual clock with the \
simulated data plane: it creates and deletes pods, writes role labels and its status at an in-memory API server, and \
sees gateway statistics and engine series that are made from the simulated workers (`tests/simulation/operated.py`). \
Nothing but its ports is replaced. One job goes through three phases (decode-heavy, prefill-heavy, environment-bound \
agents); a second job has a slow trainer.

8 workers of 2 H100 (4 GPUs reserved, up to 12 elastic), Qwen3-8B, `paper` calibration (decode waits for prefill), 4 \
groups of 16, 128 trajectories in flight, refill with η = 1, 30 s per update (600 s in the last row). The operator \
looks every 5 s, knows only the shipped table (neither the interference nor the hand-off cost of these engines), and \
has the default thresholds. Compared with every fixed shape of all 8 workers, with and without local append: for each \
seed and phase the best of all {len(found[0].by_shape)}, which nobody could know before. {len(seeds)} paired seeds \
({seeds[0]} … {seeds[-1]}). The first batches of a phase, in which the operator settles, are not counted.

**Mean regret over the three phases: {_percent(total)}** (95 % interval over the seeds; below 0 = ahead of the best \
fixed shape).

| phase | trajectories per hour | best fixed | regret (95 %) | its shape | best fixed shape | GPUs held, of {ALL_GPUS} \
| role flips | reasons |
|---|--:|--:|--:|---|---|--:|--:|---|
{rows}

GPUs held are a mean over the counted batches; flips are role labels that changed on living pods in the whole phase, \
settling included. No pod was replaced for a flip: elastic pods are deleted only when they are given back.

![The fleet over time, and throughput by phase](operator-phases.png)

## Regret by seed

| phase | {" | ".join(str(seed) for seed in seeds)} |
|---|{"--:|" * len(seeds)}
{by_seed}

Where it loses: in the decode-heavy phase 1P7D and 2P6D are predicted within a few percent of each other and change \
places as a batch fills and runs out. In the prefill-heavy phase it takes 7P1D, which is a little below 6P2D. In the \
environment-bound phase two workers serve instead of eight: a few percent less for a quarter of the GPUs, more \
than the 1 % that its prediction allows. And the best of {len(found[0].by_shape)} shapes is picked afterwards for each \
seed, so that even the shape that is best on average has a regret.

Found by this experiment on seeds 101 … 105 and mended: a decode worker that had to prefill, because no prefill worker \
had its weights yet, looked like a slow decoder, and one of five fleets went back to colocated for good (mean regret \
+3.6 % (−0.3 … +7.5 %) before, +2.1 % (+0.5 … +3.7 %) after, on those seeds).

## Every shape that was tried

Trajectories per hour, mean over the seeds.

| shape | {" | ".join(one.name for one in [*found, *slow])} |
|---|{"--:|" * (len(found) + len(slow))}
| **operator** | {" | ".join(f"**{fmean(one.rates):,.0f}**" for one in [*found, *slow])} |
{shapes}

## Repeat it

```
PYTHONPATH=tests/simulation:tests/support python -m operator_experiment --seeds {len(seeds)} --jobs 2
pytest tests/simulation/test_operator_in_simulator.py                  # one seed of a smaller fleet
PEARL_SLOW=1 pytest -m slow tests/simulation/test_operator_in_simulator.py   # five seeds
```
"""


def _row(one: Compared) -> str:
    own = ", ".join(one.shapes[:3])
    reasons = ", ".join(one.reasons[:5])
    return (
        f"| {one.name} | {fmean(one.rates):,.0f} | {fmean(one.best):,.0f} | {_percent(mean_interval(one.regrets))} "
        f"| {own} | {one.best_shape} | {one.gpus:.1f} | {one.flips:.1f} | {reasons} |"
    )


def _seed_row(one: Compared) -> str:
    return f"| {one.name} | {' | '.join(f'{value:+.1%}' for value in one.regrets)} |"


def _shape_row(label: str, phases: Sequence[Compared]) -> str:
    return f"| {label} | {' | '.join(f'{one.by_shape[label]:,.0f}' for one in phases)} |"
