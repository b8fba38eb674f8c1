"""`pearl-sim endtoend`: every policy on three spot segments with two models, relative to `roll`, next to the bound."""

from __future__ import annotations

from dataclasses import asdict, replace
from statistics import fmean
from typing import TYPE_CHECKING

from pearl_simulator.experiments.bounds import BOUND, FREE, STRICT, bound_row, bound_rows, free_row
from pearl_simulator.experiments.cells import CALIBRATIONS, SHORT, WINDOW, Cell, cells, scenario
from pearl_simulator.experiments.cells import FULL as FULL_LENGTH
from pearl_simulator.experiments.common import Job, Rows, flat, rows, simulate, simulate_all, throughput
from pearl_simulator.experiments.endtoend_tables import BOUND_WORKLOADS, CLAIRVOYANT, findings, plots, tables
from pearl_simulator.experiments.policies import POLICIES, jobs, named, tuned_file
from pearl_simulator.experiments.published import ROLL_RANGE
from pearl_simulator.reporting.report import Report
from pearl_simulator.types import Training
from pearl_simulator.workloads.presets import presets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pearl_simulator.experiments.common import Row
    from pearl_simulator.experiments.setting import Setting
    from pearl_simulator.reporting.statistics import Interval

FULL_SEEDS, BESIDE_SEEDS, QUICK_SEEDS = 10, 5, 1
"""Of the headline; of what stands beside it (calibration `clean`, automatic window); of `--quick`."""
AUTO, QUICK_AUTO = ("roll", "rlboost+", "pearl"), ("pearl",)
"""Policies that are also run with an automatic window."""
FULL = {
    "paper": tuple(policy.label for policy in POLICIES),
    "clean": ("roll", "roll-large", "prorsa-like", "rlboost+", "verl-lend", "pearl-paper", "static-best", "pearl"),
}
QUICK = {
    "paper": ("roll", "rlboost+", "verl-lend", "pearl-paper", "static-best", "schedule", "pearl"),
    "clean": ("roll", "pearl"),
}
"""Policies that `--quick` runs: those that the summary needs."""
NEAR_BOUND = 0.95
SLOW_UPDATE_SECONDS = 900.0
ABOUT = (
    "32 H100 GPUs, of which 16 train, 4 are reserved for rollout and up to 12 are preemptible and follow three "
    "two-hour segments of a recorded spot trace; two GPUs per worker, batches of 64 trajectories in groups of 16, "
    "32 K tokens, staleness 1. Every policy meets the same engines, trajectories, routing, window and transition "
    "costs; only the decision rule differs. Throughput is trajectories per hour after the warm-up, relative to `roll` "
    "and paired by seed. The headline is the calibration `paper` with a window of 64; `clean` stands beside it."
)


def run(
    setting: Setting,
    simulated: Callable[[Job], Row] = simulate,
    bounded: Callable[[Job], Row] = bound_row,
    freed: Callable[[Job], Row] = free_row,
) -> Report:
    """All cells; `--quick` runs fewer seeds and policies over shorter windows."""
    seeds = setting.seed_list(FULL_SEEDS, QUICK_SEEDS)
    todo = headline_jobs(seeds, quick=setting.quick) + bound_workload_jobs(seeds[:BESIDE_SEEDS], quick=setting.quick)
    found = simulate_all(todo, setting.pool, simulated)
    everything = [*found, *bound_rows(todo, setting.pool, bounded, freed)]
    everything += clairvoyant_rows(rows(everything))
    table = rows(everything)
    return Report(
        experiment="endtoend",
        title="End to end: PEARL against every other policy",
        about=ABOUT,
        summary=summary(table),
        tables=tables(table),
        plots=plots(table),
        findings=findings(table),
        seeds=seeds,
        parameters={
            "quick": setting.quick,
            "tuned": tuned_file(),
            "scenarios": [asdict(scenario(cell, quick=setting.quick)) for cell in cells("paper")],
        },
        runs=flat(everything),
    )


def headline_jobs(seeds: Sequence[int], *, quick: bool) -> list[Job]:
    """Six cells under both calibrations with the fixed window, and some policies with the automatic one."""
    found: list[Job] = []
    beside = seeds[:BESIDE_SEEDS]
    for calibration in CALIBRATIONS:
        policies = named((QUICK if quick else FULL)[calibration])
        for cell in cells(calibration):
            found += jobs(cell, policies, seeds if calibration == "paper" else beside, quick=quick)
    for cell in cells("paper", None):
        found += jobs(cell, named(QUICK_AUTO if quick else AUTO), beside, quick=quick)
    return found


