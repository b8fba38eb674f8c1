"""What the flip bench measured: figures, table, plot and page."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from figures import in_markdown, quantile

from pearl_simulator.reporting.plots import save

if TYPE_CHECKING:
    from pathlib import Path

    from figures import Row

TARGET_SECONDS = 0.5


@dataclass(frozen=True)
class Flip:
    """Seconds from the operator's decision."""

    routed: float
    """Until the gateway routed by the new role; a look's length too long at the most."""
    served: float
    """Until the first token in the new role was seen."""


@dataclass(frozen=True)
class Measured:
    """One run."""

    flips: list[Flip]
    answered: int
    """Requests meanwhile; all of them were answered, or the run would have ended."""
    lost_turns: int
    replaced_pods: int
    restarted_engines: int
    cores: int
    load_before: float
    engines: str
    """`vLLM` or `emulated`."""

    @property
    def routed(self) -> list[float]:
        """Of all flips."""
        return [one.routed for one in self.flips]

    @property
    def served(self) -> list[float]:
        """Of all flips."""
        return [one.served for one in self.flips]

    @property
    def good(self) -> bool:
        """Whether the flips cost nobody anything, however long they took."""
        return not (self.lost_turns or self.replaced_pods or self.restarted_engines)

    def summary(self) -> dict[str, Any]:
        """The figures that are compared with the targets."""
        return {
            "routed_p50_seconds": quantile(self.routed, 0.5),
            "routed_p99_seconds": quantile(self.routed, 0.99),
            "flip_p50_seconds": quantile(self.served, 0.5),
            "flip_p99_seconds": quantile(self.served, 0.99),
            "flips": len(self.flips),
            "requests": self.answered,
            "lost_turns": self.lost_turns,
            "replaced_pods": self.replaced_pods,
            "restarted_engines": self.restarted_engines,
        }

    def as_dict(self) -> dict[str, Any]:
        """Everything."""
        return {"summary": self.summary(), **asdict(self)}


def rows(measured: Measured) -> list[Row]:
    """What, measured, target."""

    def shown(seconds: list[float], share: float) -> str:
        value = quantile(seconds, share)
        return "-" if value is None else f"{value * 1000:.0f} ms"

    routed, served = measured.routed, measured.served
    return [
        ("flips, engines", f"{len(measured.flips)}, {measured.engines}", ""),
        ("decision until the gateway routes by the new role, median", shown(routed, 0.5), ""),
        ("decision until the gateway routes by the new role, p99", shown(routed, 0.99), ""),
        ("decision to first token in the new role, median", shown(served, 0.5), ""),
        ("decision to first token in the new role, p99", shown(served, 0.99), "≤ 500 ms"),
        ("longest", shown(served, 1.0), ""),
        ("requests meanwhile, all answered", str(measured.answered), ""),
        ("turns lost", str(measured.lost_turns), "0"),
        ("pods replaced", str(measured.replaced_pods), "0"),
        ("engines restarted", str(measured.restarted_engines), "0"),
        ("cores, load before", f"{measured.cores}, {measured.load_before:.1f}", ""),
    ]


def write_page(measured: Measured, folder: Path) -> None:
    """`flips.md` with `flips.png` and `flips.svg`."""
    plot(measured, folder)
    (folder / "flips.md").write_text(TEXT.format(table=in_markdown(rows(measured)), cores=measured.cores))


def plot(measured: Measured, folder: Path) -> None:
    """How long flips took, one after the other and together."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    spread, order = figure.subplots(1, 2)
    numbers = range(1, len(measured.flips) + 1)
    for seconds, what in ((measured.routed, "routed by the new role"), (measured.served, "first token in it")):
        milliseconds = [1000 * one for one in seconds]
        spread.step(sorted(milliseconds), [number / len(numbers) for number in numbers], label=what)
        order.plot(numbers, milliseconds, ".", markersize=3)
    spread.axvline(1000 * TARGET_SECONDS, color="C3", linestyle=":", linewidth=1)
    spread.set(xlabel="ms from the decision (dotted: target of the p99)", ylabel="share of all flips")
    spread.set_xlim(left=0)
    spread.legend(loc="lower right")
    order.axhline(1000 * TARGET_SECONDS, color="C3", linestyle=":", linewidth=1)
    order.set(xlabel="flip", ylabel="ms from the decision")
    order.set_ylim(bottom=0)
    save(figure, folder, "flips")


TEXT = """# Role flips under load

The real operator, gateway and worker agents on the local cluster, three workers with real vLLM on the CPU, 1P2D and
2P1D in turn: each flip moves one worker. Three streams of requests never stop, and every one of them is answered.
Decision is when the operator wrote the target; the end is when the gateway was seen (at a look every 50 ms) to have
the first token that the worker served in its new role. Until the gateway routes by the new role is PEARL's own share:
the role's label and epoch at the API server, and the gateway's watch. The rest is what the old role still had to do,
the next request that comes to the router, and the engine's time for its prefill or hand-off and first step.

`make bench-flips` repeats it. Every single figure of this run: [data/flips.json](data/flips.json).

| | measured | target |
|---|---|---|
{table}

All of it, with the API server, etcd, kubelets, Prometheus, three engines and the clients, shares {cores} cores: on
them a request of these streams takes 0.3 to 0.6 s also where nothing flips, and 0.15 s where it is the only one.

![How long flips took](flips.png)
"""
