"""`pearl-sim whatif FILE`: what PEARL would do with a user's workload and GPUs, and whether it is worth it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from pearl_simulator.bounds.bound import bound
from pearl_simulator.errors import InputError
from pearl_simulator.experiments.common import Job, Rows, flat, rows, simulate
from pearl_simulator.experiments.variants import rule_of
from pearl_simulator.reporting.report import Plot, Report, Series, Table
from pearl_simulator.reporting.statistics import Interval, ratio_interval
from pearl_simulator.run import run as run_scenario
from pearl_simulator.workloads.workload_file import load

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pearl_simulator.experiments.common import Row
    from pearl_simulator.experiments.setting import Setting
    from pearl_simulator.types import Result, Scenario, ShapeSpan

FULL_SEEDS, QUICK_SEEDS = 6, 2
QUICK_SECONDS = 3600.0
COLOCATED = "colocated"
DOUBTS = {"engine 20 % slower": 1.2, "engine 20 % faster": 0.8}
MOST_SPANS = 24
SURE_SHARE = 0.03
ABOUT = (
    "Your workload on your GPUs, simulated under PEARL and under the same fleet colocated (all elastic GPUs, nothing "
    "borrowed). Gains are paired by seed with 95 % intervals; how sure they are is also tried with engines that are "
    "20 % faster and slower than the planner believes."
)


@dataclass(frozen=True, slots=True)
class Case:
    """One way to run it."""

    label: str
    rule: str
    scenario: Scenario


def cases(base: Scenario) -> tuple[Case, ...]:
    """PEARL, what it is compared with, and what is doubted."""
    found = [
        Case(COLOCATED, "rlboost+", base),
        Case("pearl", "pearl", base),
        Case("pearl, fewer GPUs first", "pearl", replace(base, objective="Cost")),
    ]
    if base.fleet.borrowed_max_gpus:
        alone = replace(base, fleet=replace(base.fleet, borrowed_max_gpus=0))
        found.append(Case("pearl without borrowing", "pearl", alone))
    for name, factor in DOUBTS.items():
        table = base.calibration.table
        doubted = replace(base.calibration, table=table.scaled(factor), planner_table=table)
        other = replace(base, calibration=doubted)
        found += [Case(f"{COLOCATED}, {name}", "rlboost+", other), Case(f"pearl, {name}", "pearl", other)]
    return tuple(found)


def run(setting: Setting, simulated: Callable[[Job], Row] = simulate) -> Report:
    """All cases over the seeds, and the shapes of the first seed.

    Raises:
        InputError: the file cannot be used.
    """
    if setting.file is None:
        raise InputError("FILE is missing; give a workload file, for example examples/workloads/swe.yaml")
    base = _length(load(setting.file), quick=setting.quick)
    seeds = setting.seed_list(FULL_SEEDS, QUICK_SEEDS)
    tried = cases(base)
    todo = [Job(base.name, case.label, case.rule, (), case.scenario, seed) for case in tried for seed in seeds]
    raw = setting.pool.map(simulated, todo, "cases")
    found = rows(raw)
    spans = timeline(base, seeds[0])
    gain = found.ratio(base.name, "pearl", COLOCATED)
    share = bound_share(found, base, seeds)
    return Report(
        experiment="whatif",
        title=f"What if: {base.name}",
        about=ABOUT,
        summary=summary(found, base, gain, share),
        tables=(_cases_table(found, base, tried), _shapes_table(spans, base.horizon_seconds)),
        plots=(_shape_plot(spans, base.horizon_seconds),),
        findings=findings(found, base, gain, share),
        seeds=seeds,
        parameters={"scenario": asdict(base)},
        runs=flat(raw),
    )


def _length(base: Scenario, *, quick: bool) -> Scenario:
    """`--quick` looks at the first part only."""
    if not quick or base.horizon_seconds <= QUICK_SECONDS:
        return base
    share = QUICK_SECONDS / base.horizon_seconds
    return replace(base, horizon_seconds=QUICK_SECONDS, warmup_seconds=base.warmup_seconds * share)


def timeline(scenario: Scenario, seed: int) -> Sequence[ShapeSpan]:
    """The shapes that PEARL gave the fleet."""
    result: Result = run_scenario(scenario, rule_of("pearl", {}), seed, rule_name="pearl")
    return result.shapes


def bound_share(found: Rows, base: Scenario, seeds: Sequence[int]) -> Interval:
    """PEARL's trajectories per hour over the bound."""
    limits = [bound(base, seed).trajectories_per_hour for seed in seeds]
    return ratio_interval(found.values(base.name, "pearl", lambda row: row.trajectories_per_hour), limits)


def summary(found: Rows, base: Scenario, gain: Interval, share: Interval) -> dict[str, float | int | None]:
    """Flat numbers."""
    borrowing = _borrowing(found, base)
    return {
        "gain_over_colocated": gain.value,
        "gain_low": gain.low,
        "gain_high": gain.high,
        "share_of_bound": share.value,
        "gain_of_borrowing": None if borrowing is None else borrowing.value,
        "gpu_hours": found.mean(base.name, "pearl", lambda row: row.gpu_hours),
        "gpu_hours_colocated": found.mean(base.name, COLOCATED, lambda row: row.gpu_hours),
        "time_disaggregated": found.mean(base.name, "pearl", lambda row: row.disaggregated_share),
    }


