"""The gateway's own log of a trajectory, turn by turn: what a trainer will get must be what the agent got."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class LoggedTurn:
    """One turn in the log."""

    prompt: list[int]
    token_ids: list[int]


def logged_turns(export: dict[str, Any]) -> dict[int, LoggedTurn]:
    """Turns by number, of the answer of `GET /v1/trajectories/{id}`."""
    ids: list[int] = export["tokenIds"]
    context, ranges = 0, dict[int, tuple[int, int, int]]()
    for segment in export["segments"]:
        if segment["reason"] == "prefixBroken":
            context = segment["start"]  # the turn's whole prompt is written again from here
            continue
        _, start, _ = ranges.get(segment["turn"], (0, segment["start"], 0))
        ranges[segment["turn"]] = (context, start, segment["end"])
    return {turn: LoggedTurn(ids[begin:start], ids[start:end]) for turn, (begin, start, end) in ranges.items()}
