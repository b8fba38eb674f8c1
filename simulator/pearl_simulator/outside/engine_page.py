"""The page of `engine_check.py`: the engine model against real vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl_planner.engine.calibrate import predicted_seconds
from pearl_planner.engine.step_records import merge
from pearl_simulator.outside.engine_check import MODELS, check, load
from pearl_simulator.reporting.report import Plot, Report, Series, Table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pearl_planner.engine.step_records import Step
    from pearl_simulator.outside.engine_check import Checked

_KINDS = ("decode", "prefill", "mixed")
_MILLISECONDS = 1e3
_MICROSECONDS = 1e6


def engine_report(data: Path) -> Report:
    """The engine model against the recorded files in `data`."""
    checked = [check(load(data, name)) for name in MODELS]
    summary: dict[str, float | int | None] = {}
    for one in checked:
        name = one.recorded.name
        turns = [abs(turn.error) for turn in one.turns if not turn.alone]
        summary[f"{name}_heldout_error"] = one.fitted.heldout_error
        summary[f"{name}_agents_seconds_predicted_over_measured"] = one.total
        summary[f"{name}_turn_error_mean"] = sum(turns) / len(turns)
        summary[f"{name}_turn_error_max"] = max(turns)
    return Report(
        experiment="engine-model",
        title="The engine model against real vLLM",
        about=(
            "Step times recorded inside vLLM 0.32 on a CPU (one thread, float32): the formula of docs/models.md is "
            "fitted to a sweep of batch sizes, contexts, chunks and prefixes, and predicts what it has not seen. "
            "Times are processor time of the engine's computing thread, since other programs ran on the same two "
            "cores; measured turns are without the time in which their engine had no processor."
        ),
        summary=summary,
        tables=(_heldout(checked), _agents(checked), _turns(checked), _constants(checked)),
        plots=(*(_step_plot(one) for one in checked), *(_turn_plot(one) for one in checked)),
        findings=_engine_findings(checked),
        parameters={"models": MODELS, "records": "python -m pearl_worker.record"},
    )


def _heldout(checked: Sequence[Checked]) -> Table:
    rows = []
    for one in checked:
        fitted = one.fitted
        kinds = (fitted.heldout_by_kind.get(kind) for kind in _KINDS)
        name, busy = one.recorded.name, one.recorded.sweep_load
        rows.append((name, fitted.steps, fitted.points, busy, fitted.heldout_error, *kinds))
    columns = ("model", "steps", "different steps", "load average", "error", *_KINDS)
    note = "Half of the different steps fitted, the other half predicted, and the other way round."
    return Table("Mean relative error of steps of the sweep that were left out", columns, tuple(rows), note)


def _agents(checked: Sequence[Checked]) -> Table:
    rows = [(one.recorded.name, kind, *one.by_kind[kind]) for one in checked for kind in _KINDS if kind in one.by_kind]
    columns = ("model", "kind", "different steps", "median predicted / measured", "mean relative error")
    note = "Fitted on the sweep; agents of three turns, colocated and disaggregated, are other work at another time."
    return Table("Steps of agents, predicted from the sweep", columns, tuple(rows), note)


def _turns(checked: Sequence[Checked]) -> Table:
    rows = [
        (
            f"{one.recorded.name}, {turn.phase}",
            turn.load_average,
            _MILLISECONDS * turn.wall,
            _MILLISECONDS * turn.own,
            _MILLISECONDS * turn.predicted,
            "fitted" if turn.alone else f"{100 * turn.error:+.0f} %",
        )
        for one in checked
        for turn in one.turns
    ]
    columns = ("agents", "load average", "by the clock, ms", "measured, ms", "predicted, ms", "error")
    note = (
        "Mean of all turns. One agent alone gives the time of a request and of a hand-over outside of engine steps; "
        "the others are predicted by replaying them step by step."
    )
    return Table("Turns end to end", columns, tuple(rows), note)


def _constants(checked: Sequence[Checked]) -> Table:
    rows = [
        (
            f"{one.recorded.name}, {constant.name}",
            _MICROSECONDS * constant.value,
            None if constant.error is None else _MICROSECONDS * constant.error,
        )
        for one in checked
        for constant in one.fitted.constants
        if constant.identified
    ]
    return Table("Constants, microseconds", ("constant", "value", "standard error"), tuple(rows))


def _step_plot(one: Checked) -> Plot:
    steps = merge(one.recorded.of("colocated", "disaggregated"))
    measured = tuple(_MILLISECONDS * step.seconds for step in steps)
    series = tuple(Series(kind, tuple(_ratio(one, step, kind) for step in steps)) for kind in _KINDS)
    return Plot(
        name=f"{one.recorded.name}-steps",
        title=f"{one.recorded.name}: steps of agents, predicted from the sweep",
        y="predicted / measured",
        series=series,
        x=measured,
        x_label="measured step, ms",
        reference=1.0,
        log_x=True,
        markers=True,
    )


def _ratio(one: Checked, step: Step, kind: str) -> float | None:
    return predicted_seconds(one.fitted.table, step) / step.seconds if step.kind == kind else None


def _turn_plot(one: Checked) -> Plot:
    return Plot(
        name=f"{one.recorded.name}-turns",
        title=f"{one.recorded.name}: mean turn, measured and predicted",
        y="seconds per turn",
        series=(
            Series("measured", tuple(turn.own for turn in one.turns)),
            Series("predicted", tuple(turn.predicted for turn in one.turns)),
        ),
        groups=tuple(turn.phase for turn in one.turns),
        slanted=True,
    )


def _engine_findings(checked: Sequence[Checked]) -> tuple[str, ...]:
    said = []
    for one in checked:
        worst = max((turn for turn in one.turns if not turn.alone), key=lambda turn: abs(turn.error))
        kind, (_, ratio, _) = max(one.by_kind.items(), key=lambda item: abs(item[1][1] - 1))
        said.append(
            f"{one.recorded.name}: the worst turn prediction is {worst.phase} ({100 * worst.error:+.0f} %); the kind "
            f"of step predicted worst is {kind} (median predicted/measured {ratio:.2f})."
        )
    return tuple(said)
