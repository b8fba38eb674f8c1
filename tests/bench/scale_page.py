"""What the scale bench measured: figures, table, plot and page."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from figures import in_markdown, quantile
from scale_numbers import cores_between

from pearl_simulator.reporting.plots import save

if TYPE_CHECKING:
    from pathlib import Path

    from figures import Row
    from scale_numbers import Window

MIB = 2**20
TARGETS = {
    "internal_p99_seconds": 1.0,
    "memory_bytes": 512 * MIB,
    "idle_cores": 0.05,
    "idle_api_calls_per_second_per_cr": 1.0,
}
"""At most."""


@dataclass(frozen=True)
class Operated:
    """One operator's run."""

    start_seconds: float
    """Until all pods were Ready; the second operator finds them so."""
    idle: Window
    churn: Window
    """From the first pod that went until all were Ready again."""
    rate: float
    """Pods that went, per second of the churn."""
    whole_seconds: float
    """From the end of the churn until all were Ready."""
    deleted: int
    nodes: int
    noticed: int
    left_behind: int
    replaced: list[float]
    samples: list[tuple[float, float, int]]
    """Seconds since the idle time began, processor seconds so far, bytes."""
    churn_from: float
    churn_to: float

    @property
    def memory_bytes(self) -> int:
        """The most that was seen."""
        return max(memory for _, _, memory in self.samples)

    @property
    def heard_p99(self) -> float:
        """Inside kopf; 0 for an operator without watches."""
        return self.churn.heard.quantile(0.99) or 0.0

    def summary(self, rollouts: int) -> dict[str, Any]:
        """The figures that are compared."""
        return {
            "memory_bytes": self.memory_bytes,
            "idle_cores": self.idle.cores,
            "churn_cores": cores_between(self.samples, self.churn_from, self.churn_to),
            "idle_api_calls_per_second_per_cr": self.idle.calls_per_second / rollouts,
            "api_calls_per_change": self.churn.calls_per_change(self.idle),
            "api_p99_seconds": self.churn.calls.quantile(0.99),
            "replaced_p50_seconds": quantile(self.replaced, 0.5),
            "replaced_p99_seconds": quantile(self.replaced, 0.99),
            "changes": self.churn.changes,
            "changes_per_second": self.rate,
            "noticed": self.noticed,
            "left_behind": self.left_behind,
            "whole_seconds": self.whole_seconds,
        }


@dataclass(frozen=True)
class Measured:
    """One run."""

    nodes: int
    gpus: int
    rollouts: int
    pods: int
    rate: float
    pearl: Operated
    plain: Operated
    cores: int
    load_before: float

    def summary(self) -> dict[str, Any]:
        """The figures that are compared with the targets, and the plain operator's beside them."""
        reacted = self.pearl.churn.reactions.quantile(0.99)
        return {
            "internal_p99_seconds": None if reacted is None else reacted + self.pearl.heard_p99,
            **self.pearl.summary(self.rollouts),
            "plain": self.plain.summary(self.rollouts),
        }

    def missed(self) -> list[str]:
        """Targets that were not reached."""
        found = self.summary()
        return [name for name, most in TARGETS.items() if found[name] is None or found[name] > most]

    @property
    def good(self) -> bool:
        """Whether all targets were reached."""
        return not self.missed()

    def as_dict(self) -> dict[str, Any]:
        """Everything."""
        whole = asdict(self)
        for operated in (whole["pearl"], whole["plain"]):
            for window in (operated["idle"], operated["churn"]):
                for name in ("calls", "reactions", "heard"):
                    counts = window[name]["counts"]
                    window[name] = {f"{bound:g}": count for bound, count in counts.items()}
        return {"summary": self.summary(), **whole}


def rows(measured: Measured) -> list[Row]:
    """What, PEARL's with the target, the plain operator's."""
    summary = measured.summary()
    plain = summary["plain"]

    def pair(what: str, name: str, form: str, target: str = "", scale: float = 1.0) -> Row:
        shown = [_shown(each[name], form, scale) for each in (summary, plain)]
        return what, f"{shown[0]}{f' ({target})' if target else ''}", shown[1]

    pearl = measured.pearl
    return [
        (
            "event received → request sent, p99",
            f"{_shown(summary['internal_p99_seconds'], '.3f')} s (≤ 1)",
            "no events",
        ),
        ("of it inside kopf, p99", f"{pearl.heard_p99:.3f} s", ""),
        pair("call of the API server, p99, s", "api_p99_seconds", ".3f"),
        pair("memory, most, MiB", "memory_bytes", ".0f", "≤ 512", 1 / MIB),
        pair("idle, cores", "idle_cores", ".3f", "< 0.05"),
        pair("idle, calls of the API server per s and rollout", "idle_api_calls_per_second_per_cr", ".2f", "< 1"),
        pair("churn, cores", "churn_cores", ".3f"),
        pair("calls of the API server per pod that went", "api_calls_per_change", ".1f"),
        pair("pod deleted → its successor seen, median, s", "replaced_p50_seconds", ".2f"),
        pair("pod deleted → its successor seen, p99, s", "replaced_p99_seconds", ".2f"),
        pair("pods that went, per s", "changes_per_second", ".1f"),
        pair("pods whose node announced its end", "noticed", "d"),
        pair("of them still there when it ended", "left_behind", "d"),
        pair("all Ready again after the churn, s", "whole_seconds", ".1f"),
        (
            f"{measured.pods} pods Ready after the start, s",
            f"{pearl.start_seconds:.0f}",
            "takes over",
        ),
    ]


