"""A streamed answer put together to what the same request gives when it is not streamed."""

from __future__ import annotations

import json
from typing import Any

_DATA, _DONE = "data: ", "[DONE]"


class StreamError(Exception):
    """The stream ended with an error, whose status it has, or before the answer did."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


def joined(text: str) -> dict[str, Any]:
    """`{"choices": [...]}` with one whole choice: token ids, text or message, and what its last events say.

    Raises:
        StreamError: no event ends the answer, or one tells an error.
    """
    whole: dict[str, Any] = {"token_ids": [], "text": "", "finish_reason": None}
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for event in _events(text):
        if "choices" not in event:
            error = event.get("error") or {}
            raise StreamError(f"the stream ends with {event}", error.get("code"))
        for choice in event["choices"]:
            _add(whole, message, choice)
    if whole["finish_reason"] is None:
        raise StreamError("the stream ends before the answer does")
    return {"choices": [whole | {"message": message}]}


def _events(text: str) -> list[dict[str, Any]]:
    lines = (line.removeprefix(_DATA) for line in text.splitlines() if line.startswith(_DATA))
    try:
        return [json.loads(line) for line in lines if line != _DONE]
    except ValueError:
        raise StreamError("the stream ends within an event") from None


def _add(whole: dict[str, Any], message: dict[str, Any], choice: dict[str, Any]) -> None:
    whole["token_ids"] += choice.get("token_ids") or []
    whole["text"] += choice.get("text") or ""
    message["content"] += (choice.get("delta") or {}).get("content") or ""
    for name in ("finish_reason", "weight_versions"):
        if choice.get(name) is not None:
            whole[name] = choice[name]
