"""`pearl-sim calibrate FILE`: engine constants from per-step records, with error bars."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pearl_planner.engine.calibrate import calibrate_file, table_dict
from pearl_planner.engine.step_records import CalibrationError
from pearl_planner.engine.tables import TableError, load_table
from pearl_simulator.errors import InputError
from pearl_simulator.reporting.report import Report, Table
from pearl_simulator.reporting.statistics import Interval

if TYPE_CHECKING:
    from pearl_planner.engine.calibrate import Calibrated
    from pearl_planner.engine.model import EngineTable
    from pearl_simulator.experiments.setting import Setting

TWO_SIDED = 1.96
ABOUT = (
    "Constants of the engine model fitted to recorded steps (docs/models.md, “Calibration”); the error bars are 95 %. "
    "The held-out error is that of steps left out of the fit."
)


def run(setting: Setting) -> Report:
    """Fits the file of the setting.

    Raises:
        InputError: the file or the table to start from cannot be used.
    """
    if setting.file is None:
        raise InputError("FILE is missing; give the records of the step recorder")
    try:
        time = "cpu_seconds" if setting.processor_time else "seconds"
        found = calibrate_file(setting.file, _base(setting.table), time)
    except CalibrationError as error:
        raise InputError(str(error)) from error
    if setting.write is not None:
        setting.write.write_text(json.dumps(table_dict(found.table), indent=1) + "\n")
    return Report(
        experiment="calibrate",
        title=f"Calibration from {setting.file.name}",
        about=ABOUT,
        summary={"heldout_error": found.heldout_error, "steps": found.steps, "points": found.points},
        tables=(_constants(found), _heldout(found)),
        findings=_findings(found, setting.table),
        parameters={"file": setting.file.name, "base": setting.table, "calibrated": found.as_dict()},
    )


def _base(name: str | None) -> EngineTable | None:
    try:
        return None if name is None else load_table(name)
    except TableError as error:
        raise InputError(f"--table: {error}") from error


def _constants(found: Calibrated) -> Table:
    rows = []
    for one in found.constants:
        half = None if one.error is None else 1e6 * TWO_SIDED * one.error
        value = 1e6 * one.value
        low, high = (None, None) if half is None else (value - half, value + half)
        rows.append((one.name, Interval(value, low, high, found.points), one.identified))
    note = "A constant that the records do not identify stays near the table it started from."
    return Table("Constants, microseconds", ("constant", "value [95 %]", "identified"), tuple(rows), note)


def _heldout(found: Calibrated) -> Table:
    rows = tuple((kind, error) for kind, error in sorted(found.heldout_by_kind.items()))
    return Table("Mean relative error of steps left out of the fit", ("kind of step", "error"), rows)


def _findings(found: Calibrated, base: str | None) -> tuple[str, ...]:
    said = []
    if found.scale is not None:
        said.append(f"The engine takes {found.scale:.2f} times as long per step as {base} says.")
    unknown = [one.name for one in found.constants if not one.identified]
    if unknown:
        said.append(f"Not identified by these records: {', '.join(unknown)}; record steps with other mixes.")
    return tuple(said)
