"""Figures, page and plot of the soak."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from statistics import fmean
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure
from soak_checks import (
    GROWTH_MIB,
    LEAST_SIZES,
    MEMORY_BYTES,
    OPTIONAL_PER_HOUR,
    PER_EVENT,
    QUIET_PER_HOUR,
    RECLAIM_SLACK_SECONDS,
    SETTLE_SECONDS,
    SHRINK_SECONDS,
)
from soak_demand import DAY, HOUR

from pearl_operator.report import MAX_STATUS_BYTES
from pearl_simulator.reporting.plots import COLOURS, STYLE, save

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from soak import Scene

Found = dict[str, Any]


def summary(scene: Scene, *, cpu_seconds: float) -> Found:
    """Everything that the page says, as JSON."""
    checks = scene.checks
    return {
        "weeks": round(scene.seconds / (7 * DAY), 2),
        "seed": scene.seed,
        "cpu_seconds": round(cpu_seconds),
        "breaches": [str(one) for one in checks.breaches],
        "targets_optional": checks.optional,
        "targets_forced": dict(sorted(checks.forced.items())),
        "optional_in_an_hour_most": max(
            (count for seen in checks.seen.values() for count in seen.optional_by_hour.values()), default=0
        ),
        "targets_per_quiet_hour": _counts(scene.hours["quiet"]),
        "targets_per_busy_hour": _counts(scene.hours["busy"]),
        "events": sum(sum(seen.events_by_hour.values()) for seen in checks.seen.values()),
        "reclaims": len(checks.reclaims),
        "reclaim_seconds_most": round(max(checks.reclaims, default=0.0), 1),
        "settle_seconds_most": round(max(checks.settles, default=0.0)),
        "faults": dict(sorted(scene.faults.counts.items())),
        "operator_processes": scene.process.starts,
        "use": {name: {key: round(value) for key, value in asdict(use).items()} for name, use in scene.use.items()},
        "sizes": checks.sizes,
        "curve": [[round(value, 2) for value in row] for row in scene.curve],
    }


def _counts(values: Sequence[int]) -> dict[str, int]:
    return {str(value): count for value, count in sorted(Counter(values).items())}


def plot(found: Found, folder: Path) -> None:
    """`soak.png` and `.svg`: by rollout, GPUs that there are, are held, and work; below, memory of the process."""
    names = list(found["use"])
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10.0, 2.4 * (len(names) + 1)), layout="constrained")
        axes = figure.subplots(len(names) + 1, 1)
        days = [row[0] / 24.0 for row in found["curve"]]
        for place, name in enumerate(names):
            _rollout(axes[place], name, days, [row[1 + 3 * place : 4 + 3 * place] for row in found["curve"]])
        _memory(axes[-1], found["sizes"])
        save(figure, folder, "soak")


def _rollout(axes: Any, name: str, days: list[float], rows: list[list[float]]) -> None:
    available, held, working = zip(*rows, strict=True)
    axes.fill_between(days, available, step="post", color="#dddddd", label="reserved + there", linewidth=0)
    axes.plot(days, held, drawstyle="steps-post", color=COLOURS[0], linewidth=0.7, label="held")
    axes.plot(days, working, drawstyle="steps-post", color=COLOURS[1], linewidth=0.7, label="working, lent ones too")
    axes.set_rasterization_zorder(3)  # weeks have so many steps that their curves as paths are megabytes
    axes.set_title(name, loc="left")
    axes.set_ylabel("GPUs")
    axes.set_xlim(0, days[-1])
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper right", ncols=3, frameon=True)


def _memory(axes: Any, sizes: Sequence[dict[str, float]]) -> None:
    axes.plot([one["day"] for one in sizes], [one["rss_mib"] for one in sizes], color=COLOURS[2], marker=".")
    axes.set_title("Resident memory of operator and cluster together", loc="left")
    axes.set_ylabel("MiB")
    axes.set_xlabel("days")
    axes.set_xlim(0, sizes[-1]["day"])
    axes.set_ylim(bottom=0)


def page(found: Found) -> str:
    """The text of docs/results/soak.md."""
    rate = found["weeks"] * 7 * 24 * HOUR / max(found["cpu_seconds"], 1)
    breaches = "\n".join(f"- {one}" for one in found["breaches"]) or "No breach."
    faults = ", ".join(f"{name} {count}" for name, count in found["faults"].items())
    rows = "\n".join(f"| {what} | {was} | {most} |" for what, was, most in _rows(found))
    return f"""# Soak of the operator

