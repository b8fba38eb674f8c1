"""The page of the `paper` calibration: `python -m pearl_simulator.calibration.fit_paper_report [--seeds N]`.

Every point beside what is simulated with the constants that ship, on seeds that the fit did not see. Writes
`docs/results/data/calibration.json`, the plots and `docs/results/calibration.md`.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from pearl_simulator.calibration.calibrations import paper_fit, workload_of
from pearl_simulator.calibration.fit_paper import CHECK_SEEDS, POINTS, RATIOS, Outcome, Setup, error, one_batch, shares
from pearl_simulator.reporting.pages import explanation, markdown_page
from pearl_simulator.reporting.report import Plot, Report, Series, Table, to_json
from pearl_simulator.reporting.statistics import Interval, mean_interval, ratio_interval

if TYPE_CHECKING:
    from collections.abc import Sequence

COUNTS = (2, 4, 6, 8, 10, 12, 16)
NAMES = {"Qwen/Qwen3-8B": "8B", "Qwen/Qwen3-30B-A3B": "30B-A3B"}
COMMAND = "python -m pearl_simulator.calibration.fit_paper_report"
ABOUT = (
    "The `paper` calibration is meant to behave as the PEARL paper's system did: decode waits for prefills, a prefill "
    "on a worker that also decodes costs an extra, a hand-off of KV costs an extra, and the workload has stripped "
    "thinking, a cache that serves badly and long tails. Its constants were fitted to points that the paper gives or "
    "implies; here they are beside what is simulated: one synchronous batch of 64 trajectories on a fixed fleet of "
    "two-GPU workers."
)


def report(seeds: tuple[int, ...]) -> Report:
    """Both models."""
    tables: list[Table] = []
    worst: dict[str, float] = {}
    makespans: list[Series] = []
    gains: list[Series] = []
    for model, name in NAMES.items():
        colocated = {count: _runs(model, Setup(count), seeds) for count in COUNTS}
        found = _observed(model, colocated, seeds)
        tables.append(_table(model, name, found))
        errors = [error(point, found[point.name].value) * point.tolerance for point in POINTS[model]]
        worst[f"{name.lower().replace('-', '_')}_mean_error"] = fmean(abs(one) for one in errors)
        makespans.append(_line(f"{name} simulated", [mean_interval(_seconds(runs)) for runs in colocated.values()]))
        gains += [_gain_points(model, name), _line(f"{name} simulated", [found[f"gain {count}"] for count in RATIOS])]
    tables.append(_constants())
    return Report(
        experiment="calibration",
        title="The `paper` calibration and the points it was fitted to",
        about=ABOUT,
        summary={key: round(value, 4) for key, value in worst.items()},
        tables=tuple(tables),
        plots=(
            Plot(
                "makespans",
                "One batch on colocated workers",
                "seconds",
                (*makespans, _published_makespans()),
                x=tuple(float(count) for count in COUNTS),
                x_label="workers of two GPUs",
                log_x=True,
            ),
            Plot(
                "gains",
                "Best disaggregated shape over colocated",
                "ratio of makespans",
                tuple(gains),
                x=tuple(float(count) for count in RATIOS),
                x_label="workers of two GPUs",
                reference=1.0,
            ),
        ),
        seeds=seeds,
        parameters={model: asdict(paper_fit(model)) for model in NAMES},
    )


def _runs(model: str, setup: Setup, seeds: Sequence[int]) -> list[Outcome]:
    return [one_batch(model, paper_fit(model), setup, seed) for seed in seeds]


def _seconds(runs: Sequence[Outcome]) -> list[float]:
    return [run.seconds for run in runs]


def _observed(model: str, colocated: dict[int, list[Outcome]], seeds: tuple[int, ...]) -> dict[str, Interval]:
    """Every point with its interval over the seeds."""
    found = {f"colocated {count}": mean_interval(_seconds(runs)) for count, runs in colocated.items()}
    for count, ratios in RATIOS.items():
        tried = [_seconds(_runs(model, Setup(count, ratio), seeds)) for ratio in ratios]
        found[f"gain {count}"] = ratio_interval(_seconds(colocated[count]), min(tried, key=fmean))
    found["colocated 2 / 10"] = ratio_interval(_seconds(colocated[2]), _seconds(colocated[10]))
    alone = _seconds(_runs(model, Setup(1, alone=True), seeds))
    workload = workload_of(paper_fit(model))
    found["alone"] = mean_interval([one / (workload.groups * workload.group_size) for one in alone])
    for name, value in shares(model, paper_fit(model), colocated[8]).items():
        found[name] = Interval(value, None, None, len(seeds))
    return found


def _table(model: str, name: str, found: dict[str, Interval]) -> Table:
    rows = tuple(
        (WORDS.get(point.name, point.name), point.value, found[point.name], found[point.name].value / point.value - 1.0)
        for point in POINTS[model]
    )
    return Table(f"{name}: points", ("point", "published or implied", "simulated", "relative error"), rows)


WORDS = {
    "alone": "mean trajectory alone, s",
    "prefill tokens to generated": "computed prompt tokens per generated token",
    "prefill share of time": "share of prefill in engine time",
    "colocated 2 / 10": "makespan on 2 workers over that on 10",
    **{f"colocated {count}": f"makespan, {count} colocated workers, s" for count in COUNTS},
    **{f"gain {count}": f"colocated over best disaggregated, {count} workers" for count in RATIOS},
}


def _constants() -> Table:
    fits = [asdict(paper_fit(model)) for model in NAMES]
    rows = tuple((key, *(float(fit[key]) for fit in fits)) for key in fits[0])
    return Table("Constants", ("constant", *NAMES.values()), rows)


def _line(label: str, values: list[Interval]) -> Series:
    return Series(
        label, tuple(one.value for one in values), tuple(one.low for one in values), tuple(one.high for one in values)
    )


def _published_makespans() -> Series:
    known = {point.name: point.value for point in POINTS["Qwen/Qwen3-8B"]}
    return Series("8B derived from the paper", tuple(known.get(f"colocated {count}") for count in COUNTS))


def _gain_points(model: str, name: str) -> Series:
    known = {point.name: point.value for point in POINTS[model]}
    return Series(f"{name} paper", tuple(known.get(f"gain {count}") for count in RATIOS))


def main() -> None:
    """Write the JSON file, the plots and the page."""
    from pearl_simulator.reporting.plots import draw  # noqa: PLC0415 (matplotlib is slow to load)

    parser = argparse.ArgumentParser(description="Write the page of the `paper` calibration.")
    parser.add_argument("--seeds", type=int, default=len(CHECK_SEEDS), help="how many of the check seeds")
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="folder of the page")
    chosen = parser.parse_args()
    found = report(CHECK_SEEDS[: chosen.seeds])
    release = version("pearl-operator")
    (chosen.out / "data").mkdir(parents=True, exist_ok=True)
    (chosen.out / "data/calibration.json").write_text(to_json(found, version=release, command=COMMAND))
    draw(found, chosen.out)
    page = markdown_page(found, release, COMMAND, explanation(chosen.out, "calibration"))
    (chosen.out / "calibration.md").write_text(page)
    sys.stdout.write(page)


if __name__ == "__main__":
    main()
