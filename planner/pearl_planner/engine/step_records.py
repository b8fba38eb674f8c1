"""The records of engine steps that calibration reads: one JSON object a line, as the recorder in the engine writes.

`worker_image/README.md`, "Step records", explains the keys; only those in `FIELDS` are needed here.
"""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pearl_planner.numbers import known, median

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

FIELDS = ("decodes", "context_tokens", "prefill_tokens", "prefill_pairs")
_BINS_PER_DOUBLING = 8


class CalibrationError(ValueError):
    """The records cannot be used; the message names the file, the line and the fix."""


@dataclass(frozen=True, slots=True)
class Step:
    """One recorded step, or the median of several equal ones."""

    decodes: float
    context_tokens: float
    """Σ over the decoding sequences, the token of this step included."""
    prefill_tokens: float
    prefill_pairs: float
    """Σ over chunks: c·prefix + c²/2."""
    seconds: float
    count: int = 1

    @property
    def kind(self) -> str:
        """`decode`, `prefill` or `mixed`."""
        if self.decodes and self.prefill_tokens:
            return "mixed"
        return "decode" if self.decodes else "prefill"


def read_steps(path: Path, time: str = "seconds") -> list[Step]:
    """The steps of a file, `time` naming the key that tells how long they took (`seconds` or `cpu_seconds`).

    Raises:
        CalibrationError: the message names the line.
    """
    return parse_steps(read_lines(path), path.name, time)


def read_lines(path: Path) -> list[str]:
    """The lines of a plain or packed (`.gz`) file; raises CalibrationError that names it."""
    try:
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        return text.decode().splitlines()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise CalibrationError(f"{path}: {error}; give a file of step records") from error


def parse_steps(lines: Iterable[str], source: str, time: str = "seconds") -> list[Step]:
    """One step per line that is not blank."""
    steps = [_parse(line, f"{source} line {number}", time) for number, line in enumerate(lines, 1) if line.strip()]
    if not steps:
        raise CalibrationError(f"{source} holds no steps: send requests to an engine that records, then copy its file")
    return steps


def _parse(line: str, where: str, time: str) -> Step:
    try:
        data = json.loads(line)
    except ValueError:
        raise CalibrationError(f"{where} is no JSON: remove the line, or copy the file again") from None
    if not isinstance(data, dict):
        raise CalibrationError(f"{where} is no JSON object: each line is one step of the recorder")
    values: dict[str, float] = {}
    for field in (*FIELDS, time):
        value = known(data.get(field))
        if value is None:
            got = repr(data[field]) if field in data else "nothing"
            raise CalibrationError(
                f"{where}: {field} must be a finite number of at least 0, got {got}; remove the line"
            )
        values[field] = value
    step = Step(**{field: values[field] for field in FIELDS}, seconds=values[time], count=1)
    if step.seconds <= 0 or not (step.decodes or step.prefill_tokens):
        raise CalibrationError(f"{where}: a step has work and takes time, this has not; remove the line")
    return step


def merge(steps: Sequence[Step]) -> list[Step]:
    """Steps of nearly the same work (within 9 %) as one: mean work, median time. In order of work."""
    cells: dict[tuple[int, ...], list[Step]] = {}
    for step in steps:
        sizes = (step.context_tokens, step.prefill_tokens, step.prefill_pairs)
        key = (int(step.decodes), *(round(_BINS_PER_DOUBLING * math.log2(size + 1)) for size in sizes))
        cells.setdefault(key, []).append(step)
    return [
        Step(
            decodes=_mean([step.decodes for step in cell]),
            context_tokens=_mean([step.context_tokens for step in cell]),
            prefill_tokens=_mean([step.prefill_tokens for step in cell]),
            prefill_pairs=_mean([step.prefill_pairs for step in cell]),
            seconds=median([step.seconds for step in cell]) or 0.0,
            count=len(cell),
        )
        for _, cell in sorted(cells.items())
    ]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