def findings(found: Rows, base: Scenario, gain: Interval, share: Interval) -> tuple[str, ...]:
    """In words: is it worth it, does borrowing pay, how sure."""
    held = found.ratio(base.name, "pearl", COLOCATED, lambda row: row.gpu_hours)
    said = [_verdict(gain), f"It holds {held.value:.2f} times the GPU-hours of rollout workers."]
    apart = found.mean(base.name, "pearl", lambda row: row.disaggregated_share)
    said.append(f"PEARL ran disaggregated {apart:.0%} of the time and reached {share.value:.0%} of the bound.")
    borrowing = _borrowing(found, base)
    if borrowing is not None:
        hours = found.mean(base.name, "pearl", lambda row: row.borrowed_gpu_hours)
        pays = "pays" if borrowing.above_one else "does not pay for certain"
        said.append(f"Borrowing {pays}: {_change(borrowing)} with {hours:.1f} borrowed GPU-hours.")
    doubts = [found.ratio(base.name, f"pearl, {name}", f"{COLOCATED}, {name}") for name in DOUBTS]
    low, high = min(one.value for one in (*doubts, gain)), max(one.value for one in (*doubts, gain))
    said.append(f"With engines 20 % off the tables the gain is {low - 1:+.0%} to {high - 1:+.0%}.")
    return tuple(said)


def _verdict(gain: Interval) -> str:
    if gain.above_one and gain.value - 1.0 >= SURE_SHARE:
        return f"PEARL is worth it: {_change(gain)} over colocated."
    if gain.below_one:
        return f"Stay colocated: PEARL changes throughput by {_change(gain)}."
    return f"PEARL makes no clear difference: {_change(gain)} over colocated."


def _change(one: Interval) -> str:
    bounds = "" if one.low is None or one.high is None else f" [{one.low - 1:+.1%}, {one.high - 1:+.1%}]"
    return f"{one.value - 1:+.1%}{bounds}"


def _borrowing(found: Rows, base: Scenario) -> Interval | None:
    without = "pearl without borrowing"
    return found.ratio(base.name, "pearl", without) if found.has(base.name, without) else None


def _cases_table(found: Rows, base: Scenario, tried: Sequence[Case]) -> Table:
    made = tuple(
        (
            case.label,
            found.ratio(base.name, case.label, _compared_with(case.label)),
            found.mean(base.name, case.label, lambda row: row.trajectories_per_hour),
            found.mean(base.name, case.label, lambda row: row.gpu_hours),
            found.mean(base.name, case.label, lambda row: row.borrowed_gpu_hours),
            found.mean(base.name, case.label, lambda row: row.disaggregated_share),
        )
        for case in tried
    )
    columns = ("case", "over colocated", "trajectories/h", "GPU-hours", "of them borrowed", "time apart")
    return Table("Throughput and GPUs", columns, made)


def _compared_with(label: str) -> str:
    return next((f"{COLOCATED}, {name}" for name in DOUBTS if label.endswith(name)), COLOCATED)


def _shapes_table(spans: Sequence[ShapeSpan], end: float) -> Table:
    """The longest ones, in order of time."""
    ends = [*(span.start_seconds for span in spans[1:]), end]
    pairs = [(span, max(0.0, until - span.start_seconds)) for span, until in zip(spans, ends, strict=False)]
    longest = sorted(pairs, key=lambda pair: -pair[1])[:MOST_SPANS]
    made = tuple(
        (f"{span.start_seconds / 60:.1f}", f"{length / 60:.1f}", str(span.shape), _gpus(span))
        for span, length in sorted(longest, key=lambda pair: pair[0].start_seconds)
    )
    note = f"The {len(longest)} longest of {len(spans)} shapes of the first seed."
    return Table("Best shape over time", ("from, min", "for, min", "shape", "GPUs"), made, note)


def _gpus(span: ShapeSpan) -> str:
    return ", ".join(f"{count} {zone.value}" for zone, count in span.gpus if count)


def _shape_plot(spans: Sequence[ShapeSpan], end: float) -> Plot:
    """Steps: every change is two points."""
    ends = [*(span.start_seconds for span in spans[1:]), end]
    xs = tuple(moment / 60 for span, until in zip(spans, ends, strict=False) for moment in (span.start_seconds, until))

    def steps(label: str, of: Callable[[ShapeSpan], int]) -> Series:
        return Series(label, tuple(float(of(span)) for span in spans for _ in range(2)))

    series = (
        steps("colocated", lambda span: span.shape.colocated),
        steps("prefill", lambda span: span.shape.prefill),
        steps("decode", lambda span: span.shape.decode),
    )
    return Plot("shapes", "Shape over time", "workers", series, x=xs, x_label="time (min)", dots=False)
