"""From recorded engine steps to the constants of an engine table, with error bars.

The steps come from the recorder inside the engine (`worker_image/README.md`, "Step records"). Equal steps are put
together and their median time taken, so that a busy machine does not count; then all kinds of steps (only decoding,
only prefilling, both) are fitted together, with the formula of `engine_model.py` (docs/models.md, "Calibration").
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pearl_planner.engine.least_squares import Point, Prior, fit, independent
from pearl_planner.engine.model import EngineTable, sane_table, step_seconds
from pearl_planner.engine.step_records import CalibrationError, Step, merge, read_steps
from pearl_planner.numbers import median

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pearl_planner.engine.least_squares import Fit

CONSTANTS = (
    "decode_fixed_seconds",
    "prefill_fixed_seconds",
    "prefill_per_token_seconds",
    "decode_per_sequence_seconds",
    "decode_per_context_token_seconds",
    "prefill_per_token_pair_seconds",
    "decode_per_root_sequence_seconds",
)
"""Fields of `EngineTable` that are fitted, in the order of the columns."""
_NEEDS = (
    "steps that only decode",
    "steps that only prefill",
    "prefill chunks of different lengths",
    "decode steps with different numbers of sequences",
    "decode steps with different context lengths",
    "prefill chunks behind prefixes of different lengths",
    "decode steps with many different numbers of sequences",
)
_A, _T0, _P1, _B0, _CKV, _P2, _ROOT = range(len(CONSTANTS))
PRIOR_DEVIATION = 0.5
"""How far, as a share, a constant of the shipped table is thought to be off after both are scaled alike."""
_TRUSTED_STEPS = 5
_MAX_ERRORS_OF_ZERO = 0.5


@dataclass(frozen=True, slots=True)
class Constant:
    """One constant of the result."""

    name: str
    value: float
    error: float | None
    """Standard error; None = not from these records."""
    identified: bool
    """Whether the records determine it; otherwise it is the base table's, scaled like the rest."""


@dataclass(frozen=True, slots=True)
class Calibrated:
    """What the records say."""

    table: EngineTable
    constants: tuple[Constant, ...]
    covariance: tuple[tuple[float, ...], ...]
    """Of the constants, in their order."""
    steps: int
    points: int
    """Different steps, after equal ones were put together."""
    heldout_error: float | None
    """Mean relative error of points that were left out of the fit (two halves, each predicted from the other);
    None = too few points to split."""
    heldout_by_kind: dict[str, float]
    scale: float | None
    """Median of measured time over the base table's; None without a base."""

    def as_dict(self) -> dict[str, Any]:
        """JSON form; `table` is what `tables.table_from_dict` takes."""
        return {
            "table": table_dict(self.table),
            "constants": {
                one.name: {"value": one.value, "error": one.error, "identified": one.identified}
                for one in self.constants
            },
            "covariance": [list(row) for row in self.covariance],
            "steps": self.steps,
            "points": self.points,
            "heldout_error": self.heldout_error,
            "heldout_error_by_kind": self.heldout_by_kind,
            "scale": self.scale,
        }


def calibrate_file(path: Path, base: EngineTable | None = None, time: str = "seconds") -> Calibrated:
    """Fit the steps of a JSON-lines file (`.gz` or plain), pulled towards `base` where there is one.

    `time="cpu_seconds"` fits processor time instead, for CPU engines on machines that do other work too.

    Raises:
        CalibrationError: the file is missing, empty or malformed, or its steps do not determine the constants.
    """
    return calibrate(read_steps(path, time), base, name=path.name)


def calibrate(steps: Sequence[Step], base: EngineTable | None = None, *, name: str = "calibrated") -> Calibrated:
    """Fit the constants; raises CalibrationError when the steps do not determine them and there is no base."""
    if base is not None and not sane_table(base):
        raise CalibrationError(f"base table {base.name!r} has impossible constants: choose another")
    points = merge(steps)
    scale = None if base is None else median([p.seconds / max(predicted_seconds(base, p), 1e-12) for p in points])
    prior = None if base is None or scale is None else base.scaled(scale)
    fitted, identified = _fit(points, prior)
    constants = tuple(
        Constant(field, fitted.values[j], math.sqrt(max(fitted.covariance[j][j], 0.0)) if known_ else None, known_)
        for j, (field, known_) in enumerate(zip(CONSTANTS, identified, strict=True))
    )
    heldout = _heldout(points, prior)
    errors = [error for _, error in heldout]
    kinds = sorted({kind for kind, _ in heldout})
    return Calibrated(
        table=_table(fitted.values, base, name),
        constants=constants,
        covariance=fitted.covariance,
        steps=len(steps),
        points=len(points),
        heldout_error=_mean(errors) if errors else None,
        heldout_by_kind={kind: _mean([error for its, error in heldout if its == kind]) for kind in kinds},
        scale=scale,
    )


