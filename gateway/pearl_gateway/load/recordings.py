"""Recorded agent sessions: lengths and delays only, no text.

One JSON object per line, in one of two forms:

- `num_turns`, `input_prompt_length`, `assistant_response_length[]`, `tool_call_output_length[]` (tokens),
  `tool_call_latency[]` (seconds), and optionally `final_assistant_response_length`;
- `turns[]` of `appended`, `generated` (tokens) and `environmentSeconds`, as `pearl-sim` reads them.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from pearl_gateway.load.sessions import RecordedTurn, Session

SHIPPED = Path(__file__).with_name("sessions")
_COLUMNS = ("assistant_response_length", "tool_call_output_length", "tool_call_latency")


def shipped(name: str) -> Path:
    """A recording by the name of a shipped one, or by its path.

    Raises:
        ValueError: neither exists.
    """
    for path in (SHIPPED / f"{name}.jsonl", Path(name)):
        if path.is_file():
            return path
    names = ", ".join(sorted(path.stem for path in SHIPPED.glob("*.jsonl")))
    raise ValueError(f"no recording {name!r}: give the path of a file or one of {names}")


def read_sessions(path: Path) -> list[Session]:
    """Sessions of a recording.

    Raises:
        ValueError: it cannot be read, or a line is no session; the message names file, line and field.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}; give a file of one JSON object per line") from None
    sessions = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                sessions.append(_session(_object(line)))
            except ValueError as error:
                raise ValueError(f"{path} line {number}: {error}; docs/pearl-load.md has the format") from None
    if not sessions:
        raise ValueError(f"{path} holds no session: one JSON object per line, see docs/pearl-load.md")
    return sessions


def _object(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise ValueError(f"is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise ValueError(f"{line[:40]!r} must be a JSON object")  # noqa: TRY004 - of the user's file
    return found


def _session(data: dict[str, Any]) -> Session:
    prompt, turns = _of_turns(data["turns"]) if "turns" in data else _of_columns(data)
    if not turns:
        raise ValueError("the session has no turn: leave it out")
    return Session(prompt, tuple(turns))


def _of_columns(data: dict[str, Any]) -> tuple[int, list[RecordedTurn]]:
    count = _tokens(data.get("num_turns"), "num_turns")
    answers, outputs, delays = (_column(data.get(name), name, count) for name in _COLUMNS)
    turns = [
        RecordedTurn(
            _tokens(answers[at], f"{_COLUMNS[0]}[{at}]"),
            _tokens(outputs[at], f"{_COLUMNS[1]}[{at}]"),
            _seconds(delays[at], f"{_COLUMNS[2]}[{at}]"),
        )
        for at in range(count)
    ]
    final = _tokens(data.get("final_assistant_response_length") or 0, "final_assistant_response_length")
    if final:
        turns.append(RecordedTurn(final, 0, 0.0))
    return _tokens(data.get("input_prompt_length"), "input_prompt_length", least=1), turns


def _of_turns(found: Any) -> tuple[int, list[RecordedTurn]]:
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise ValueError("turns must be a list of objects with appended, generated and environmentSeconds")
    added = [_tokens(one.get("appended"), f"turns[{at}].appended", least=1) for at, one in enumerate(found)]
    turns = []
    for at, one in enumerate(found):
        generated = _tokens(one.get("generated"), f"turns[{at}].generated", least=1)
        if one.get("retained", generated) != generated:
            raise ValueError(f"turns[{at}].retained: agents that drop part of an answer are not replayed: leave it out")
        seconds = _seconds(one.get("environmentSeconds"), f"turns[{at}].environmentSeconds")
        turns.append(RecordedTurn(generated, added[at + 1] if at + 1 < len(added) else 0, seconds))
    return added[0] if added else 0, turns


def _column(value: Any, field: str, count: int) -> list[Any]:
    if not isinstance(value, list) or len(value) < count:
        raise ValueError(f"{field} must be a list with an entry for each of the {count} turns (num_turns)")
    return value


def _tokens(value: Any, field: str, *, least: int = 0) -> int:
    if type(value) is not int or value < least:
        raise ValueError(f"{field}: {value!r} must be a whole number from {least}")
    return value


def _seconds(value: Any, field: str) -> float:
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise ValueError(f"{field}: {value!r} must be a number of seconds from 0")
    return float(value)
