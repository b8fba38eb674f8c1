"""Recorded trajectories, one JSON object per line, in three forms (docs/workloads.md).

- our own: `{"group": "a", "turns": [{"appended": 900, "generated": 120, "environmentSeconds": 0.4}]}`;
- sessions as `pearl-load` replays them: `num_turns`, `input_prompt_length` and lists of lengths and latencies;
- trajectories as the gateway exports them: token ids with segments. They hold no times of the environment.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pearl_simulator.errors import InputError
from pearl_simulator.types import Turn
from pearl_simulator.workloads.checks import number, whole

if TYPE_CHECKING:
    from collections.abc import Iterable

SHIPPED = ("trie_office_work_first8", "synthetic_swe_200", "sweagent_demo")
_FORMS = "`turns`, `num_turns` or `segments`"


@dataclass(frozen=True, slots=True)
class Recording:
    """One recorded trajectory."""

    group: str | None
    """Samples of one prompt; None = not said, then it is a group of its own."""
    reset_seconds: float
    turns: tuple[Turn, ...]
    """At least one."""


def read_recordings(source: str | Path, *, environment_seconds: float | None = None) -> tuple[Recording, ...]:
    """The trajectories of a file, or of a recording that ships, by its name.

    Args:
        source: path or one of `SHIPPED`.
        environment_seconds: after each answer, for exports of the gateway, which do not hold it.

    Raises:
        InputError: the file is missing or empty, or a line is malformed; the message names the line and the field.
    """
    found = tuple(parse_recordings(_lines(source), str(source), environment_seconds))
    if not found:
        raise InputError(f"recording {source}: holds no trajectory; give one JSON object per line (docs/workloads.md)")
    return found


def _lines(source: str | Path) -> list[str]:
    if str(source) in SHIPPED:
        return (resources.files("pearl_simulator") / f"data/agentic/{source}.jsonl").read_text().splitlines()
    try:
        return Path(source).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"recording {source}: cannot be read ({error}); give a path or one of: {', '.join(SHIPPED)}"
        ) from error


def parse_recordings(lines: Iterable[str], source: str, environment_seconds: float | None) -> Iterable[Recording]:
    """A recording for each line that is not blank.

    Raises:
        InputError: a line is malformed.
    """
    for at, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"recording {source}, line {at}"
        try:
            data = json.loads(line)
        except ValueError as error:
            raise InputError(f"{place}: is not JSON ({error}); correct or remove it") from error
        yield _recording(data, place, environment_seconds)


def _recording(data: Any, place: str, environment_seconds: float | None) -> Recording:
    if isinstance(data, dict) and "turns" in data and "segments" not in data:
        return _own(data, place)
    if isinstance(data, dict) and "num_turns" in data:
        return _session(data, place)
    if isinstance(data, dict) and "segments" in data:
        return _export(data, place, environment_seconds)
    raise InputError(f"{place}: is no object with {_FORMS}; see docs/workloads.md for the forms")


def _own(data: dict[str, Any], place: str) -> Recording:
    turns = _list(data["turns"], f"{place}: turns")
    group = data.get("group")
    return Recording(
        None if group is None else str(group),
        number(data.get("resetSeconds", 0.0), f"{place}: resetSeconds"),
        tuple(_own_turn(turn, f"{place}: turns[{at}]") for at, turn in enumerate(turns)),
    )


def _own_turn(data: Any, place: str) -> Turn:
    if not isinstance(data, dict):
        raise InputError(f"{place} is {data!r}; give an object with appended, generated and environmentSeconds")
    generated = whole(data.get("generated"), f"{place}.generated", low=1)
    return Turn(
        whole(data.get("appended"), f"{place}.appended", low=1),
        generated,
        whole(data.get("retained", generated), f"{place}.retained", high=generated),
        number(data.get("missedShare", 0.0), f"{place}.missedShare", high=1.0),
        number(data.get("environmentSeconds"), f"{place}.environmentSeconds"),
    )


def _session(data: dict[str, Any], place: str) -> Recording:
    answers = _list(data.get("assistant_response_length"), f"{place}: assistant_response_length", low=0)
    outputs = _list(data.get("tool_call_output_length"), f"{place}: tool_call_output_length", low=0)
    waits = _list(data.get("tool_call_latency"), f"{place}: tool_call_latency", low=0)
    count = whole(data["num_turns"], f"{place}: num_turns")
    if min(len(answers), len(outputs), len(waits)) < count:
        raise InputError(f"{place}: num_turns is {count} but a list is shorter; give an entry per turn in each list")
    new = whole(data.get("input_prompt_length"), f"{place}: input_prompt_length", low=1)
    turns: list[Turn] = []
    for at in range(count):
        generated = max(1, whole(answers[at], f"{place}: assistant_response_length[{at}]"))
        wait = number(waits[at], f"{place}: tool_call_latency[{at}]")
        turns.append(Turn(new, generated, generated, 0.0, wait))
        new = max(1, whole(outputs[at], f"{place}: tool_call_output_length[{at}]"))
    last = whole(data.get("final_assistant_response_length") or 0, f"{place}: final_assistant_response_length")
    if last:
        turns.append(Turn(new, last, last, 0.0, 0.0))
    if not turns:
        raise InputError(f"{place}: num_turns is 0 and there is no final answer; leave the session out")
    return Recording(None, 0.0, tuple(turns))


def _export(data: dict[str, Any], place: str, environment_seconds: float | None) -> Recording:
    if environment_seconds is None:
        raise InputError(
            f"{place}: exports of the gateway hold no environment times; give workload.environmentSeconds with them"
        )
    spans = _spans(_list(data["segments"], f"{place}: segments"), place)
    turns: list[Turn] = []
    end_before = 0
    for at, (start, end) in enumerate(spans):
        if not end_before <= start < end:
            raise InputError(f"{place}: turn {at + 1} has no tokens of its own or overlaps; export it again")
        turns.append(Turn(max(1, start - end_before), end - start, end - start, 0.0, environment_seconds))
        end_before = end
    if not turns:
        raise InputError(f"{place}: segments hold no generated tokens; leave the trajectory out")
    group = data.get("group")
    return Recording(None if group is None else str(group), 0.0, tuple(turns))


def _spans(segments: list[Any], place: str) -> list[tuple[int, int]]:
    """[start, end) of each turn's answer in the token log, in order; segments of no worker open a context only."""
    found: dict[int, tuple[int, int]] = {}
    for at, segment in enumerate(segments):
        field = f"{place}: segments[{at}]"
        if not isinstance(segment, dict):
            raise InputError(f"{field} is {segment!r}; give an object with turn, start and end")
        turn = whole(segment.get("turn"), f"{field}.turn")
        start, end = (whole(segment.get(name), f"{field}.{name}") for name in ("start", "end"))
        if not segment.get("worker"):
            continue
        low, high = found.get(turn, (start, end))
        found[turn] = (min(low, start), max(high, end))
    return [found[turn] for turn in sorted(found)]


def _list(value: Any, field: str, *, low: int = 1) -> list[Any]:
    if not isinstance(value, list) or len(value) < low:
        problem = "is missing" if value is None else f"is {value!r}"
        raise InputError(f"{field} {problem}; give a list of at least {low} entries")
    return value
