"""Recorded agent sessions: lengths and delays only, no text.

One JSON object per line with
`num_turns`, `input_prompt_length`, `assistant_response_length[]`, `tool_call_output_length[]` (tokens),
`tool_call_latency[]` (seconds), and optionally `final_assistant_response_length`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

SHIPPED = Path(__file__).with_name("sessions")
_CONTEXT_SHARE = 0.95
"""Share of the context that the longest session may fill, so that rounding up never overflows it."""


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One answer of the model and what the tool then gave back."""

    response_tokens: int
    tool_tokens: int
    """Tokens that the tool's output adds to the next prompt; 0 after the last answer."""
    tool_seconds: float


@dataclass(frozen=True, slots=True)
class Session:
    """One agent session."""

    prompt_tokens: int
    turns: tuple[RecordedTurn, ...]

    @property
    def total_tokens(self) -> int:
        """Length of its context at the end."""
        return self.prompt_tokens + sum(turn.response_tokens + turn.tool_tokens for turn in self.turns)


def read_sessions(path: Path) -> list[Session]:
    """Sessions of a recording.

    Raises:
        ValueError: a line is no such object; the message names file, line and field.
    """
    sessions = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            sessions.append(_session(json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}:{number}: {error!r}; see pearl_gateway.load.sessions for the format") from error
    if not sessions:
        raise ValueError(f"{path} holds no session")
    return sessions


def shipped(name: str) -> Path:
    """A recording by the name of a shipped one, or by its path.

    Raises:
        ValueError: neither exists.
    """
    for path in (SHIPPED / f"{name}.jsonl", Path(name)):
        if path.is_file():
            return path
    names = ", ".join(sorted(path.stem for path in SHIPPED.glob("*.jsonl")))
    raise ValueError(f"no recording {name!r}: give a path or one of {names}")


def scale(
    sessions: Sequence[Session],
    context_tokens: int,
    *,
    response_factor: float = 1.0,
    input_factor: float = 1.0,
    most_turns: int | None = None,
) -> tuple[list[Session], float]:
    """Sessions that fit the model's context, and the one factor that all token counts were multiplied by.

    `response_factor` and `input_factor` (prompt and tool output) change the shape of the work first.
    """
    shaped = [_shape(one, response_factor, input_factor, most_turns) for one in sessions]
    longest = max(one.total_tokens for one in shaped)
    factor = min(1.0, _CONTEXT_SHARE * context_tokens / longest)
    return [_fit(_times(one, factor), context_tokens) for one in shaped], factor


def _session(data: dict[str, Any]) -> Session:
    count = int(data["num_turns"])
    columns = [data[f"{name}"][:count] for name in ("assistant_response_length", "tool_call_output_length")]
    delays = data["tool_call_latency"][:count]
    turns = [
        RecordedTurn(int(response), int(tool), float(seconds))
        for response, tool, seconds in zip(*columns, delays, strict=True)
    ]
    final = int(data.get("final_assistant_response_length") or 0)
    if final:
        turns.append(RecordedTurn(final, 0, 0.0))
    return Session(int(data["input_prompt_length"]), tuple(turns))


def _shape(session: Session, response: float, given: float, most_turns: int | None) -> Session:
    turns = session.turns if most_turns is None else session.turns[:most_turns]
    shaped = tuple(
        RecordedTurn(_scaled(one.response_tokens, response), _scaled(one.tool_tokens, given), one.tool_seconds)
        for one in turns
    )
    return Session(_scaled(session.prompt_tokens, given), shaped)


def _times(session: Session, factor: float) -> Session:
    return _shape(session, factor, factor, None)


def _scaled(tokens: int, factor: float) -> int:
    return max(1, round(tokens * factor)) if tokens else 0


def _fit(session: Session, context_tokens: int) -> Session:
    """Leave out the last turns where rounding up made a session too long."""
    kept: list[RecordedTurn] = []
    length = session.prompt_tokens
    for turn in session.turns:
        if length + turn.response_tokens >= context_tokens:
            break
        kept.append(turn)
        length += turn.response_tokens + turn.tool_tokens
    return Session(session.prompt_tokens, tuple(kept))