def _fit(points: Sequence[Step], prior: EngineTable | None) -> tuple[Fit, list[bool]]:
    """The constants and which of them the points determine. In a mixed step the larger fixed time counts."""
    values = _values(prior) if prior else (0.0,) * len(CONSTANTS)
    larger, fitted, identified = _A, None, [False]
    if prior and prior.prefill_fixed_seconds > prior.decode_fixed_seconds:
        larger = _T0
    for _ in range(4):
        rows = [_point(step, larger) for step in points]
        # √n is a term of mixture-of-experts models only: the base says whether there is one.
        identified = [alone and (j != _ROOT or values[j] != 0.0) for j, alone in enumerate(independent(rows))]
        missing = [j for j, alone in enumerate(identified) if not alone and j != _ROOT]
        if prior is None and missing:
            what = "; ".join(f"{CONSTANTS[j]} needs {_NEEDS[j]}" for j in missing)
            raise CalibrationError(
                f"the records do not determine {len(missing)} constants: {what}; or give a base table"
            )
        free = [j for j, alone in enumerate(identified) if alone]
        deviations = tuple(_deviation(value, j, rows) if prior else math.inf for j, value in enumerate(values))
        signed = values[_B0] < 0 or values[_ROOT] != 0.0  # such a fit may have a negative linear term
        allowed = [not (signed and j in (_B0, _ROOT)) for j in range(len(values))]
        try:
            fitted = fit(rows, Prior(values, deviations), free, allowed)
        except ValueError as error:
            raise CalibrationError(f"too few different steps: {error}") from error
        now = _T0 if fitted.values[_T0] > fitted.values[_A] else _A
        if now == larger:
            break
        larger = now
    if fitted is None:
        raise CalibrationError("nothing was fitted: give at least one step")
    return fitted, identified


def _deviation(value: float, column: int, rows: Sequence[Point]) -> float:
    """Half the prior value; for a constant that the base has as 0, what would explain half of a step."""
    if value:
        return PRIOR_DEVIATION * abs(value)
    shares = [row.columns[column] / row.result for row in rows if row.columns[column]]
    return _MAX_ERRORS_OF_ZERO / (median(shares) or 1.0)


def _point(step: Step, larger: int) -> Point:
    columns = [0.0] * len(CONSTANTS)
    columns[larger if step.kind == "mixed" else _A if step.kind == "decode" else _T0] = 1.0
    columns[_B0], columns[_CKV], columns[_ROOT] = step.decodes, step.context_tokens, math.sqrt(step.decodes)
    columns[_P1], columns[_P2] = step.prefill_tokens, step.prefill_pairs
    return Point(tuple(columns), step.seconds, step.count / (step.count + _TRUSTED_STEPS))


def _heldout(points: Sequence[Step], prior: EngineTable | None) -> list[tuple[str, float]]:
    """(kind, relative error) of every point, predicted from the half of the points that it is not in."""
    errors: list[tuple[str, float]] = []
    for half in (0, 1):
        try:
            fitted, _ = _fit(points[half::2], prior)
        except CalibrationError:
            return []
        table = _table(fitted.values, prior, "half")
        errors += [(p.kind, abs(predicted_seconds(table, p) / p.seconds - 1.0)) for p in points[1 - half :: 2]]
    return errors


def predicted_seconds(table: EngineTable, step: Step) -> float:
    """The formula, with the pairs as recorded."""
    context = step.context_tokens / step.decodes if step.decodes else 0.0
    prefix = step.prefill_pairs / step.prefill_tokens - step.prefill_tokens / 2 if step.prefill_tokens else 0.0
    return step_seconds(table, step.decodes, context, step.prefill_tokens, prefix)


def _values(table: EngineTable) -> tuple[float, ...]:
    return tuple(float(getattr(table, name)) for name in CONSTANTS)


def _table(values: Sequence[float], base: EngineTable | None, name: str) -> EngineTable:
    start = base or EngineTable(name, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    return replace(
        start,
        decode_fixed_seconds=max(values[_A], 1e-9),
        prefill_fixed_seconds=values[_T0],
        prefill_per_token_seconds=values[_P1],
        decode_per_sequence_seconds=values[_B0],
        decode_per_context_token_seconds=values[_CKV],
        prefill_per_token_pair_seconds=values[_P2],
        decode_per_root_sequence_seconds=values[_ROOT],
        measured_with=f"calibrated from {name}",
    )


def table_dict(table: EngineTable) -> dict[str, Any]:
    """A table as `tables/*.json` holds it."""
    result: dict[str, Any] = {
        "decode": {
            "fixed_seconds": table.decode_fixed_seconds,
            "per_sequence_seconds": table.decode_per_sequence_seconds,
            "per_context_token_seconds": table.decode_per_context_token_seconds,
            "per_root_sequence_seconds": table.decode_per_root_sequence_seconds,
        },
        "prefill": {
            "fixed_seconds": table.prefill_fixed_seconds,
            "per_token_seconds": table.prefill_per_token_seconds,
            "per_token_pair_seconds": table.prefill_per_token_pair_seconds,
        },
        "transfer_bytes_per_second": table.transfer_bytes_per_second,
        "transfer_fixed_seconds": table.transfer_fixed_seconds,
        "measured_with": table.measured_with,
    }
    optional = {"kv_bytes_per_token": table.kv_bytes_per_token, "kv_capacity_tokens": table.kv_capacity_tokens}
    return result | {key: value for key, value in optional.items() if value is not None}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
