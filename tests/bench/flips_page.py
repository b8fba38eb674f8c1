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
class Measured:
    """One run."""

    seconds: list[float]
    """Of each flip, from the decision to the first token in the new role."""
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
    def good(self) -> bool:
        """Whether the flips cost nobody anything, however long they took."""
        return not (self.lost_turns or self.replaced_pods or self.restarted_engines)

    def summary(self) -> dict[str, Any]:
        """The figures that are compared with the targets."""
        return {
            "flip_p50_seconds": quantile(self.seconds, 0.5),
            "flip_p99_seconds": quantile(self.seconds, 0.99),
            "flips": len(self.seconds),
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

    def shown(share: float) -> str:
        value = quantile(measured.seconds, share)
        return "-" if value is None else f"{value * 1000:.0f} ms"

    return [
        ("flips, engines", f"{len(measured.seconds)}, {measured.engines}", ""),
        ("decision to first token in the new role, median", shown(0.5), ""),
        ("decision to first token in the new role, p99", shown(0.99), "≤ 500 ms"),
        ("longest", shown(1.0), ""),
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
    ordered = sorted(measured.seconds)
    spread.step([1000 * one for one in ordered], [(number + 1) / len(ordered) for number in range(len(ordered))])
    spread.axvline(1000 * TARGET_SECONDS, color="C3", linestyle=":", linewidth=1)
    spread.set(xlabel="ms from decision to first token (dotted: target of the p99)", ylabel="share of all flips")
    spread.set_xlim(left=0)
    order.plot(range(1, len(measured.seconds) + 1), [1000 * one for one in measured.seconds], ".", markersize=3)
    order.axhline(1000 * TARGET_SECONDS, color="C3", linestyle=":", linewidth=1)
    order.set(xlabel="flip", ylabel="ms from decision to first token")
    order.set_ylim(bottom=0)
    save(figure, folder, "flips")


TEXT = """# Role flips under load

The real operator, gateway and worker agents on the local cluster, three workers with real vLLM on the CPU, 1P2D and
2P1D in turn: each flip moves one worker. Three streams of requests never stop, and every one of them is answered.
Decision is when the operator wrote the target; the end is when the gateway was seen (at a look every 20 ms) to have
the first token that the worker served in its new role. In between: the role's label and epoch, the agent's and the
gateway's acknowledgement, what the old role still had to do, the next request that the router sends there, and its
prefill or hand-off.

`make bench-flips` repeats it. Every single figure of this run: [data/flips.json](data/flips.json).

| | measured | target |
|---|---|---|
{table}

What is measured ends with a token, so an engine's own time for a prompt and its first step is in it; and all of it,
with the API server, etcd, kubelets, Prometheus and three engines, shares {cores} cores. What of it is PEARL's alone is
not separated yet.

![How long flips took](flips.png)
"""
