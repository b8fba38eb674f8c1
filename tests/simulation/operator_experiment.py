"""The real operator in the simulator against every fixed shape, on the same seeds; writes docs/results/operator.md.

PYTHONPATH=tests/simulation:tests/support python -m operator_experiment --seeds 6 --jobs 2
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from operated import run_operated
from phases import DECODE_HEAVY, PHASES, Phase, Phased, scenario

from pearl_planner.types import Shape
from pearl_simulator.reporting.parallel import Pool
from pearl_simulator.reporting.statistics import Interval, mean_interval
from pearl_simulator.rules.fixed import FixedRule
from pearl_simulator.run import run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pearl_dev.virtual.data_plane import DataPlane
    from pearl_simulator.types import BatchResult, Scenario, ShapeSpan

SLOW_UPDATE_SECONDS = 600.0
SLOW = (Phase(DECODE_HEAVY, 6, 3),)
WORKERS = 8
FIRST_SEED = 201
FIXED_LOOK_SECONDS = 60.0
"""A fixed shape needs no looks but for its local append threshold."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a phase is simulated with, picklable by name."""

    phases: tuple[Phase, ...]
    workers: int
    update_seconds: float

    def scenario(self, *, local_append: bool = True) -> Scenario:
        return scenario(
            self.phases, workers=self.workers, update_seconds=self.update_seconds, local_append=local_append
        )


@dataclass(frozen=True, slots=True)
class Achieved:
    """By phase: what the operator did in the counted batches."""

    rates: tuple[float, ...]
    """Consumed trajectories per hour."""
    gpus: tuple[float, ...]
    """Held by workers, mean."""
    shapes: tuple[str, ...]
    """The one that served longest."""
    reasons: tuple[tuple[str, ...], ...]
    """Of decisions told in the whole phase, often first."""
    flips: tuple[int, ...]
    """Role labels of living pods that changed in the whole phase."""
    fleet: tuple[tuple[float, int, int, int], ...]
    """(seconds, prefill, decode, colocated) at each change, for the plot."""
    ends: tuple[float, ...]
    """When each phase's last batch was consumed."""


def fixed_rates(item: tuple[Setting, int, int, bool]) -> tuple[float, ...]:
    """By phase, of `prefill` P workers (0 = colocated), the others D, with or without local append."""
    setting, prefill, seed, local = item
    one = replace(setting.scenario(local_append=local), look_seconds=FIXED_LOOK_SECONDS)
    rule = FixedRule(ratio=(prefill, setting.workers - prefill) if prefill else None)
    return phased(one).rates(run(one, rule, seed, rule_name="fixed").batches)


def achieved(item: tuple[Setting, int]) -> Achieved:
    """One run of the operator."""
    setting, seed = item
    one = setting.scenario()
    return describe(one, run_operated(one, seed).plane)


def describe(one: Scenario, plane: DataPlane) -> Achieved:
    """What a finished run says."""
    work, batches, spans = phased(one), plane.world.trainer.batches, plane.world.tally.shapes
    windows, ends = work.windows(batches), phase_ends(work, batches)
    begins = (0.0, *ends[:-1])
    return Achieved(
        rates=work.rates(batches),
        gpus=tuple(_mean_gpus(spans, *window) for window in windows),
        shapes=tuple(_usual_shape(spans, *window) for window in windows),
        reasons=tuple(_reasons(plane, begin, end) for begin, end in zip(begins, ends, strict=True)),
        flips=tuple(flips(plane, begin, end) for begin, end in zip(begins, ends, strict=True)),
        fleet=tuple((s.start_seconds, s.shape.prefill, s.shape.decode, s.shape.colocated) for s in spans),
        ends=ends,
    )


def phased(one: Scenario) -> Phased:
    """Its workload."""
    if not isinstance(one.workload, Phased):
        raise TypeError(f"{one.workload!r} has no phases")
    return one.workload


def phase_ends(work: Phased, batches: Sequence[BatchResult]) -> tuple[float, ...]:
    """When the last batch of each phase was consumed."""
    last = [sum(phase.steps for phase in work.phases[: k + 1]) - 1 for k in range(len(work.phases))]
    return tuple(batches[step].consumed_seconds for step in last)


def flips(plane: DataPlane, begin: float, end: float) -> int:
    """Role labels that changed while their pod lived on."""
    seen = [one for one in plane.history if begin <= one.seconds <= end]
    count = 0
    for before, after in pairwise(seen):
        roles = dict(before.pods)
        count += sum(1 for uid, role in after.pods if roles.get(uid, role) != role)
    return count


def _reasons(plane: DataPlane, begin: float, end: float) -> tuple[str, ...]:
    counts = Counter(one.reason for one in plane.history if begin < one.seconds <= end)
    return tuple(reason for reason, _ in counts.most_common())


def _pieces(spans: Sequence[ShapeSpan], begin: float, end: float) -> list[tuple[float, ShapeSpan]]:
    """(seconds, span) inside the window."""
    until = [*(span.start_seconds for span in spans[1:]), end]
    cut = [(min(stop, end) - max(span.start_seconds, begin), span) for span, stop in zip(spans, until, strict=True)]
    return [(seconds, span) for seconds, span in cut if seconds > 0]


