"""`pearl-sim predictor`: predicted against simulated makespans, and PEARL's regret, on random workloads."""

from __future__ import annotations

from dataclasses import asdict
from statistics import fmean, median
from typing import TYPE_CHECKING

from pearl_simulator.experiments.common import simulate
from pearl_simulator.experiments.makespans import DIFFERENT, PROFILE_BATCHES, ask, questions, ranking_right
from pearl_simulator.experiments.regret import LARGE, SIMPLE, regrets
from pearl_simulator.reporting.report import Plot, Report, Series, Table
from pearl_simulator.reporting.statistics import mean_upper, quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pearl_simulator.experiments.common import Job, Row
    from pearl_simulator.experiments.makespans import Answer, Question
    from pearl_simulator.experiments.regret import Regret
    from pearl_simulator.experiments.setting import Setting

WORKLOADS, QUICK_WORKLOADS = 200, 5
BATCHES, QUICK_BATCHES = 100, 10
REGRET_SEEDS, QUICK_REGRET_SEEDS = 3, 2
WORST = 12
ABOUT = (
    "Random workloads, fleets of 2 to 8 workers, both models. Predictor: the mean makespan of fixed shapes (colocated, "
    f"few and many prefill workers), predicted from a profile of {PROFILE_BATCHES} other batches, against the "
    "mean of the simulated batches, calibration clean. Regret: throughput of the best simple policy "
    f"({', '.join(SIMPLE)}; chosen per workload on a training seed) over PEARL's, less 1, with a barrier and with "
    "refill, both calibrations, paired by seed."
)


def run(
    setting: Setting, simulated: Callable[[Job], Row] = simulate, asked: Callable[[Question], Answer] = ask
) -> Report:
    """`--workloads` of them; `--seeds` is that of the regret."""
    count = setting.workloads or (QUICK_WORKLOADS if setting.quick else WORKLOADS)
    batches = QUICK_BATCHES if setting.quick else BATCHES
    answers = setting.pool.map(asked, questions(count, setting.seed, batches), "makespans")
    seeds = setting.seeds or (QUICK_REGRET_SEEDS if setting.quick else REGRET_SEEDS)
    found = regrets(count, setting.seed, seeds, setting.pool, simulated)
    return Report(
        experiment="predictor",
        title="How well PEARL predicts, and what its mistakes cost",
        about=ABOUT,
        summary=summary(answers, found),
        tables=(_errors_table(answers), _worst_table(answers), _regret_table(found)),
        plots=(_error_plot(answers), _regret_plot(found)),
        findings=findings(found),
        seeds=tuple(range(setting.seed, setting.seed + count)),
        parameters={"workloads": count, "batches": batches, "regret_seeds": seeds},
        runs=(*(asdict(one) for one in answers), *(asdict(one) for one in found)),
    )


def summary(answers: Sequence[Answer], found: Sequence[Regret]) -> dict[str, float | int | None]:
    """The documented keys."""
    errors = [one.error for one in answers if one.error is not None]
    right, pairs = ranking_right(answers)
    shares = [one.share.value for one in found]
    return {
        "mean_error_median": median(errors) if errors else None,
        "mean_error_p95": quantile(errors, 0.95) if errors else None,
        "ranking_right": right / pairs if pairs else None,
        "regret_mean_upper95": mean_upper(shares),
        "regret_p95": quantile(shares, 0.95),
    }


def findings(found: Sequence[Regret]) -> tuple[str, ...]:
    """Every workload on which PEARL loses much, and not by luck."""
    cases = sorted((one for one in found if one.significant), key=lambda one: -one.share.value)
    lines = [
        f"{one.cell}: {one.best} is ahead by {one.share.value:.1%} "
        f"[{one.share.low or 0.0:.1%}, {one.share.high or 0.0:.1%}]; PEARL ran apart {one.apart:.0%} of the time."
        for one in cases
    ]
    return tuple(lines) or (f"No workload on which a simple policy is significantly ahead by more than {LARGE:.0%}.",)


def _errors_table(answers: Sequence[Answer]) -> Table:
    kinds = {"all": answers, "colocated": _of(answers, "colocated"), "disaggregated": _of(answers, "disaggregated")}
    made = []
    for name, some in kinds.items():
        errors = [one.error for one in some if one.error is not None]
        if not errors:
            continue
        signed = fmean(one.predicted / one.mean - 1.0 for one in some if one.predicted is not None)
        below = [fmean(one.below[k] for one in some if one.predicted is not None) for k in range(3)]
        noise = fmean(one.error_of_mean for one in some)
        made.append((name, len(errors), median(errors), quantile(errors, 0.95), signed, noise, *below))
    right, pairs = ranking_right(answers)
    note = (
        f"Shapes whose simulated means differ by more than {DIFFERENT:.0%}: {right} of {pairs} pairs are in order. "
        f"Without a prediction: {sum(one.predicted is None for one in answers)}."
    )
    columns = ("shapes", "n", "error, median", "p95", "mean signed", "noise of the mean", "below q10", "q50", "q90")
    return Table("Predicted mean makespan against the simulated mean", columns, tuple(made), note)


def _of(answers: Sequence[Answer], mode: str) -> list[Answer]:
    return [one for one in answers if one.shape.startswith(mode)]


def _worst_table(answers: Sequence[Answer]) -> Table:
    ordered = sorted(answers, key=lambda one: -(one.error or 0.0))[:WORST]
    made = tuple((one.key, one.shape, one.predicted, one.mean, one.error) for one in ordered)
    return Table("Largest errors", ("workload", "shape", "predicted s", "simulated s", "error"), made)


def _regret_table(found: Sequence[Regret]) -> Table:
    ordered = sorted(found, key=lambda one: -one.share.value)[:WORST]
    made = tuple((one.cell, one.best, one.share, one.apart) for one in ordered)
    columns = ("workload", "best simple policy", "regret [95 %]", "time apart")
    return Table("Largest regrets", columns, made, "Negative: PEARL is ahead.")


def _error_plot(answers: Sequence[Answer]) -> Plot:
    known = [one for one in answers if one.predicted is not None]
    xs = tuple(one.mean for one in known)
    series = tuple(
        Series(mode, tuple((one.predicted or 0.0) / one.mean if one.shape.startswith(mode) else None for one in known))
        for mode in ("colocated", "disaggregated")
    )
    return Plot(
        "makespan",
        "Predicted over simulated mean makespan",
        "predicted / simulated",
        series,
        x=xs,
        x_label="simulated mean makespan (s)",
        reference=1.0,
        log_x=True,
        markers=True,
    )


def _regret_plot(found: Sequence[Regret]) -> Plot:
    ordered = sorted(found, key=lambda one: one.share.value)
    shares = [one.share for one in ordered]
    series = Series(
        "regret",
        tuple(100 * one.value for one in shares),
        tuple(None if one.low is None else 100 * one.low for one in shares),
        tuple(None if one.high is None else 100 * one.high for one in shares),
    )
    return Plot(
        "regret",
        "Regret against the best simple policy of each workload",
        "regret (%), below 0 PEARL is ahead",
        (series,),
        x=tuple(float(k) for k in range(1, len(ordered) + 1)),
        x_label="workloads, by regret",
        reference=0.0,
        markers=True,
    )
