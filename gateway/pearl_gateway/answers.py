"""Whole answers of the token path, and what names any answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pearl_gateway.usage import usage

if TYPE_CHECKING:
    from pearl_gateway.turn_state import Turn


def request_id(turn: Turn) -> str:
    """The id of an answer."""
    return f"{turn.trajectory}/{turn.number}/{turn.attempt}"


def weight_versions(turn: Turn) -> list[dict[str, Any]]:
    """Weight versions of the answer's tokens; null where a worker died before it told."""
    spans = [span for piece in turn.pieces for span in piece.spans]
    return [{"version": span.version, "start": span.start, "end": span.end} for span in spans]


def token_choice(turn: Turn, start: int, end: int, *, with_logprobs: bool) -> dict[str, Any]:
    """Tokens [start, end) of an answer in the shape of the engine's own token path; its end says how it ended."""
    ends = turn.settled and end == len(turn.token_ids)
    choice: dict[str, Any] = {
        "index": 0,
        "token_ids": turn.token_ids[start:end],
        "finish_reason": turn.finish_reason if ends else None,
        "stop_reason": turn.stop_reason if ends else None,
        "logprobs": {"content": turn.entries[start:end]} if with_logprobs else None,
    }
    if ends:
        choice["weight_versions"] = weight_versions(turn)
    return choice


def token_answer(turn: Turn, *, with_logprobs: bool) -> dict[str, Any]:
    """The whole answer of the token path, with versions as numbers."""
    choice = token_choice(turn, 0, len(turn.token_ids), with_logprobs=with_logprobs)
    return {"request_id": request_id(turn), "usage": usage([turn]), "output_mode": "tokens", "choices": [choice]}
