"""The engine model against real vLLM: step times and turn times, fitted on one part of the records, tested on others.

Reads what `python -m pearl_worker.record` wrote (it ships in `docs/results/data`); `engine_page.py` makes the page.
Three tests, each on what the fit has not seen: the other half of the sweep; the steps of agents with several turns,
colocated and disaggregated; and how long those turns took from outside.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from statistics import mean, median
from typing import TYPE_CHECKING, Any

from pearl_planner.engine.calibrate import calibrate, predicted_seconds
from pearl_planner.engine.step_records import Step, merge, parse_steps, read_lines
from pearl_planner.engine.tables import load_table
from pearl_simulator.outside.step_replay import Asked, Setup, turn_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pearl_planner.engine.calibrate import Calibrated

MODELS = {"smollm2": "SmolLM2-135M/cpu", "tiny": "tiny/cpu"}
"""Recorded name → the shipped table that the fit starts from."""
TIME = "cpu_seconds"
"""Recorded on machines with other work: processor time of the engine's only computing thread."""


@dataclass(frozen=True, slots=True)
class Raw:
    """One recorded step as the file has it."""

    phase: str
    engine: int
    began: float
    ended: float
    lost_seconds: float
    """Of it, without a processor although there was work."""
    step: Step


@dataclass(frozen=True, slots=True)
class TurnPhase:
    """Agents that ran together: what was asked and how long each turn took."""

    name: str
    disaggregated: bool
    load_average: float
    asked: list[list[Asked]]
    wall_seconds: list[list[float]]
    own_seconds: list[list[float]]
    """Without the time in which the engine that worked on the turn had no processor."""
    step_seconds: list[list[float]]
    """Of `own_seconds`, inside engine steps."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """All of one model."""

    name: str
    steps: list[Raw]
    turns: list[TurnPhase]
    sweep_load: float

    def of(self, *phases: str) -> list[Step]:
        """Steps of the phases whose names start so."""
        return [raw.step for raw in self.steps if raw.phase.startswith(phases)]


def load(folder: Path, name: str) -> Recorded:
    """Raises CalibrationError or OSError where files are missing or wrong."""
    path = folder / f"{name}-steps.jsonl.gz"
    lines = read_lines(path)
    timed = parse_steps(lines, path.name, TIME)
    raws = [_raw(json.loads(line), step) for line, step in zip(lines, timed, strict=True)]
    phases = json.loads((folder / f"{name}-turns.json").read_text())["phases"]
    turns = [_turn_phase(phase, raws) for phase in phases if "agents" in phase]
    return Recorded(name, raws, turns, next(p["load_average"] for p in phases if p["phase"] == "sweep"))


def _raw(data: dict[str, Any], step: Step) -> Raw:
    lost = max(0.0, data["seconds"] - data["cpu_seconds"])
    return Raw(data["phase"], data["engine"], data["at"] - data["seconds"], data["at"], lost, step)


def _turn_phase(phase: dict[str, Any], raws: Sequence[Raw]) -> TurnPhase:
    mine = [raw for raw in raws if raw.phase == phase["phase"]]
    disaggregated = phase["mode"] == "disaggregated"
    asked, wall, own, inside = [], [], [], []
    for agent in phase["agents"]:
        asked.append([Asked(turn["context"], turn["generated"], turn["environment"]) for turn in agent])
        wall.append([turn["ended"] - turn["started"] for turn in agent])
        spans = [_spans(turn, disaggregated=disaggregated) for turn in agent]
        lost = [sum(_share(raw, *span) * raw.lost_seconds for span in part for raw in mine) for part in spans]
        own.append([seconds - gone for seconds, gone in zip(wall[-1], lost, strict=True)])
        inside.append([sum(_share(raw, *span) * raw.step.seconds for span in part for raw in mine) for part in spans])
    return TurnPhase(phase["phase"], disaggregated, phase["load_average"], asked, wall, own, inside)


def _spans(turn: dict[str, Any], *, disaggregated: bool) -> list[tuple[int, float, float]]:
    """(engine, from, to) of a turn."""
    if not disaggregated:
        return [(0, turn["started"], turn["ended"])]
    return [(0, turn["started"], turn["handed_over"]), (1, turn["handed_over"], turn["ended"])]


def _share(raw: Raw, engine: int, began: float, ended: float) -> float:
    """Share of a step that lies in a span of its engine."""
    if raw.engine != engine or raw.ended <= raw.began:
        return 0.0
    return max(0.0, min(raw.ended, ended) - max(raw.began, began)) / (raw.ended - raw.began)


@dataclass(frozen=True, slots=True)
class TurnError:
    """One phase: mean seconds per turn, measured and predicted."""

    phase: str
    load_average: float
    wall: float
    own: float
    predicted: float

    @property
    def alone(self) -> bool:
        """One agent: gave the request and hand-over times, so it is no test."""
        return self.phase.endswith("-1")

    @property
    def error(self) -> float:
        """Relative, signed."""
        return self.predicted / self.own - 1.0


@dataclass(frozen=True, slots=True)
class Checked:
    """One model: the fit and its errors on what it has not seen."""

    recorded: Recorded
    fitted: Calibrated
    by_kind: dict[str, tuple[int, float, float]]
    """Agents' steps by kind: different steps, median of predicted/measured, mean relative error."""
    total: float
    """Predicted over measured seconds of all those steps."""
    turns: tuple[TurnError, ...]


def check(recorded: Recorded) -> Checked:
    """Fit the sweep, predict the agents."""
    fitted = calibrate(recorded.of("sweep"), load_table(MODELS[recorded.name]), name=recorded.name)
    others = recorded.of("colocated", "disaggregated")
    ratios: dict[str, list[float]] = {}
    for step in merge(others):
        ratios.setdefault(step.kind, []).append(predicted_seconds(fitted.table, step) / step.seconds)
    by_kind = {
        kind: (len(found), median(found), mean(abs(ratio - 1) for ratio in found)) for kind, found in ratios.items()
    }
    total = sum(predicted_seconds(fitted.table, step) for step in others) / sum(step.seconds for step in others)
    return Checked(recorded, fitted, by_kind, total, tuple(_turn_errors(recorded, fitted)))


def _turn_errors(recorded: Recorded, fitted: Calibrated) -> list[TurnError]:
    """Requests and hand-overs are timed on the agents that ran alone; the phases with more agents are predicted."""
    alone = {phase.disaggregated: phase for phase in recorded.turns if len(phase.asked) == 1}
    request = median(_outside(alone[False]))
    both = median(_outside(alone[True]))
    setup = Setup(fitted.table, disaggregated=False, request_seconds=max(request, 0.0))
    errors = []
    for phase in recorded.turns:
        handover = max(both - request, 0.0) if phase.disaggregated else 0.0
        predicted = turn_seconds(
            phase.asked, replace(setup, disaggregated=phase.disaggregated, handover_seconds=handover)
        )
        errors.append(
            TurnError(
                phase.name,
                phase.load_average,
                _mean_of(phase.wall_seconds),
                _mean_of(phase.own_seconds),
                _mean_of(predicted),
            )
        )
    return errors


def _outside(phase: TurnPhase) -> list[float]:
    """Seconds of each turn that no engine step explains."""
    pairs = zip(phase.own_seconds[0], phase.step_seconds[0], strict=True)
    return [own - inside for own, inside in pairs]


def _mean_of(values: Sequence[Sequence[float]]) -> float:
    return mean([value for agent in values for value in agent])
