"""What experiments share: one simulated run reduced to a flat row, and comparisons of rows."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pearl_simulator.experiments.variants import rule_of
from pearl_simulator.reporting.statistics import Interval, ratio_interval
from pearl_simulator.run import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pearl_simulator.reporting.parallel import Pool
    from pearl_simulator.types import Result, Scenario


@dataclass(frozen=True, slots=True)
class Job:
    """One simulated run. `label` names the rule in tables; two labels may be one rule with other parameters."""

    cell: str
    label: str
    rule: str
    parameters: tuple[tuple[str, float], ...]
    scenario: Scenario
    seed: int


@dataclass(frozen=True, slots=True)
class Row:
    """What a run came to."""

    cell: str
    label: str
    seed: int
    tokens_per_second: float
    """Generated tokens per simulated second."""
    trajectories_per_hour: float
    """Throughput: finished ones, with the progress of those in flight at both ends of the measured time."""
    batches: int
    gpu_hours: float
    borrowed_gpu_hours: float
    trainer_waiting_share: float
    prefilled_per_generated: float
    recomputed_share: float
    """Of the prefilled tokens."""
    changes: int
    """Shapes that the fleet went through."""
    disaggregated_share: float
    """Of the time."""
    mean_age: float | None
    """Versions between first token and consumption; None = no batch was consumed."""
    simulated_seconds: float
    wall_seconds: float
    plan_seconds: float
    note: str = ""
    """Of a bound: what limits."""

    @property
    def tokens_per_gpu_second(self) -> float:
        """How well the GPUs were used."""
        return self.tokens_per_second * self.simulated_seconds / (3600.0 * self.gpu_hours) if self.gpu_hours else 0.0


def simulate(job: Job) -> Row:
    """Runs it. A function of a module, so that it can be sent to another process."""
    rule = rule_of(job.rule, dict(job.parameters))
    return row(job, run(job.scenario, rule, job.seed, rule_name=job.label))


def simulate_all(todo: Sequence[Job], pool: Pool, simulated: Callable[[Job], Row] = simulate) -> list[Row]:
    """A row per job, in their order; of jobs that differ in their names only, one is run."""
    same = [replace(job, cell="", label="", scenario=replace(job.scenario, name="")) for job in todo]
    one_of = dict(zip(same, todo, strict=True))
    made = dict(zip(one_of, pool.map(simulated, list(one_of.values()), "policies"), strict=True))
    return [replace(made[what], cell=job.cell, label=job.label) for what, job in zip(same, todo, strict=True)]


def row(job: Job, result: Result) -> Row:
    """The flat record of a result."""
    seconds = max(result.seconds, 1e-9)
    trajectories = result.extra.get("equivalent_trajectories", float(result.finished_trajectories))
    ages = [age for batch in result.batches for age in batch.ages]
    return Row(
        cell=job.cell,
        label=job.label,
        seed=job.seed,
        tokens_per_second=result.generated_tokens / seconds,
        trajectories_per_hour=3600.0 * trajectories / seconds,
        batches=len(result.batches),
        gpu_hours=sum(result.gpu_seconds.values()) / 3600.0,
        borrowed_gpu_hours=result.gpu_seconds.get("borrowed", 0.0) / 3600.0,
        trainer_waiting_share=result.trainer_waiting_seconds / seconds,
        prefilled_per_generated=result.prefilled_tokens / max(result.generated_tokens, 1),
        recomputed_share=result.recomputed_tokens / max(result.prefilled_tokens, 1),
        changes=len(result.shapes),
        disaggregated_share=disaggregated_share(result, job.scenario.horizon_seconds),
        mean_age=fmean(ages) if ages else None,
        simulated_seconds=result.seconds,
        wall_seconds=result.wall_seconds,
        plan_seconds=result.plan_seconds,
    )


def disaggregated_share(result: Result, end_seconds: float) -> float:
    """Share of the time from the first shape to the end in which the stages were apart."""
    starts = [span.start_seconds for span in result.shapes]
    ends = [*starts[1:], end_seconds]
    lengths = [max(0.0, end - start) for start, end in zip(starts, ends, strict=False)]
    total = sum(lengths)
    apart = sum(
        length for span, length in zip(result.shapes, lengths, strict=False) if span.shape.mode == "Disaggregated"
    )
    return apart / total if total > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows by cell and label, in the order of the seeds."""

    of: dict[tuple[str, str], tuple[Row, ...]]

    def values(self, cell: str, label: str, number: Callable[[Row], float] | None = None) -> list[float]:
        """One number per seed, by default the throughput."""
        return [(number or throughput)(one) for one in self.of[cell, label]]

    def ratio(self, cell: str, mine: str, theirs: str, number: Callable[[Row], float] | None = None) -> Interval:
        """Paired ratio over the seeds."""
        return self.ratio_across(cell, mine, cell, theirs, number)

    def ratio_across(
        self, my_cell: str, mine: str, their_cell: str, theirs: str, number: Callable[[Row], float] | None = None
    ) -> Interval:
        """The same between two cells that met the same trajectories, over the seeds that both have."""
        ours, others = self.values(my_cell, mine, number), self.values(their_cell, theirs, number)
        both = min(len(ours), len(others))  # a shorter run has the first seeds
        return ratio_interval(ours[:both], others[:both])

    def mean(self, cell: str, label: str, number: Callable[[Row], float]) -> float:
        """Over the seeds."""
        return fmean(self.values(cell, label, number))

    def has(self, cell: str, label: str) -> bool:
        """Whether that rule was run there."""
        return (cell, label) in self.of


def rows(found: Iterable[Row]) -> Rows:
    """By cell and label."""
    grouped: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for one in found:
        grouped[one.cell, one.label].append(one)
    return Rows({key: tuple(sorted(group, key=lambda r: r.seed)) for key, group in grouped.items()})


def throughput(one: Row) -> float:
    """Trajectories per hour."""
    return one.trajectories_per_hour


def flat(found: Sequence[Row]) -> tuple[dict[str, Any], ...]:
    """For the JSON file; times of this machine are left out, so that a file can be compared byte by byte."""
    return tuple({k: v for k, v in asdict(one).items() if k not in ("wall_seconds", "plan_seconds")} for one in found)
