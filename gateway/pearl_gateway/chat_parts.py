"""What a chat answer consists of where the engine has parsers: reasoning, content and tool calls.

The derender endpoints parse; here is what the engine's own answers have beyond that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pearl_gateway.answers import request_id
from pearl_gateway.said import digest_of
from pearl_gateway.stops import StopCutter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pearl_gateway.turn_state import Turn

Json = dict[str, Any]
Part = str | int
"""`reasoning`, `content`, or the index of a tool call."""

_DRAWN = "chatcmpl-tool-"
"""Begins ids of tool calls that were drawn at random. Some parsers give others, which templates read."""


def hides_tokens(body: Json, derendered: Json) -> bool:
    """Whether ids and logprobs would tell the reasoning that the client does not want; only where there is a parser.

    Args:
        body: The client's request.
        derendered: The choice, asked for with its token ids (`chat_request`): an engine with parsers gives none.
    """
    return not body.get("include_reasoning", True) and derendered.get("token_ids") is None


def whole_finish(body: Json, message: Json, finish: str | None) -> str | None:
    """Why an answer that is no stream ended."""
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        return finish
    called = finish == "stop" if choice == "required" else bool(message.get("tool_calls"))
    return "tool_calls" if called else finish


def name_calls(turn: Turn, holder: Json) -> None:
    """Give the tool calls of a message or delta ids that are the same when the turn is asked for again."""
    for at, call in enumerate(holder.get("tool_calls") or ()):
        drawn = call.get("id")
        if drawn is not None and (drawn.startswith(_DRAWN) or "index" not in call):
            call["id"] = _DRAWN + digest_of(f"{request_id(turn)}/{call.get('index', at)}")[:16]


def given(value: Any) -> Any:
    """It without the fields that are null."""
    if isinstance(value, dict):
        return {name: given(one) for name, one in value.items() if one is not None}
    return [given(one) for one in value] if isinstance(value, list) else value


class DeltaCutter:
    """Holds back, in streamed deltas, what could become a stop string; each part of the message for itself."""

    def __init__(self, stops: Sequence[str], *, include: bool) -> None:
        self._stops = stops
        self._include = include
        self._part: Part | None = None
        self._cutter = StopCutter(stops)

    def push(self, delta: Json, *, last: bool, stop_reason: int | str | None) -> None:
        """Take out of `delta` what may not be shown yet; the last one gets all, cut where the answer stopped."""
        # What goes on comes before what is new.
        texts = sorted(_texts(delta), key=lambda one: one[0] != self._part)
        for left, (part, holder, name) in enumerate(texts, 1 - len(texts)):
            self._enter(part, delta)
            ends = last and not left
            holder[name] = self._cutter.end(holder[name], stop_reason) if ends else self._cutter.push(holder[name])
        if last and not texts:
            self._add(delta, self._cutter.end("", stop_reason))

    def _enter(self, part: Part, delta: Json) -> None:
        if part != self._part:
            self._add(delta, self._cutter.end("", None))
            self._part, self._cutter = part, StopCutter(self._stops, include=self._include)

    def _add(self, delta: Json, text: str) -> None:
        """Text that was held back, to where its part is."""
        part = self._part
        if text and isinstance(part, str):
            delta[part] = delta.get(part, "") + text
        elif text:
            calls = delta.setdefault("tool_calls", [])
            after = max((at for at, one in enumerate(calls, 1) if one["index"] == part), default=0)
            calls.insert(after, {"index": part, "function": {"arguments": text}})


def _texts(delta: Json) -> list[tuple[Part, Json, str]]:
    """(part, holder, field) of every text in it, in the order in which the model said them."""
    found: list[tuple[Part, Json, str]] = [(name, delta, name) for name in ("reasoning", "content") if delta.get(name)]
    for call in delta.get("tool_calls") or ():
        function = call.get("function") or {}
        if function.get("arguments"):
            found.append((call["index"], function, "arguments"))
    return found
