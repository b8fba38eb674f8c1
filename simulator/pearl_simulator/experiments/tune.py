"""`pearl-sim tune`: the baselines' parameters and the schedules of hindsight, found on training seeds.

Writes `tuned.json` beside this file, which the other experiments read. Training seeds lie below the reported ones.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from math import log
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pearl_simulator.errors import InputError
from pearl_simulator.experiments.cells import CALIBRATIONS, SHORT, Cell, cells, scenario
from pearl_simulator.experiments.common import Job, rows, simulate, throughput
from pearl_simulator.experiments.policies import POLICIES, TUNED, fleet_of
from pearl_simulator.experiments.setting import REPORT_SEEDS
from pearl_simulator.reporting.report import Report, Table
from pearl_simulator.rules import tunables
from pearl_simulator.rules.hindsight import Candidate, Found, clairvoyant, static_best

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pearl_simulator.experiments.common import Row, Rows
    from pearl_simulator.experiments.policies import Policy
    from pearl_simulator.experiments.setting import Setting
    from pearl_simulator.types import Scenario

FIRST_SEED = 100
SEEDS = 1
HINDSIGHT_SECONDS = 4800.0
PLACES = (("8B", "S2"), ("30B-A3B", "S1"))
"""(model, segment) that parameters are tuned on."""
ABOUT = (
    "Each baseline's parameters, one after the other, on two of the six cells, by the geometric mean of its "
    "throughput, per calibration; and per cell the best fixed proportion and the best schedule."
)
Parameters = tuple[tuple[str, float], ...]


def run(setting: Setting, simulated: Callable[[Job], Row] = simulate) -> Report:
    """Writes the file and tells what was chosen.

    Raises:
        InputError: the seeds are those of the reported results.
    """
    first = FIRST_SEED if setting.seed == REPORT_SEEDS else setting.seed
    seeds = tuple(range(first, first + (setting.seeds or SEEDS)))
    if seeds[-1] >= REPORT_SEEDS:
        raise InputError(f"--seed: training seeds must lie below {REPORT_SEEDS}; give a smaller one")
    chosen = _tuned(setting, seeds, simulated)
    hindsight = _hindsight(setting, seeds, simulated)
    body = {"command": f"pearl-sim tune --seed {first} --seeds {len(seeds)}", "seeds": seeds, "rules": chosen}
    path = Path(__file__).with_name(TUNED)
    path.write_text(json.dumps({**body, "hindsight": hindsight}, indent=1) + "\n")
    return Report(
        experiment="tune",
        title="Tuned baselines",
        about=ABOUT,
        summary={"rules": len(chosen), "cells": len(hindsight)},
        tables=(_rules_table(chosen), _hindsight_table(hindsight)),
        seeds=seeds,
        parameters={"seconds": SHORT},
    )


def _tuned(
    setting: Setting, seeds: Sequence[int], simulated: Callable[[Job], Row]
) -> dict[str, dict[str, dict[str, float]]]:
    """Rule → calibration → parameters, one parameter after the other in the order of the rule's grid."""
    policies = [policy for policy in POLICIES if tunables(policy.rule)]
    chosen = {(policy, calibration): first(policy.rule) for policy in policies for calibration in CALIBRATIONS}
    for turn in range(max(len(tunables(policy.rule)) for policy in policies)):
        tried = {place: others(place[0].rule, known, turn) for place, known in chosen.items()}
        todo = [job for place, grid in tried.items() for parameters in grid for job in _jobs(*place, parameters, seeds)]
        found = rows(setting.pool.map(simulated, todo, f"parameter {turn + 1}"))
        for (policy, calibration), grid in tried.items():
            scores = [_score(found, policy.rule, calibration, parameters) for parameters in grid]
            chosen[policy, calibration] = grid[max(range(len(grid)), key=lambda i: scores[i])]
    result: dict[str, dict[str, dict[str, float]]] = {}
    for (policy, calibration), parameters in chosen.items():
        result.setdefault(policy.rule, {})[calibration] = dict(parameters)
    return result


