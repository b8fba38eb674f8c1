"""The page of `cliff.py`: the simulator and the predictor beside an independent replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pearl_simulator.outside import cliff
from pearl_simulator.reporting.report import Plot, Report, Series, Table

if TYPE_CHECKING:
    from pathlib import Path

_SHAPES = tuple(cliff.shape_name(shape) for shape in cliff.SHAPES)
_ROUTING_FINDING = (
    "Which of 4P4D and colocated is first depends on routing, not on the engine: the default router of the replay "
    "moves sessions to idler workers and loses KV (reuse 0.7); made to charge more for cold prompts it agrees with "
    "this simulator, whose sessions stick, that colocated is first."
)


@dataclass(frozen=True, slots=True)
class _Swept:
    """One model in every shape."""

    reference: cliff.Reference
    ours: dict[str, cliff.Cell]
    predicted: dict[str, float]

    @property
    def order(self) -> list[str]:
        """Shapes, the fastest first."""
        return sorted(_SHAPES, key=lambda name: self.ours[name].seconds)


def cliff_report(data: Path) -> Report:
    """The simulator against the independent replay; `data` is not needed."""
    del data
    sessions = cliff.sessions()
    swept = [_Swept(one, *_sweep(one, sessions)) for one in cliff.references()]
    summary: dict[str, float | int | None] = {}
    for one in swept:
        key = one.reference.model.rpartition("/")[2].lower().replace("-", "_")
        times = [one.ours[name].seconds for name in _SHAPES]
        errors = sorted(abs(one.ours[name].seconds / one.reference.sticky[name][0] - 1) for name in _SHAPES)
        choice = min(_SHAPES, key=one.predicted.__getitem__)
        summary[f"{key}_cliff_factor"] = one.ours["2P6D"].seconds / one.ours["4P4D"].seconds
        summary[f"{key}_error_median"] = errors[len(errors) // 2]
        summary[f"{key}_error_max"] = errors[-1]
        summary[f"{key}_order_agrees"] = int(one.order == sorted(_SHAPES, key=lambda n: one.reference.sticky[n][0]))
        summary[f"{key}_planner_loss"] = one.ours[choice].seconds / min(times) - 1
    return Report(
        experiment="cliff",
        title="The prefix-cache cliff, against an independent replay",
        about=(
            f"200 recorded agent sessions (4,902 turns), at most {cliff.CONCURRENCY} at once, on 8 H200 GPUs: this "
            "simulator beside NVIDIA Dynamo's offline replay of the same sessions with the same step times, KV room "
            "and link (50 GB/s). Batching, caching and routing of the replay are its own."
        ),
        summary=summary,
        tables=tuple(_cliff_table(one) for one in swept),
        plots=tuple(_cliff_plot(one) for one in swept),
        findings=(*(_cliff_finding(one) for one in swept), _ROUTING_FINDING),
        parameters={"concurrency": cliff.CONCURRENCY, "sessions": cliff.SESSIONS},
    )


def _sweep(one: cliff.Reference, sessions: cliff.Sessions) -> tuple[dict[str, cliff.Cell], dict[str, float]]:
    ours = {cell.shape: cell for cell in (cliff.simulate(one, shape, sessions) for shape in cliff.SHAPES)}
    predicted = {cliff.shape_name(shape): cliff.predicted_seconds(one, shape, sessions) for shape in cliff.SHAPES}
    return ours, predicted


def _cliff_finding(one: _Swept) -> str:
    ours, replayed, predicted = one.ours, one.reference.sticky, one.predicted
    choice = min(_SHAPES, key=predicted.__getitem__)
    return (
        f"{one.reference.model}: with two prefill workers the live contexts do not fit their KV; the sessions take "
        f"{ours['2P6D'].seconds / ours['4P4D'].seconds:.1f} times as long as in 4P4D "
        f"({replayed['2P6D'][0] / replayed['4P4D'][0]:.1f} in the replay). The predictor chooses {choice} and "
        f"sees that cliff, but not how close 3P5D is to it: it expects {predicted['3P5D']:.0f} s, the simulator takes "
        f"{ours['3P5D'].seconds:.0f} s."
    )


def _cliff_table(one: _Swept) -> Table:
    known = one.reference
    rows = tuple(
        (
            name,
            one.ours[name].seconds,
            one.ours[name].reuse,
            one.predicted[name],
            *known.sticky[name],
            *known.default[name],
            *known.published[name],
        )
        for name in _SHAPES
    )
    columns = (
        "shape",
        "here, s",
        "reuse",
        "planner, s",
        "replay, sticky, s",
        "reuse",
        "replay, s",
        "reuse",
        "its own steps, s",
        "reuse",
    )
    note = (
        "Reuse: share of prompt tokens that were not computed. Planner: its steady state, without the tail. Replay: "
        "`ai-dynamo-runtime` 1.5.1 with this project's step times, its router charging 16 times (sticky) or once (its "
        "default) for cold prompts; last, its default with the step times of `aiconfigurator-core` 0.12.0."
    )
    return Table(f"{known.model}, seconds until the last session ended", columns, rows, note)


def _cliff_plot(one: _Swept) -> Plot:
    known = one.reference
    bars = {"replay, sticky": known.sticky, "replay, default": known.default, "replay, own steps": known.published}
    return Plot(
        name=known.model.rpartition("/")[2].lower(),
        title=f"{known.model}: 200 agent sessions on 8 GPUs",
        y="seconds until the last ended",
        series=(
            Series("here", tuple(one.ours[name].seconds for name in _SHAPES)),
            *(Series(label, tuple(found[name][0] for name in _SHAPES)) for label, found in bars.items()),
        ),
        groups=_SHAPES,
    )
