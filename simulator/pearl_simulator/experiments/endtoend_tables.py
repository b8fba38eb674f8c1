"""Tables, plots and findings of the end-to-end comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl_simulator.experiments.bounds import FREE, STRICT
from pearl_simulator.experiments.cells import CALIBRATIONS, Cell, cells
from pearl_simulator.experiments.policies import POLICIES
from pearl_simulator.experiments.published import OVER_RLBOOST, ROLL_RANGE
from pearl_simulator.reporting.report import Plot, Series, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from pearl_simulator.experiments.common import Row, Rows
    from pearl_simulator.reporting.statistics import Interval

BOUND_WORKLOADS = ("environment-bound", "trainer-bound")
CLAIRVOYANT = "clairvoyant"
"""The best of everything that was tried in a cell, chosen afterwards."""
LINES = (*(policy.label for policy in POLICIES if policy.label != "schedule"), CLAIRVOYANT, FREE, STRICT)
NOT_DRAWN = ("roll", CLAIRVOYANT, STRICT)
"""Of `LINES`: the unit of the plot, the best of the others once more, and what is far above all of them."""


def tables(found: Rows) -> tuple[Table, ...]:
    """Per calibration: all policies over `roll`; then PEARL against each; windows; what the GPUs did."""
    made = []
    for calibration in CALIBRATIONS:
        fixed, auto = cells(calibration), cells(calibration, None)
        made.append(_over_roll(found, calibration, fixed))
        made.append(_against(found, calibration, fixed))
        if found.has(auto[0].key, "pearl"):
            made.append(_windows(found, calibration, fixed, auto))
    return (*made, _means(found), _bound_workloads(found))


def _over_roll(found: Rows, calibration: str, where: tuple[Cell, ...]) -> Table:
    rows = [
        (label, *(_ratio(found, cell, label, "roll") for cell in where))
        for label in LINES
        if found.has(where[0].key, label)
    ]
    published = ("published PEARL", *("{:.2f}-{:.2f}".format(*ROLL_RANGE[cell.model]) for cell in where))
    columns = ("policy", *(cell.name for cell in where))
    title = f"Throughput over roll, calibration {calibration}, window 64 (95 % interval)"
    return Table(title, columns, (*rows, published))


def _against(found: Rows, calibration: str, where: tuple[Cell, ...]) -> Table:
    others = [label for label in LINES if label not in ("pearl", "roll") and found.has(where[0].key, label)]
    rows = [(label, *(_ratio(found, cell, "pearl", label) for cell in where)) for label in others]
    published = ("published, over RLBoost+", *(OVER_RLBOOST[cell.name] for cell in where))
    columns = ("pearl over", *(cell.name for cell in where))
    return Table(f"PEARL over each other, calibration {calibration}, window 64", columns, (*rows, published))


def _windows(found: Rows, calibration: str, fixed: tuple[Cell, ...], auto: tuple[Cell, ...]) -> Table:
    pairs = list(zip(fixed, auto, strict=True))
    rows = [
        ("pearl automatic / roll 64", *(found.ratio_across(a.key, "pearl", f.key, "roll") for f, a in pairs)),
        ("pearl automatic / pearl 64", *(found.ratio_across(a.key, "pearl", f.key, "pearl") for f, a in pairs)),
        *(
            (f"pearl automatic / {other} automatic", *(found.ratio(cell.key, "pearl", other) for cell in auto))
            for other in ("roll", "rlboost+")
            if found.has(auto[0].key, other)
        ),
    ]
    columns = ("", *(cell.name for cell in fixed))
    return Table(f"Automatic window, calibration {calibration}", columns, tuple(rows))


def _means(found: Rows) -> Table:
    """What the policies did with the GPUs, means over cells and seeds of the headline."""
    numbers: tuple[tuple[str, Callable[[Row], float]], ...] = (
        ("tokens/s", lambda row: row.tokens_per_second),
        ("trajectories/h", lambda row: row.trajectories_per_hour),
        ("GPU-hours", lambda row: row.gpu_hours),
        ("of them borrowed", lambda row: row.borrowed_gpu_hours),
        ("tokens per GPU-s", lambda row: row.tokens_per_gpu_second),
        ("time disaggregated", lambda row: row.disaggregated_share),
        ("shapes", lambda row: float(row.changes)),
        ("trainer waits", lambda row: row.trainer_waiting_share),
        ("mean age", lambda row: row.mean_age or 0.0),
    )
    where = cells("paper")
    rows = [
        (
            policy.label,
            *(sum(found.mean(cell.key, policy.label, of) for cell in where) / len(where) for _, of in numbers),
        )
        for policy in POLICIES
        if found.has(where[0].key, policy.label)
    ]
    return Table(
        "What they did, calibration paper, window 64, means of the six cells",
        ("policy", *(name for name, _ in numbers)),
        tuple(rows),
        "GPU-hours are those of rollout workers; mean age is in weight versions at consumption.",
    )


def _bound_workloads(found: Rows) -> Table:
    rows = [
        (
            name,
            found.ratio(name, "pearl", "rlboost+"),
            found.ratio(name, "pearl", "rlboost+", lambda row: row.gpu_hours),
            found.mean(name, "pearl", lambda row: row.gpu_hours),
            found.mean(name, "rlboost+", lambda row: row.gpu_hours),
        )
        for name in BOUND_WORKLOADS
    ]
    columns = (
        "workload",
        "throughput, pearl / rlboost+",
        "GPU-hours, pearl / rlboost+",
        "GPU-h pearl",
        "GPU-h rlboost+",
    )
    return Table("Where more GPUs cannot help (8B, S1, clean)", columns, tuple(rows))


def plots(found: Rows) -> tuple[Plot, ...]:
    """One per calibration: bars over the six cells, `roll` = 1."""
    made = []
    for calibration in CALIBRATIONS:
        where = cells(calibration)
        labels = [label for label in LINES if label not in NOT_DRAWN and found.has(where[0].key, label)]
        series = tuple(_series(label, [_ratio(found, cell, label, "roll") for cell in where]) for label in labels)
        made.append(
            Plot(
                name=calibration,
                title=f"Throughput over four fixed GPUs (roll), calibration {calibration}, window 64",
                y="throughput / roll",
                series=series,
                groups=tuple(cell.name for cell in where),
                reference=1.0,
            )
        )
    return tuple(made)


def _series(label: str, ratios: list[Interval]) -> Series:
    return Series(
        label,
        tuple(one.value for one in ratios),
        tuple(one.low for one in ratios),
        tuple(one.high for one in ratios),
    )


def findings(found: Rows) -> tuple[str, ...]:
    """Every cell where another policy is significantly ahead of PEARL."""
    losses = []
    for calibration in CALIBRATIONS:
        for cell in cells(calibration):
            for label in LINES:
                if label in ("pearl", CLAIRVOYANT, FREE, STRICT) or not found.has(cell.key, label):
                    continue
                ratio = found.ratio(cell.key, "pearl", label)
                if ratio.below_one:
                    losses.append(f"{cell.name}, {calibration}: {label} is ahead by {1 / ratio.value - 1:.1%}.")
    if found.ratio(cells("paper")[0].key, "pearl", "roll").n == 1:
        return ("One seed: there are no intervals, so nothing is called ahead or behind.",)
    return tuple(losses) or ("No policy is significantly ahead of PEARL in any cell.",)


def _ratio(found: Rows, cell: Cell, mine: str, theirs: str) -> Interval:
    return found.ratio(cell.key, mine, theirs)