The real operator (index, rollout loops, planner, actor, status, loans, resync) runs {7 * found["weeks"]:.1f} \
simulated days behind its ports on one virtual clock (seed {found["seed"]}): {found["cpu_seconds"] / 60:.0f} minutes \
of one core, {rate:,.0f} simulated seconds a second. Three PearlRollouts: `swe` (2 reserved, up to 6 elastic, up to 4 \
borrowed GPUs, `minDwellSeconds` 300), `math` (2 and 4; nothing is asked for at night, and `spec.idle` scales it to \
zero) and `tools` (4 and 4, two GPUs a worker), and now and then a short-lived fourth. Elastic nodes come and go by \
the Bamboo p3, Parcae and Bamboo g4dn traces, over and over, with the notice of GKE, EKS, AKS, Karpenter or \
cluster-autoscaler, an eviction, or none. Two trainers lend two GPUs each between their updates and take them back; \
every third dies while they are lent. What the rollouts work on changes every two to five hours.

On two of three days one thing after the other breaks, on the third none. In all: {faults}; \
{found["operator_processes"]} operator processes.

Of the data plane only what decides is there: statistics of a gateway, engine series, pods that start in 40 to 90 s. \
So that weeks take minutes, the longest pauses between two looks are 60 s at rest and 10 s on the way (at most 2 s in \
production), and loans are followed every 5 s (0.5 s); events wake the operator as ever.

## What was checked

{breaches}

| what | found | at most |
|---|--:|--:|
{rows}

At the end all rollouts and trainers are deleted, and neither objects at the API server nor entries of index, loans, \
ring and loan memories nor Prometheus series of theirs may be left; the same holds for each short-lived rollout.

An event is what forces changes or makes them likely: a node with a pod that is announced to end or ends, room for a \
pod, a loan, a reclaim, an edit, an engine that dies, other turns, the end of an outage. A target is optional where no \
event, no missed deadline and none of the reasons SpotNotice, ReclaimRequested, BudgetLimit, Idle and Suspended is \
behind it.

![GPUs by rollout over time, and memory](soak.png)

## GPU-hours

| rollout | elastic there | working | starting or waiting | free | reserved | working | waiting | borrowed, working |
|---|--:|--:|--:|--:|--:|--:|--:|--:|
{_uses(found)}

Free elastic GPUs are those that the planner did not want: a batch that waits for its environments, or for the \
trainer, is served by fewer workers. Reserved GPUs wait while nothing is in flight: for weights, and at night, when \
`math` has no workers at all.

## Mended on the way

- The Prometheus series of a rollout whose loans ended after it stayed in that operator process for good: the first \
soak of a day ended with them.
- A wall clock that is set back made dwells, coalescing times and deadlines of targets as much longer: nothing \
optional changed, and no hopeless target was dropped, until the clock was where it had been. Seen in the code when the \
fault was written; no check of the soak tells a fleet that rests from one that waits.

## Repeat it

