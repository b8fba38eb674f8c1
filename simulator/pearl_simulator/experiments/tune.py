"""`pearl-sim tune`: the baselines' parameters and the schedules of hindsight, found on training seeds.

Writes `tuned.json` beside this file, which the other experiments read. Training seeds lie below the reported ones.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from itertools import product
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pearl_simulator.errors import InputError
from pearl_simulator.experiments.cells import CALIBRATIONS, Cell, cells, scenario
from pearl_simulator.experiments.common import Job, rows, simulate, throughput
from pearl_simulator.experiments.policies import POLICIES, TUNED, fleet_of
from pearl_simulator.experiments.setting import REPORT_SEEDS
from pearl_simulator.report import Report, Table
from pearl_simulator.rules import tunables
from pearl_simulator.rules.hindsight import Candidate, Found, clairvoyant, static_best

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pearl_simulator.experiments.common import Row
    from pearl_simulator.experiments.policies import Policy
    from pearl_simulator.experiments.setting import Setting
    from pearl_simulator.types import Scenario

FIRST_SEED = 100
SEEDS = 1
SECONDS, WARMUP_SECONDS = 3000.0, 900.0
"""Shorter windows than the reported ones."""
PLACES = (("8B", "S1"), ("8B", "S2"), ("30B-A3B", "S3"))
"""(model, segment) that parameters are tuned on: every segment and both models, once."""
ABOUT = (
    "Every combination of each baseline's parameters on three of the six cells, by the geometric mean of its "
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
        parameters={"seconds": SECONDS},
    )


def _tuned(
    setting: Setting, seeds: Sequence[int], simulated: Callable[[Job], Row]
) -> dict[str, dict[str, dict[str, float]]]:
    """Rule → calibration → parameters."""
    policies = [policy for policy in POLICIES if tunables(policy.rule)]
    places = [(policy, calibration) for policy in policies for calibration in CALIBRATIONS]
    todo = [job for policy, calibration in places for job in _grid(policy, calibration, seeds)]
    found = rows(setting.pool.map(simulated, todo, "parameters"))
    chosen: dict[str, dict[str, dict[str, float]]] = {}
    for policy, calibration in places:
        keys = [cell.key for cell in _places(calibration)]

        def score(parameters: Parameters, rule: str = policy.rule, where: Sequence[str] = tuple(keys)) -> float:
            values = [value for key in where for value in found.values(key, _label(rule, parameters))]
            return exp(fmean(log(max(value, 1e-9)) for value in values))

        best = max(combinations(policy.rule), key=score)
        chosen.setdefault(policy.rule, {})[calibration] = dict(best)
    return chosen


def _places(calibration: str) -> tuple[Cell, ...]:
    return tuple(Cell(model, segment, calibration) for model, segment in PLACES)


def combinations(rule: str) -> list[Parameters]:
    """Every combination of its tunables' values."""
    grid = tunables(rule)
    return [tuple(zip(grid, values, strict=True)) for values in product(*grid.values())]


def _grid(policy: Policy, calibration: str, seeds: Sequence[int]) -> list[Job]:
    return [
        Job(cell.key, _label(policy.rule, parameters), policy.rule, parameters, changed, seed)
        for cell in _places(calibration)
        for changed in (fleet_of(policy, cell, training_scenario(cell)),)
        for parameters in combinations(policy.rule)
        for seed in seeds
    ]


def _label(rule: str, parameters: Parameters) -> str:
    return f"{rule} {parameters}"


def training_scenario(cell: Cell) -> Scenario:
    """The cell, shorter."""
    return replace(scenario(cell, quick=False), horizon_seconds=SECONDS, warmup_seconds=WARMUP_SECONDS)


@dataclass(frozen=True, slots=True)
class _Search:
    """A cell to search with hindsight; sent to another process as a whole."""

    cell: Cell
    seeds: tuple[int, ...]


def _hindsight(
    setting: Setting, seeds: Sequence[int], simulated: Callable[[Job], Row]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Cell → label → candidate. The whole length: hindsight knows when capacity comes and goes."""
    where = [cell for calibration in CALIBRATIONS for cell in cells(calibration)]
    searches = [_Search(cell, tuple(seeds)) for cell in where]
    del simulated  # a search is made in one process with the real simulator
    found = setting.pool.map(search, searches, "hindsight")
    return {cell.key: one for cell, one in zip(where, found, strict=True)}


def search(what: _Search) -> dict[str, dict[str, Any]]:
    """`static-best` and `schedule` of a cell. A function of a module, so that it can be sent to another process."""
    base = scenario(what.cell, quick=False)

    def score(candidates: Sequence[Candidate], /) -> list[float]:
        return [fmean(_one(what.cell, base, candidate, seed) for seed in what.seeds) for candidate in candidates]

    return {"static-best": _entry(static_best(base, score)), "schedule": _entry(clairvoyant(base, score))}


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
