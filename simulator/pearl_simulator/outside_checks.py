"""Pages of the checks that do not rest on this project's own simulator: real vLLM, and an independent replay.

    python -m pearl_simulator.outside_checks engine-model cliff --out docs/results

Reads `data/` in that folder, writes each page with its plots, and the report as JSON into `data/`.
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from pearl_planner.calibrate import predicted_seconds
from pearl_planner.step_records import merge
from pearl_simulator import cliff
from pearl_simulator.engine_check import MODELS, check, load
from pearl_simulator.pages import explanation, markdown_page
from pearl_simulator.plots import draw
from pearl_simulator.report import Plot, Report, Series, Table, to_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pearl_planner.step_records import Step
    from pearl_simulator.engine_check import Checked

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


def cliff_report(data: Path) -> Report:
    """The simulator against the independent replay; `data` is not needed."""
    del data
    sessions = cliff.sessions()
    ours = {cell.shape: cell for cell in (cliff.simulate(shape, sessions) for shape in cliff.SHAPES)}
    names = [cliff.shape_name(shape) for shape in cliff.SHAPES]
    predicted = {cliff.shape_name(shape): cliff.predicted_seconds(shape, sessions) for shape in cliff.SHAPES}
    predicted_best = min(names, key=predicted.__getitem__)
    best_pair = min(names[:-1], key=lambda name: ours[name].seconds)
    replayed = {name: cliff.REPLAYED[name, cliff.STICKY] for name in names}
    return Report(
        experiment="cliff",
        title="The prefix-cache cliff, against an independent replay",
        about=(
            f"200 recorded agent sessions (4,902 turns), at most {cliff.CONCURRENCY} at once, on 8 H200 GPUs with "
            "Qwen3-8B: this simulator beside NVIDIA Dynamo's offline replay of the same sessions with the same step "
            "times, KV room (12,226 blocks of 64 tokens per GPU) and link (50 GB/s). Batching, caching and routing of "
            "the replay are its own."
        ),
        summary={
            "cliff_factor": ours["2P6D"].seconds / ours["4P4D"].seconds,
            "best_pair_is_4p4d": int(best_pair == "4P4D"),
            "error_median": sorted(abs(ours[n].seconds / replayed[n][0] - 1) for n in names)[len(names) // 2],
            "planner_loss": ours[predicted_best].seconds / min(cell.seconds for cell in ours.values()) - 1,
            "order_agrees": int(_order(names, ours) == sorted(names, key=lambda name: replayed[name][0])),
        },
        tables=(_cliff_table(names, ours, predicted),),
        plots=(_cliff_plot(names, ours),),
        findings=(
            (
                f"With two prefill workers the live contexts do not fit their KV; the sessions take "
                f"{ours['2P6D'].seconds / ours['4P4D'].seconds:.1f} times as long as in 4P4D "
                f"({replayed['2P6D'][0] / replayed['4P4D'][0]:.1f} in the replay)."
            ),
            (
                "Which of 4P4D and colocated is first depends on routing, not on the engine: the default router of "
                "the replay moves sessions to idler workers and loses KV (reuse 0.71); made to charge more for cold "
                "prompts it agrees with this simulator, whose sessions stick, that colocated is first."
            ),
            (
                f"The planner's predictor chooses {predicted_best} and sees the cliff at 2P6D, but not that 3P5D is "
                f"close to it: it expects {predicted['3P5D']:.0f} s, it takes {ours['3P5D'].seconds:.0f} s."
            ),
        ),
        parameters={"kv_tokens": cliff.KV_TOKENS, "concurrency": cliff.CONCURRENCY, "sessions": cliff.SESSIONS},
    )


def _order(names: Sequence[str], ours: dict[str, cliff.Cell]) -> list[str]:
    return sorted(names, key=lambda name: ours[name].seconds)


def _cliff_table(names: Sequence[str], ours: dict[str, cliff.Cell], predicted: dict[str, float]) -> Table:
    rows = tuple(
        (
            name,
            ours[name].seconds,
            ours[name].reuse,
            predicted[name],
            *cliff.REPLAYED[name, cliff.STICKY],
            *cliff.REPLAYED[name, cliff.DEFAULT],
            *cliff.PUBLISHED[name],
        )
        for name in names
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
    return Table("Seconds until the last session ended", columns, rows, note)


def _cliff_plot(names: Sequence[str], ours: dict[str, cliff.Cell]) -> Plot:
    return Plot(
        name="seconds",
        title="200 agent sessions on 8 GPUs",
        y="seconds until the last ended",
        series=(
            Series("here", tuple(ours[name].seconds for name in names)),
            Series("replay, sticky", tuple(cliff.REPLAYED[name, cliff.STICKY][0] for name in names)),
            Series("replay, default", tuple(cliff.REPLAYED[name, cliff.DEFAULT][0] for name in names)),
            Series("replay, own steps", tuple(cliff.PUBLISHED[name][0] for name in names)),
        ),
        groups=tuple(names),
    )


REPORTS = {"engine-model": engine_report, "cliff": cliff_report}


def main() -> int:
    """Write the pages asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("names", nargs="*", default=list(REPORTS), metavar="PAGE", help=", ".join(REPORTS))
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    if unknown := set(options.names) - set(REPORTS):
        parser.error(f"no page {', '.join(sorted(unknown))}: choose from {', '.join(REPORTS)}")
    for name in options.names:
        report = REPORTS[name](options.out / "data")
        command = f"python -m pearl_simulator.outside_checks {name}"
        draw(report, options.out)
        text = markdown_page(report, version("pearl-operator"), command, explanation(options.out, name))
        (options.out / f"{name}.md").write_text(text)
        (options.out / "data" / f"{name}.json").write_text(
            to_json(report, version=version("pearl-operator"), command=command)
        )
        sys.stdout.write(f"{options.out / name}.md\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
