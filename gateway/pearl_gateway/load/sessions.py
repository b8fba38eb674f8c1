"""Agent sessions, and how they are scaled to a model and a purpose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

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
