"""`pearl-sim ablate`: each mechanism of PEARL on and off, on the segments of the end-to-end comparison."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pearl_simulator.experiments.cells import CALIBRATIONS, SEGMENTS, SHORT, WINDOW, Cell, fixed, scenario
from pearl_simulator.experiments.common import Job, Row, flat, rows, simulate
from pearl_simulator.reporting.report import Plot, Report, Series, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pearl_simulator.experiments.common import Rows
    from pearl_simulator.experiments.setting import Setting
    from pearl_simulator.reporting.statistics import Interval
    from pearl_simulator.types import Scenario

FULL_SEEDS, QUICK_SEEDS = 4, 1
FIXED_GPUS = (4, 8, 16)
ABOUT = (
    "Qwen3-8B in the set-up of the end-to-end comparison. Each line switches one mechanism off and is compared with "
    "PEARL as a whole, paired by seed; below 1 means that the mechanism helps. The second table adds PD, lending and "
    "its gate one after the other on fixed rollout GPUs, as the PEARL paper does."
)
WITHOUT_STEPS = (
    "Not tried: unequal tensor parallelism of the stages and faster shapes for the tail; the simulated fleet has one "
    "kind of worker."
)


@dataclass(frozen=True, slots=True)
class Variant:
    """PEARL with one mechanism changed."""

    label: str
    change: Callable[[Scenario], Scenario]
    rule: str = "pearl"
    parameters: tuple[tuple[str, float], ...] = ()


def _same(base: Scenario) -> Scenario:
    return base


def _no_pd(base: Scenario) -> Scenario:
    return replace(base, modes=("Colocated",))


def _no_borrowing(base: Scenario) -> Scenario:
    return replace(base, fleet=replace(base.fleet, borrowed_max_gpus=0))


def _no_elastic(base: Scenario) -> Scenario:
    return replace(base, fleet=replace(base.fleet, elastic_max_gpus=0), capacity=())


def _no_local_append(base: Scenario) -> Scenario:
    return replace(base, router=replace(base.router, local_append=False))


def _no_affinity(base: Scenario) -> Scenario:
    return replace(base, router=replace(base.router, affinity=False))


def _no_stragglers(base: Scenario) -> Scenario:
    return replace(base, router=replace(base.router, stragglers_first=False))


def _automatic_window(base: Scenario) -> Scenario:
    return replace(base, router=replace(base.router, window=None))


WHOLE = Variant("pearl", _same)
VARIANTS = (
    WHOLE,
    Variant("no disaggregation", _no_pd),
    Variant("no borrowing", _no_borrowing),
    Variant("borrowing without gate", _same, "pearl-ungated"),
    Variant("no elastic GPUs", _no_elastic),
    Variant("no re-planning inside a batch", _same, "pearl-per-batch"),
    Variant("no local append", _no_local_append),
    Variant("no cache affinity", _no_affinity),
    Variant("no stragglers first", _no_stragglers),
    Variant("automatic window", _automatic_window),
)
"""Another `rule` is PEARL's with that part of the decision taken out."""
STEPS = (
    Variant("roll", lambda base: _no_borrowing(_no_pd(base)), "roll"),
    Variant("+PD", _no_borrowing),
    Variant("+ungated lending", _same, "pearl-ungated"),
    Variant("+gate", _same),
)


def run(setting: Setting, simulated: Callable[[Job], Row] = simulate) -> Report:
    """Three segments under both calibrations; fixed fleets under `paper`."""
    seeds = setting.seed_list(FULL_SEEDS, QUICK_SEEDS)
    where = [Cell("8B", segment, calibration) for calibration in CALIBRATIONS for segment in SEGMENTS]
    todo = [
        job
        for cell in where
        for job in _jobs(cell.key, scenario(cell, quick=setting.quick, length=SHORT), VARIANTS, seeds)
    ]
    todo += _fixed_jobs(seeds, quick=setting.quick)
    found = setting.pool.map(simulated, todo, "variants")
    table = rows(found)
    return Report(
        experiment="ablate",
        title="What each mechanism contributes",
        about=ABOUT,
        summary={f"{_key(v.label)}_mean": _mean(table, where, v.label) for v in VARIANTS[1:]},
        tables=(_variants_table(table, where), _steps_table(table)),
        plots=(_plot(table, where),),
        findings=(*_findings(table, where), WITHOUT_STEPS),
        seeds=seeds,
        parameters={"window": WINDOW, "quick": setting.quick, "seconds": SHORT},
        runs=flat(found),
    )


