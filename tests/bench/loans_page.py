"""What the loan bench measured: figures, table, plot and page."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from figures import in_markdown, quantile

from pearl_simulator.reporting.plots import save

if TYPE_CHECKING:
    from pathlib import Path

    from figures import Row
    from loans_trainers import Trainer

OVERHEAD_TARGET = 0.2
GRANT_TARGET = 0.1


@dataclass(frozen=True)
class Measured:
    """One run."""

    sets: int
    seconds: float
    grants: list[float]
    reclaims: list[tuple[float, float, float]]
    """When, total seconds, the engine's own seconds."""
    refusals: dict[str, int]
    not_returned: list[str]
    """What each said."""
    double_holders: int
    operator_cpu_seconds: float
    trainers_cpu_seconds: float
    cores: int = 0
    load_before: float = 0.0

    @classmethod
    def of(cls, trainers: list[Trainer], *, began: float, **figures: float) -> Measured:
        """Puts the trainers' notes together."""
        refusals: Counter[str] = Counter()
        for trainer in trainers:
            refusals.update(trainer.refusals)
        return cls(
            sets=len(trainers),
            grants=[seconds for trainer in trainers for seconds in trainer.grants],
            reclaims=sorted((at - began, total, own) for one in trainers for at, total, own in one.reclaims),
            refusals=dict(refusals),
            not_returned=[problem for trainer in trainers for problem in trainer.not_returned],
            double_holders=sum(trainer.double_holders for trainer in trainers),
            **figures,  # type: ignore[arg-type]
        )

    def with_machine(self, *, cores: int, load_before: float) -> Measured:
        """Where it was measured."""
        return replace(self, cores=cores, load_before=load_before)

    @property
    def overheads(self) -> list[float]:
        """Of every reclaim, beyond the engine's own time."""
        return [max(total - own, 0.0) for _, total, own in self.reclaims]

    def summary(self) -> dict[str, Any]:
        """The figures that are compared with the targets."""
        return {
            "protocol_overhead_p50_seconds": quantile(self.overheads, 0.5),
            "protocol_overhead_p99_seconds": quantile(self.overheads, 0.99),
            "grant_p50_seconds": quantile(self.grants, 0.5),
            "grant_p99_seconds": quantile(self.grants, 0.99),
            "not_returned": len(self.not_returned),
            "double_holders": self.double_holders,
            "reclaims": len(self.reclaims),
            "grants": len(self.grants),
            "refusals": self.refusals,
            "gpu_sets": self.sets,
        }

    def as_dict(self) -> dict[str, Any]:
        """Everything."""
        return {"summary": self.summary(), **asdict(self)}


def rows(measured: Measured) -> list[Row]:
    """What, measured, target."""
    figures = measured.summary()

    def shown(name: str) -> str:
        value = figures[name]
        return "-" if value is None else f"{value * 1000:.0f} ms"

    whole = [total for _, total, _ in measured.reclaims]
    own = [each for _, _, each in measured.reclaims]
    return [
        ("GPU sets, churning", f"{measured.sets}, {measured.seconds:.0f} s", ""),
        ("reclaims, grants", f"{figures['reclaims']}, {figures['grants']}", ""),
        ("protocol overhead of a reclaim, median", shown("protocol_overhead_p50_seconds"), ""),
        ("protocol overhead of a reclaim, p99", shown("protocol_overhead_p99_seconds"), "≤ 200 ms"),
        ("whole reclaim, mean", f"{statistics.fmean(whole or [0]) * 1000:.0f} ms", ""),
        ("of it the engine's own sleep or kill, mean", f"{statistics.fmean(own or [0]) * 1000:.0f} ms", ""),
        ("grant, median", shown("grant_p50_seconds"), ""),
        ("grant, p99", shown("grant_p99_seconds"), "≤ 100 ms"),
        ("not returned", str(len(measured.not_returned)), "0"),
        ("GPUs with two holders", str(measured.double_holders), "0"),
        ("refused offers", ", ".join(f"{name} {n}" for name, n in sorted(measured.refusals.items())) or "none", ""),
        ("CPU of the operator", f"{measured.operator_cpu_seconds / measured.seconds * 100:.0f} % of a core", ""),
        ("CPU of trainers and agents", f"{measured.trainers_cpu_seconds / measured.seconds * 100:.0f} % of a core", ""),
        ("cores, load before", f"{measured.cores}, {measured.load_before:.1f}", ""),
    ]


def write_page(measured: Measured, folder: Path) -> None:
    """`loans.md` with `loans.png` and `loans.svg`."""
    plot(measured, folder)
    table = in_markdown(rows(measured))
    (folder / "loans.md").write_text(TEXT.format(table=table, sets=measured.sets))


def plot(measured: Measured, folder: Path) -> None:
    """How the overheads and grants are spread, and the overhead over time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    spread, time = figure.subplots(1, 2)
    for values, name, target, colour in (
        (measured.overheads, "reclaim, beyond the engine", OVERHEAD_TARGET, "C0"),
        (measured.grants, "grant", GRANT_TARGET, "C1"),
    ):
        ordered = sorted(values)
        share = [(number + 1) / len(ordered) for number in range(len(ordered))]
        spread.step([1000 * one for one in ordered], share, color=colour, label=name)
        spread.axvline(1000 * target, color=colour, linestyle=":", linewidth=1)
    spread.set(xscale="log", xlabel="ms (dotted: target of the 99th percentile)", ylabel="share of all")
    spread.legend(loc="lower right", frameon=False)
    time.plot([at for at, _, _ in measured.reclaims], [1000 * one for one in measured.overheads], ".", markersize=2)
    time.set(xlabel="s since the start", ylabel="overhead of a reclaim, ms")
    save(figure, folder, "loans")


TEXT = """# The loan protocol with {sets} GPU sets churning

Each GPU set is a trainer with the real SDK, a borrower pod with the real worker agent, and an emulated engine. All of
them lend, serve for 2 to 8 s, take their GPU back and train for 1.5 to 4 s, again and again. The operator is the real
one (core, planner, loan service) in a process of its own, over an in-memory API server that takes 5 ms for a write;
SDKs, agents and operator talk real HTTP over the loopback. Emulated engines start in 2 to 4 s, wake in 0.5 to 1.5 s,
sleep in 0.1 to 0.6 s and die in 0.2 to 0.5 s; one reclaim in a hundred meets an engine that does not sleep and is
killed before the deadline.

`make bench-loans` repeats it. Every single figure of this run: [data/loans.json](data/loans.json).

| | measured | target |
|---|---|---|
{table}

*Protocol overhead* is what `reclaim()` took less what the engine itself took to sleep or to be killed: two requests'
way, the agent's turn, aborting what was inside, reading the device. *Grant* is `lend()` at the trainer, from call to
answer: the planner's rule, the write of the new epoch, and the agents' acceptance. *Two holders* counts every moment in
which trainer and engine had the same GPU, *not returned* every `NotReturned`.

All SDKs and agents share one core and the operator has another; on a cluster each trainer and each agent has its own.
What is measured is therefore the protocol plus the queueing of {sets} of each on one core, and of whatever else the
machine does: `load before` above the number of cores means that it was shared.

![How overheads and grants are spread, and the overhead over time](loans.png)
"""