def _mean_gpus(spans: Sequence[ShapeSpan], begin: float, end: float) -> float:
    pieces = _pieces(spans, begin, end)
    return sum(seconds * sum(gpus for _, gpus in span.gpus) for seconds, span in pieces) / (end - begin)


def _usual_shape(spans: Sequence[ShapeSpan], begin: float, end: float) -> str:
    held: Counter[Shape] = Counter()
    for seconds, span in _pieces(spans, begin, end):
        held[span.shape] += seconds  # type: ignore[assignment]
    return str(held.most_common(1)[0][0])


@dataclass(frozen=True, slots=True)
class Compared:
    """One phase over the seeds."""

    name: str
    rates: tuple[float, ...]
    best: tuple[float, ...]
    """Of the best fixed shape of each seed."""
    best_shape: str
    """By the mean over the seeds."""
    by_shape: dict[str, float]
    """Mean rate of every fixed shape tried."""
    gpus: float
    shapes: tuple[str, ...]
    reasons: tuple[str, ...]
    flips: float

    @property
    def regrets(self) -> tuple[float, ...]:
        """Share of the best fixed rate that is missing; below 0 where the operator is ahead."""
        return tuple(1.0 - mine / best for mine, best in zip(self.rates, self.best, strict=True))


def compare(
    setting: Setting, seeds: Sequence[int], pool: Pool, names: Sequence[str]
) -> tuple[list[Compared], Achieved]:
    """All phases of a setting, and the first seed's run for the plot."""
    cases = [(prefill, local) for prefill in range(setting.workers) for local in (True, False) if prefill or local]
    items = [(setting, prefill, seed, local) for prefill, local in cases for seed in seeds]
    fixed = pool.map(fixed_rates, items, "fixed shapes")
    mine = pool.map(achieved, [(setting, seed) for seed in seeds], "operator")
    labels = [_label(prefill, setting.workers, local=local) for prefill, local in cases]
    table = {label: fixed[k * len(seeds) : (k + 1) * len(seeds)] for k, label in enumerate(labels)}
    return [_compared(name, index, mine, table) for index, name in enumerate(names)], mine[0]


def _label(prefill: int, workers: int, *, local: bool) -> str:
    shape = Shape(0, prefill, workers - prefill) if prefill else Shape(workers)
    return str(shape) + ("" if local else ", no local append")


def _compared(name: str, index: int, mine: Sequence[Achieved], table: dict[str, list[tuple[float, ...]]]) -> Compared:
    by_shape = {label: fmean(rates[index] for rates in runs) for label, runs in table.items()}
    return Compared(
        name=name,
        rates=tuple(one.rates[index] for one in mine),
        best=tuple(max(runs[k][index] for runs in table.values()) for k in range(len(mine))),
        best_shape=max(by_shape, key=lambda label: by_shape[label]),
        by_shape=by_shape,
        gpus=fmean(one.gpus[index] for one in mine),
        shapes=tuple(shape for shape, _ in Counter(one.shapes[index] for one in mine).most_common()),
        reasons=tuple(reason for reason, _ in Counter(r for one in mine for r in one.reasons[index]).most_common()),
        flips=fmean(one.flips[index] for one in mine),
    )


def regret(phases: Sequence[Compared]) -> Interval:
    """Mean over the phases, with its interval over the seeds."""
    per_seed = zip(*(one.regrets for one in phases), strict=True)
    return mean_interval([fmean(values) for values in per_seed])


def main() -> None:
    """Run all, write page, plot and data."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    given = parser.parse_args()
    seeds, pool = range(FIRST_SEED, FIRST_SEED + given.seeds), Pool(given.jobs)
    names = [phase.workload.name for phase in PHASES]
    found, first = compare(Setting(PHASES, WORKERS, 30.0), seeds, pool, names)
    slow, _ = compare(Setting(SLOW, WORKERS, SLOW_UPDATE_SECONDS), seeds, pool, ["trainer-bound"])
    from operator_page import page, plot

    data = given.out / "data" / "operator.json"
    data.write_text(json.dumps(_summary(found, slow, seeds), indent=2) + "\n")
    plot(found, first, given.out)
    (given.out / "operator.md").write_text(page(found, slow, regret(found), seeds))


def _summary(found: list[Compared], slow: list[Compared], seeds: Sequence[int]) -> dict[str, object]:
    total = regret(found)
    return {
        "seeds": list(seeds),
        "regret_mean": total.value,
        "regret_low": total.low,
        "regret_high": total.high,
        "phases": {
            one.name: {
                "operator_per_hour": one.rates,
                "best_fixed_per_hour": one.best,
                "fixed_mean_per_hour": one.by_shape,
                "gpus": one.gpus,
                "shapes": one.shapes,
                "reasons": one.reasons,
                "role_flips": one.flips,
            }
            for one in [*found, *slow]
        },
    }


if __name__ == "__main__":
    main()
