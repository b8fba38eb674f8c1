"""Reads what the recorder inside the engine wrote (`engine_plugins`, `step_recorder`)."""

import json
from pathlib import Path
from typing import Any

MAX_STEPS = 2000
"""Most that one answer holds."""


def newest_steps(directory: Path | None, since: float, limit: int) -> list[dict[str, Any]]:
    """At most `limit` steps that ended after the wall-clock time `since`, the newest of them, in order of time.

    No directory, or none yet, means no steps. A line that is not a step (a file cut by a full disk) is left out.
    """
    if directory is None or limit <= 0:
        return []
    found = [step for file in directory.glob("steps-*.jsonl") for step in _steps(file) if step["at"] > since]
    return sorted(found, key=lambda step: float(step["at"]))[-min(limit, MAX_STEPS) :]


def _steps(file: Path) -> list[dict[str, Any]]:
    try:
        lines = file.read_text().splitlines()
    except FileNotFoundError:  # just renamed; the next look has it
        return []
    parsed = [_parsed(line) for line in lines]
    return [step for step in parsed if step is not None]


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        step = json.loads(line)
    except ValueError:
        return None
    return step if isinstance(step, dict) and isinstance(step.get("at"), int | float) else None