def _jobs(cell: str, base: Scenario, variants: Sequence[Variant], seeds: Sequence[int]) -> list[Job]:
    return [
        Job(cell, variant.label, variant.rule, variant.parameters, variant.change(base), seed)
        for variant in variants
        for seed in seeds
    ]


def _fixed_jobs(seeds: Sequence[int], *, quick: bool) -> list[Job]:
    """The paper's ablation: 16 training GPUs that may be lent, and fixed rollout GPUs."""
    found = []
    for model in ("8B", "30B-A3B"):
        base = scenario(Cell(model, "S1", "paper"), quick=quick, length=SHORT)
        for gpus in FIXED_GPUS:
            alone = fixed(base, gpus)
            lending = replace(alone, fleet=replace(alone.fleet, borrowed_max_gpus=base.fleet.borrowed_max_gpus))
            found += _jobs(_fixed_cell(model, gpus), lending, STEPS, seeds)
    return found


def _fixed_cell(model: str, gpus: int) -> str:
    return f"{model} {gpus} GPUs"


def _variants_table(found: Rows, where: Sequence[Cell]) -> Table:
    rows_ = tuple(
        (variant.label, *(found.ratio(cell.key, variant.label, "pearl") for cell in where)) for variant in VARIANTS[1:]
    )
    columns = ("without", *(f"{cell.segment} {cell.calibration}" for cell in where))
    return Table("Throughput over PEARL as a whole, Qwen3-8B (95 % interval)", columns, rows_)


def _steps_table(found: Rows) -> Table:
    made = tuple(
        (cell, *(found.ratio(cell, step.label, "roll") for step in STEPS[1:]))
        for cell in (_fixed_cell(model, gpus) for model in ("8B", "30B-A3B") for gpus in FIXED_GPUS)
    )
    columns = ("fixed rollout GPUs", *(step.label for step in STEPS[1:]))
    note = "Published, 8B: 4 GPUs 0.794 / 1.936 / 1.923 (PD forced), 8-16 GPUs 1.128-1.153 / 1.162-1.265 / 1.179-1.265."
    return Table("Added one after the other, over roll on the same GPUs, calibration paper", columns, made, note)


def _plot(found: Rows, where: Sequence[Cell]) -> Plot:
    series = tuple(
        _series(variant.label, [found.ratio(cell.key, variant.label, "pearl") for cell in where])
        for variant in VARIANTS[1:]
    )
    groups = tuple(f"{cell.segment} {cell.calibration}" for cell in where)
    return Plot("variants", "PEARL with one mechanism changed", "throughput / PEARL", series, groups, reference=1.0)


def _series(label: str, ratios: Sequence[Interval]) -> Series:
    return Series(
        label,
        tuple(one.value for one in ratios),
        tuple(one.low for one in ratios),
        tuple(one.high for one in ratios),
    )


def _mean(found: Rows, where: Sequence[Cell], label: str) -> float:
    return sum(found.ratio(cell.key, label, "pearl").value for cell in where) / len(where)


def _findings(found: Rows, where: Sequence[Cell]) -> tuple[str, ...]:
    harmful = []
    for variant in VARIANTS[1:]:
        for cell in where:
            ratio = found.ratio(cell.key, variant.label, "pearl")
            if ratio.above_one:
                harmful.append(f"{cell.segment}, {cell.calibration}: {variant.label} is {ratio.value - 1:.1%} better.")
    return tuple(harmful)


def _key(label: str) -> str:
    return label.replace(" ", "_").replace("-", "_").lower()