```
make soak JSON=soak.json ARGS='--weeks {found["weeks"]:g} --seed {found["seed"]} --page docs/results'
pytest tests/simulation/test_soak.py   # a day, and what the checks say when something is broken on purpose
```
"""


def _rows(found: Found) -> list[tuple[str, str, str]]:
    """What, what was found, the bound."""
    sizes, forced = found["sizes"], found["targets_forced"]
    early, late = sizes[min(6, len(sizes) // 2)], sizes[-1]
    quiet, busy = found["targets_per_quiet_hour"], found["targets_per_busy_hour"]
    most = {key: f"{max(one[key] for one in sizes):,.0f} bytes" for key in ("status_bytes", "memory_bytes")}

    def grown(key: str, unit: str = "") -> str:
        return f"{early.get(key, 0.0):,.0f} and {late.get(key, 0.0):,.0f}{unit}"

    growing = [
        (f"resident memory on day {early['day']:.0f} and at the end", grown("rss_mib", " MiB"), f"+ {GROWTH_MIB:g}"),
        ("tasks of the event loop", grown("tasks"), "twice + 50"),
        ("entries of the index", grown("index"), "twice + 50"),
        ("objects at the API server", grown("api_objects"), "twice + 50"),
        ("Prometheus series", grown("series"), "twice + 50"),
    ]
    if len(sizes) < LEAST_SIZES:
        growing = [("growth of memory and tables", "not judged: the run is too short", "")]
    return [
        ("targets", f"{found['targets_optional'] + sum(forced.values()):,}", ""),
        ("forced ones, by cause", ", ".join(f"{name} {count:,}" for name, count in forced.items()), ""),
        ("optional ones", f"{found['targets_optional']:,}", ""),
        ("optional ones within `minDwellSeconds` of the change before", _about(found, "minDwell"), "0"),
        ("optional ones in one hour", f"{found['optional_in_an_hour_most']}", f"{OPTIONAL_PER_HOUR}"),
        (f"targets in one of {_sum(quiet):,} hours without events", f"{_most(quiet)}", f"{QUIET_PER_HOUR}"),
        (
            f"targets in one of {_sum(busy):,} other hours ({found['events']:,} events)",
            f"{_most(busy)}, {_mean(busy):.1f} on average",
            f"{QUIET_PER_HOUR} + {PER_EVENT} per event",
        ),
        ("targets with one stage only", _about(found, "one stage"), "0"),
        (f"pods above the budget, or {SHRINK_SECONDS:.0f} s above a smaller one", _about(found, "budget"), "0"),
        ("roles that changed without a greater epoch", _about(found, "role epochs"), "0"),
        (
            f"longest of {found['reclaims']:,} reclaims until neither target nor record held the GPUs",
            f"{found['reclaim_seconds_most']:g} s, outages included",
            f"{10 + RECLAIM_SLACK_SECONDS:g} s without outage",
        ),
        (
            "longest time until a fleet had settled after the last event and outage",
            f"{found['settle_seconds_most']} s",
            f"{SETTLE_SECONDS:.0f} s",
        ),
        ("largest status", most["status_bytes"], f"{MAX_STATUS_BYTES:,}"),
        ("largest `status.memory`", most["memory_bytes"], f"{MEMORY_BYTES:,}"),
        *growing,
    ]


def _about(found: Found, word: str) -> str:
    return str(sum(word in one for one in found["breaches"]))


def _most(counts: dict[str, int]) -> int:
    return max(map(int, counts), default=0)


def _sum(counts: dict[str, int]) -> int:
    return sum(counts.values())


def _mean(counts: dict[str, int]) -> float:
    return fmean(int(value) for value, count in counts.items() for _ in range(count)) if counts else 0.0


def _uses(found: Found) -> str:
    rows = []
    for name, use in found["use"].items():
        hours = {key: value / HOUR for key, value in use.items()}
        there, reserved = max(hours["elastic_available"], 1e-9), max(hours["reserved"], 1e-9)
        rows.append(
            f"| {name} | {hours['elastic_available']:,.0f} | {_share(hours['elastic_working'], there)} "
            f"| {_share(hours['elastic_starting'], there)} | {_share(hours['elastic_free'], there)} "
            f"| {hours['reserved']:,.0f} | {_share(hours['reserved_working'], reserved)} "
            f"| {_share(reserved - hours['reserved_working'], reserved)} | {hours['borrowed_working']:,.0f} |"
        )
    return "\n".join(rows)


def _share(value: float, whole: float) -> str:
    return f"{value:,.0f} ({value / whole:.0%})"