def bound_workload_jobs(seeds: Sequence[int], *, quick: bool) -> list[Job]:
    """Where more GPUs cannot help: an environment-bound workload, and a trainer that is slower than any rollout."""
    cell = Cell("8B", "S1", "clean")
    found = []
    for name in BOUND_WORKLOADS:
        length = SHORT if quick else FULL_LENGTH  # less shows nothing: the queue in front of the trainer must fill
        for job in jobs(cell, named(("rlboost+", "pearl")), seeds, quick=False, length=length):
            slow = Training(SLOW_UPDATE_SECONDS) if name == "trainer-bound" else job.scenario.training
            workload = presets()["environment-bound" if name == "environment-bound" else "swe-pearl-1"]
            changed = replace(job.scenario, name=name, workload=workload, training=slow)
            found.append(replace(job, cell=name, scenario=changed))
    return found


def clairvoyant_rows(found: Rows) -> list[Row]:
    """Per cell the rows of whatever did best there, PEARL included: the search with hindsight offers all of them."""
    made: list[Row] = []
    labels = [policy.label for policy in POLICIES if policy.fleet == "elastic"]
    for cell in (*cells("paper"), *cells("clean")):
        there = [label for label in labels if found.has(cell.key, label)]
        if "static-best" in there:
            _, best = max((found.mean(cell.key, label, throughput), label) for label in there)
            made += [replace(one, label=CLAIRVOYANT, note=best) for one in found.of[cell.key, best]]
    return made


def summary(found: Rows) -> dict[str, float | int | None]:
    """The documented keys; all of calibration `paper`, window 64, where the name says nothing else."""
    fixed, auto = cells("paper"), cells("paper", None)
    over_roll = [found.ratio(cell.key, "pearl", "roll").value for cell in fixed]
    over_rlboost = {cell.name: found.ratio(cell.key, "pearl", "rlboost+").value for cell in fixed}
    over_paper = [found.ratio(cell.key, "pearl", "pearl-paper").value for cell in fixed]
    return {
        "pearl_vs_roll_min": min(over_roll),
        "pearl_vs_roll_max": max(over_roll),
        "pearl_vs_roll_min_auto_window": min(
            found.ratio_across(cell.key, "pearl", with_window(cell).key, "roll").value for cell in auto
        ),
        "pearl_vs_rlboost_min": min(over_rlboost.values()),
        "pearl_vs_rlboost_scarce": min(over_rlboost["8B S2"], over_rlboost["30B-A3B S2"]),
        "pearl_vs_pearl_paper_mean": fmean(over_paper),
        "share_of_bound_min": lowest(found, fixed, BOUND),
        "share_of_strict_bound_min": lowest(found, fixed, STRICT),
        "share_of_free_fleet_min": lowest(found, fixed, FREE),
        "share_of_clairvoyant_min": lowest(found, fixed, CLAIRVOYANT),
        "paper_figures_reached": sum(reached(found, cell) for cell in fixed),
        "gpu_hours_saved_bound_workloads": min(1.0 - saving(found, name).value for name in BOUND_WORKLOADS),
    }


def with_window(cell: Cell) -> Cell:
    """The same cell with the headline's window."""
    return replace(cell, window=WINDOW)


def lowest(found: Rows, where: Sequence[Cell], label: str) -> float | None:
    """Least of the cells' ratios of `pearl` to this; None where that was not run."""
    ratios = [found.ratio(cell.key, "pearl", label).value for cell in where if found.has(cell.key, label)]
    return min(ratios) if ratios else None


def reached(found: Rows, cell: Cell) -> bool:
    """The top of the published range over `roll`, or nearly the bound where that is lower."""
    if found.ratio(cell.key, "pearl", "roll").value >= ROLL_RANGE[cell.model][1]:
        return True
    return found.has(cell.key, BOUND) and found.ratio(cell.key, "pearl", BOUND).value >= NEAR_BOUND


def saving(found: Rows, name: str) -> Interval:
    """GPU-hours of `pearl` over those of `rlboost+`."""
    return found.ratio(name, "pearl", "rlboost+", lambda row: row.gpu_hours)