def print_table(table: list[Row]) -> None:
    """To the terminal."""
    widths = [max(len(row[column]) for row in table) for column in range(2)]
    for what, pearl, plain in [("", "PEARL (target)", "list and diff"), *table]:
        print(f"{what:{widths[0]}}  {pearl:{widths[1]}}  {plain}")


def _shown(value: float | None, form: str, scale: float = 1.0) -> str:
    return "-" if value is None else format(int(value) if form == "d" else value * scale, form)


def write_page(measured: Measured, folder: Path) -> None:
    """`scale.md` with `scale.png` and `scale.svg`."""
    folder.mkdir(parents=True, exist_ok=True)
    plot(measured, folder)
    missed = ", ".join(f"`{name}`" for name in measured.missed())
    text = TEXT.format(
        table=in_markdown(rows(measured)),
        verdict=f"Missed: {missed}." if missed else "All targets are met.",
        gpus=f"{measured.gpus:,}",
        nodes=f"{measured.nodes:,}",
        pods=f"{measured.pods:,}",
        rate=f"{measured.rate:g}",
        rollouts=measured.rollouts,
        cores=measured.cores,
        load=f"{measured.load_before:.1f}",
    )
    (folder / "scale.md").write_text(text)


def plot(measured: Measured, folder: Path) -> None:
    """How long replacements took, and what the operators used over time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    spread, time = figure.subplots(1, 2)
    for operated, name, colour in ((measured.pearl, "PEARL", "C0"), (measured.plain, "list and diff", "C1")):
        ordered = sorted(operated.replaced)
        spread.step(ordered, [(number + 1) / len(ordered) for number in range(len(ordered))], color=colour, label=name)
        used = [(at, (cpu - cpu0) / (at - at0)) for (at0, cpu0, _), (at, cpu, _) in pairwise(operated.samples)]
        shown = [(at, cores) for at, cores in used if at > 0]
        time.plot([at for at, _ in shown], [cores for _, cores in shown], color=colour, linewidth=1, label=name)
    churn = measured.pearl
    time.axvspan(churn.churn_from, churn.churn_to, color="0.9", zorder=0, label=f"{measured.rate:g} pods/s go")
    spread.set(xscale="log", xlabel="s from a pod's deletion until its successor was seen", ylabel="share of all")
    spread.legend(loc="lower right", frameon=False)
    time.set(xlabel="s since the idle time began", ylabel="cores")
    time.set_ylim(bottom=0)
    time.legend(loc="upper left", frameon=False)
    save(figure, folder, "scale")


TEXT = """# The operator at scale

{nodes} nodes with {gpus} GPUs, {rollouts} PearlRollouts, {pods} worker pods, of which {rate} per second go: four of
five are deleted, the others lose their node after a notice of 15 s. API server, etcd, scheduler and controller manager
are real; kwok plays the kubelets. The operator is the real one in a process of its own, with a resolver that finds one
server playing all agents and gateways. No trajectory runs. Beside it, over the same pods: an operator of 150 lines that
lists each rollout's pods every 2 s, compares and creates. {verdict}

`make bench-scale` repeats it. Every figure of this run: [data/scale.json](data/scale.json).

| | PEARL (target) | list and diff |
|---|---|---|
{table}

![How long replacements took, and what the operators used](scale.png)

*Event received → request sent* is the sum of two 99th percentiles: from the watch's connection to the operator's
handler (inside kopf), and from there to each write that the next look sends (`pearl_reaction_seconds`), without the
time in which that rollout's loop waited for the API server meanwhile. A look also reads gateway and agents; that
counts. Percentiles of calls and reactions are interpolated in their histograms. *Calls per pod that went* leaves out
what the same time without churn has; watches are no calls, and what the scheduler, kwok and the controllers call is
nobody's of the two. All processes share {cores} cores, of which
operators and fakes get what they want first. Load of the machine before the run: {load}; where
others use it too, processor seconds and waits are longer than they would be.
"""