def first(rule: str) -> Parameters:
    """The middle value of every parameter."""
    return tuple((name, values[len(values) // 2]) for name, values in tunables(rule).items())


def others(rule: str, known: Parameters, turn: int) -> list[Parameters]:
    """The same with every value of parameter number `turn`; the same alone where the rule has fewer."""
    grid = list(tunables(rule).items())
    if turn >= len(grid):
        return [known]
    name, values = grid[turn]
    return [tuple((key, value if key == name else old) for key, old in known) for value in values]


def _score(found: Rows, rule: str, calibration: str, parameters: Parameters) -> float:
    """Geometric mean of the throughput over the places."""
    label = _label(rule, parameters)
    values = [value for cell in _places(calibration) for value in found.values(cell.key, label)]
    return fmean(log(max(value, 1e-9)) for value in values)


def _places(calibration: str) -> tuple[Cell, ...]:
    return tuple(Cell(model, segment, calibration) for model, segment in PLACES)


def _jobs(policy: Policy, calibration: str, parameters: Parameters, seeds: Sequence[int]) -> list[Job]:
    label = _label(policy.rule, parameters)
    return [
        Job(cell.key, label, policy.rule, parameters, fleet_of(policy, cell, training_scenario(cell)), seed)
        for cell in _places(calibration)
        for seed in seeds
    ]


def _label(rule: str, parameters: Parameters) -> str:
    return f"{rule} {parameters}"


def training_scenario(cell: Cell) -> Scenario:
    """The cell, shorter than what is reported."""
    return scenario(cell, quick=False, length=SHORT)


@dataclass(frozen=True, slots=True)
class _Search:
    """A cell to search with hindsight; sent to another process as a whole."""

    cell: Cell
    seeds: tuple[int, ...]


def _hindsight(
    setting: Setting, seeds: Sequence[int], simulated: Callable[[Job], Row]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Cell → label → candidate; the schedules, which need the most runs, under `paper` alone."""
    where = [cell for calibration in CALIBRATIONS for cell in cells(calibration)]
    searches = [_Search(cell, tuple(seeds)) for cell in where]
    del simulated  # a search is made in one process with the real simulator
    found = setting.pool.map(search, searches, "hindsight")
    return {cell.key: one for cell, one in zip(where, found, strict=True)}


def search(what: _Search) -> dict[str, dict[str, Any]]:
    """`static-best` and `schedule` of a cell. A function of a module, so that it can be sent to another process."""
    base = replace(scenario(what.cell, quick=False), horizon_seconds=HINDSIGHT_SECONDS)
    known: dict[Candidate, float] = {}

    def score(candidates: Sequence[Candidate], /) -> list[float]:
        for one in candidates:
            if one not in known:
                known[one] = fmean(_one(what.cell, base, one, seed) for seed in what.seeds)
        return [known[one] for one in candidates]

    if what.cell.calibration == "clean":
        return {"static-best": _entry(static_best(base, score))}
    found = clairvoyant(base, score)
    return {"static-best": _entry(static_best(base, score)), "schedule": _entry(found)}


def _one(cell: Cell, base: Scenario, candidate: Candidate, seed: int) -> float:
    job = Job(cell.key, candidate.rule, candidate.rule, candidate.parameters, base, seed)
    return throughput(simulate(job))


def _entry(found: Found) -> dict[str, Any]:
    return asdict(found.candidate)


def _rules_table(chosen: dict[str, dict[str, dict[str, float]]]) -> Table:
    made = tuple(
        (rule, calibration, ", ".join(f"{name} = {value:g}" for name, value in parameters.items()))
        for rule, by_calibration in chosen.items()
        for calibration, parameters in by_calibration.items()
    )
    return Table("Parameters", ("rule", "calibration", "chosen"), made)


def _hindsight_table(found: dict[str, dict[str, dict[str, Any]]]) -> Table:
    made = tuple(
        (cell, label, ", ".join(f"{name} = {value:g}" for name, value in candidate["parameters"]))
        for cell, by_label in found.items()
        for label, candidate in by_label.items()
    )
    return Table("Hindsight", ("cell", "what", "found"), made)
