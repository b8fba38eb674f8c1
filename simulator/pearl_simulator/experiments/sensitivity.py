"""`pearl-sim sensitivity`: PEARL over rlboost+ while one thing at a time is changed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pearl_simulator.calibration import calibrations
from pearl_simulator.experiments.cells import CALIBRATIONS, MODELS, SHORT, Cell, scenario, workload
from pearl_simulator.experiments.common import Job, Row, flat, rows, simulate
from pearl_simulator.experiments.policies import tuned
from pearl_simulator.reporting.report import Plot, Report, Series, Table
from pearl_simulator.types import CapacityChange, Feeding
from pearl_simulator.workloads.capacity import load_shipped, window
from pearl_simulator.workloads.distributions import LogNormal, Mixture
from pearl_simulator.workloads.presets import presets

if TYPE_CHECKING:
    from collections.abc import Callable

    from pearl_simulator.experiments.common import Rows
    from pearl_simulator.experiments.setting import Setting
    from pearl_simulator.types import Scenario
    from pearl_simulator.workloads.drawn import DrawnWorkload

FULL_SEEDS, QUICK_SEEDS = 3, 1
LABELS = ("rlboost+", "pearl-paper", "pearl")
GPUS = 8
ABOUT = (
    "Qwen3-8B on 16 training and 8 reserved rollout GPUs (for churn: the spot traces), one thing changed at a time. "
    "Ratios are paired by seed. “time apart” is the share of time that PEARL ran disaggregated: where it is 0, PD did "
    "not help. PEARL's fixed window is the batch; everything else is as in the end-to-end comparison."
)


@dataclass(frozen=True, slots=True)
class Point:
    """One changed scenario."""

    lever: str
    value: str
    change: Callable[[Scenario, DrawnWorkload], Scenario]

    @property
    def cell(self) -> str:
        """For rows."""
        return f"{self.lever}: {self.value}"


def points() -> tuple[Point, ...]:
    """All of them; the unchanged one first."""
    return (
        Point("base", "unchanged", lambda base, _: base),
        *(Point("batch", str(size), _batch(size)) for size in (32, 96, 128)),
        *(Point("longest context", f"{size // 1024}K", _context(size)) for size in (8192, 16384)),
        *(Point("environment", f"x {factor:g}", _environment(factor)) for factor in (0.0, 4.0, 16.0)),
        *(Point("history missed by the cache", f"{share:.0%}", _cache(share)) for share in (0.0, 0.3, 1.0)),
        *(Point("flip cost", f"{seconds:g} s", _flip(seconds)) for seconds in (10.0, 30.0, 60.0)),
        *(Point("hardware", name, _hardware(name)) for name in ("A100", "H200")),
        Point("feeding", "barrier", _barrier),
        *(Point("churn", name, _churn(name)) for name in ("bamboo_g4dn", "bamboo_p3", "parcae_hl", "parcae_ll")),
        Point("churn", "all elastic GPUs on and off every 5 min", _square),
        *(Point("workload", name, _workload(name)) for name in WORKLOADS),
    )


WORKLOADS = (
    "swe-cached",
    "swe-pearl-1",
    "swe-pearl-2",
    "search",
    "terminal",
    "math-tool",
    "decode-heavy",
    "prefill-heavy",
)


def _batch(size: int) -> Callable[[Scenario, DrawnWorkload], Scenario]:
    def change(base: Scenario, load: DrawnWorkload) -> Scenario:
        groups = size // load.group_size
        return replace(base, workload=replace(load, groups=groups), router=replace(base.router, window=size))

    return change


def _context(size: int) -> Callable[[Scenario, DrawnWorkload], Scenario]:
    return lambda base, load: replace(base, workload=replace(load, context_tokens=size))


def _environment(factor: float) -> Callable[[Scenario, DrawnWorkload], Scenario]:
    def scaled(part: LogNormal) -> LogNormal:
        return LogNormal(part.median * factor, part.sigma, part.cap)

    def change(base: Scenario, load: DrawnWorkload) -> Scenario:
        tool = load.environment
        return replace(
            base, workload=replace(load, environment=Mixture(scaled(tool.usual), scaled(tool.rare), tool.rare_share))
        )

    return change


def _cache(share: float) -> Callable[[Scenario, DrawnWorkload], Scenario]:
    return lambda base, load: replace(base, workload=replace(load, missed_share=share))


def _flip(seconds: float) -> Callable[[Scenario, DrawnWorkload], Scenario]:
    return lambda base, _: replace(base, costs=replace(base.costs, flip_seconds=seconds))


def _hardware(name: str) -> Callable[[Scenario, DrawnWorkload], Scenario]:
    def change(base: Scenario, _: DrawnWorkload) -> Scenario:
        return replace(base, calibration=replace(base.calibration, table=calibrations.clean(MODELS["8B"], name).table))

    return change


def _barrier(base: Scenario, _: DrawnWorkload) -> Scenario:
    return replace(base, training=replace(base.training, feeding=Feeding.BARRIER))


def _churn(trace: str) -> Callable[[Scenario, DrawnWorkload], Scenario]:
    def change(base: Scenario, _: DrawnWorkload) -> Scenario:
        changes = window(load_shipped(trace), CHURN_OFFSET_SECONDS, base.horizon_seconds)
        return replace(base, fleet=replace(base.fleet, reserved_gpus=4, elastic_max_gpus=12), capacity=changes)

    return change


CHURN_OFFSET_SECONDS = 7200.0
SQUARE_SECONDS = 300.0


def _square(base: Scenario, _: DrawnWorkload) -> Scenario:
    count = int(base.horizon_seconds / SQUARE_SECONDS) + 1
    changes = tuple(CapacityChange(SQUARE_SECONDS * k, 0 if k % 2 else 12) for k in range(count))
    return replace(base, fleet=replace(base.fleet, reserved_gpus=4, elastic_max_gpus=12), capacity=changes)


def _workload(name: str) -> Callable[[Scenario, DrawnWorkload], Scenario]:
    return lambda base, _: replace(base, workload=presets()[name])


def run(setting: Setting, simulated: Callable[[Job], Row] = simulate) -> Report:
    """Every point under both calibrations."""
    seeds = setting.seed_list(FULL_SEEDS, QUICK_SEEDS)
    todo = [
        Job(f"{point.cell} {calibration}", label, label, tuned(label, calibration), changed, seed)
        for calibration in CALIBRATIONS
        for point in points()
        for changed in (_changed(point, calibration, quick=setting.quick),)
        for label in LABELS
        for seed in seeds
    ]
    found = setting.pool.map(simulated, todo, "points")
    table = rows(found)
    return Report(
        experiment="sensitivity",
        title="Where PEARL helps, and where not",
        about=ABOUT,
        summary={f"pearl_vs_rlboost_min_{c}": _least(table, c) for c in CALIBRATIONS},
        tables=tuple(_table(table, calibration) for calibration in CALIBRATIONS),
        plots=(_plot(table),),
        findings=_findings(table),
        seeds=seeds,
        parameters={"reserved_gpus": GPUS, "quick": setting.quick, "seconds": SHORT},
        runs=flat(found),
    )


def _changed(point: Point, calibration: str, *, quick: bool) -> Scenario:
    base = scenario(Cell("8B", "S1", calibration), quick=quick, length=SHORT)
    standing = replace(base.fleet, reserved_gpus=GPUS, elastic_max_gpus=0)
    changed = point.change(replace(base, fleet=standing, capacity=()), workload("8B"))
    return replace(changed, name=f"{point.cell} {calibration}")


def _table(found: Rows, calibration: str) -> Table:
    made = []
    for point in points():
        cell = f"{point.cell} {calibration}"
        made.append(
            (
                point.lever,
                point.value,
                found.ratio(cell, "pearl", "rlboost+"),
                found.ratio(cell, "pearl", "pearl-paper"),
                found.ratio(cell, "pearl", "rlboost+", lambda row: row.gpu_hours),
                found.mean(cell, "pearl", lambda row: row.disaggregated_share),
                found.mean(cell, "pearl", lambda row: row.trajectories_per_hour),
            )
        )
    columns = (
        "lever",
        "value",
        "pearl / rlboost+",
        "pearl / pearl-paper",
        "GPU-hours ratio",
        "time apart",
        "trajectories/h",
    )
    return Table(f"Calibration {calibration} (95 % interval)", columns, tuple(made))


def _plot(found: Rows) -> Plot:
    series = []
    for calibration in CALIBRATIONS:
        ratios = [found.ratio(f"{point.cell} {calibration}", "pearl", "rlboost+") for point in points()]
        values, low, high = (tuple(getattr(one, part) for one in ratios) for part in ("value", "low", "high"))
        series.append(Series(calibration, values, low, high))
    groups = tuple(point.cell for point in points())
    return Plot(
        "levers",
        "PEARL over rlboost+ while one thing is changed",
        "throughput / rlboost+",
        tuple(series),
        groups,
        reference=1.0,
        slanted=True,
    )


def _findings(found: Rows) -> tuple[str, ...]:
    losses = []
    for calibration in CALIBRATIONS:
        for point in points():
            for label in LABELS[:-1]:
                ratio = found.ratio(f"{point.cell} {calibration}", "pearl", label)
                if ratio.below_one:
                    losses.append(f"{point.cell}, {calibration}: {label} is ahead by {1 / ratio.value - 1:.1%}.")
    return tuple(losses) or ("PEARL is nowhere significantly behind.",)


def _least(found: Rows, calibration: str) -> float:
    return min(found.ratio(f"{point.cell} {calibration}", "pearl", "rlboost+").value for point in points())
