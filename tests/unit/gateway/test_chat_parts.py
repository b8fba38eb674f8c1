"""Chats of engines with parsers: stop strings in every part of a message, names of calls, what a stream shows when."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from pearl_gateway.chat_parts import DeltaCutter, name_calls, whole_finish
from pearl_gateway.streams import Streams
from pearl_gateway.tokens_out import TextStream
from pearl_gateway.turn_state import Turn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CALL = '{"a": [{"b": 1}]}'


def delta_of(part: str | int, text: str) -> dict[str, Any]:
    return {part: text} if isinstance(part, str) else {"tool_calls": [{"index": part, "function": {"arguments": text}}]}


def joined(deltas: list[dict[str, Any]]) -> dict[str | int, str]:
    whole: dict[str | int, str] = {}
    for delta in deltas:
        texts = [(name, delta[name]) for name in ("reasoning", "content") if name in delta]
        texts += [(one["index"], one["function"]["arguments"]) for one in delta.get("tool_calls") or ()]
        for part, text in texts:
            whole[part] = whole.get(part, "") + text
    return whole


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize(
    "said",
    [
        [("reasoning", "so it is"), ("content", "Yes. STOP")],
        [("reasoning", "so it STOP")],
        [("content", "See:"), (0, CALL), (1, '{"a": "STOP')],
        [(0, CALL), ("content", "and STOP")],
    ],
)
def test_a_stop_string_is_cut_in_the_part_where_it_is_and_nothing_else_is_lost(
    said: list[tuple[str | int, str]], size: int, include: bool
) -> None:
    cutter = DeltaCutter(["never", "STOP"], include=include)
    deltas = [delta_of(part, text[at : at + size]) for part, text in said for at in range(0, len(text), size)]
    for at, delta in enumerate(deltas, 1):
        cutter.push(delta, last=at == len(deltas), stop_reason="STOP" if at == len(deltas) else None)
    expected = {part: text if include else text.removesuffix("STOP") for part, text in said}
    assert {part: text for part, text in joined(deltas).items() if text} == expected


def test_the_end_of_a_call_comes_before_the_content_after_it_in_the_same_delta() -> None:
    cutter = DeltaCutter(["STOP"], include=False)
    first, second = delta_of(0, '{"a": "}'), {**delta_of(0, '"}'), "content": " and"}
    cutter.push(first, last=False, stop_reason=None)
    cutter.push(second, last=True, stop_reason=None)
    assert joined([first, second]) == {0: '{"a": "}"}', "content": " and"}


@pytest.mark.parametrize(
    ("choice", "calls", "finish", "expected"),
    [
        (None, 1, "stop", "tool_calls"),
        ("auto", 1, "length", "tool_calls"),
        ("auto", 0, "stop", "stop"),
        ("required", 1, "stop", "tool_calls"),
        ("required", 1, "length", "length"),
        ({"type": "function", "function": {"name": "look"}}, 1, "stop", "stop"),
    ],
)
def test_a_whole_answer_ends_as_the_engine_says(choice: Any, calls: int, finish: str, expected: str) -> None:
    assert whole_finish({"tool_choice": choice}, {"tool_calls": [{}] * calls}, finish) == expected


def turn_of(ids: list[int], **more: Any) -> Turn:
    return Turn("t", 0, 0, prompt=[1], sampling={}, token_ids=ids, visible=len(ids), **more)


def test_ids_that_mean_something_to_a_template_are_kept() -> None:
    delta = {"tool_calls": [{"index": 0, "id": "functions.look:0"}, {"index": 1, "id": "chatcmpl-tool-0123"}]}
    name_calls(turn_of([]), delta)
    kept, drawn = (one["id"] for one in delta["tool_calls"])
    assert kept == "functions.look:0"
    whole = {"tool_calls": [{"id": "5f"}, {"id": "6a"}]}
    name_calls(turn_of([]), whole)
    assert whole["tool_calls"][1]["id"] == drawn != "chatcmpl-tool-0123"


class Derendered:
    """A text service that notes what it is asked."""

    def __init__(self) -> None:
        self.chunks: list[list[int]] = []

    async def call(self, _path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.chunks.append(body["generate_chunk"]["choices"][0]["token_ids"])
        return {"chunk": {"choices": [{"delta": {"content": "x"}}]}, "stream_state": None}


async def test_a_stop_token_is_no_text_also_where_it_comes_before_the_turn_is_settled() -> None:
    service = Derendered()
    turn = turn_of([65, 66, 2], finish_reason="stop")
    stream = TextStream(service, {"messages": []}, turn, chat=True)  # type: ignore[arg-type]
    await stream.push(0, 3, last=False)
    await stream.push(3, 3, last=True)
    assert service.chunks == [[65, 66], []]


class Readers:
    """Sessions of which only the reading is wanted."""

    @asynccontextmanager
    async def reading(self, _turn: Turn) -> AsyncIterator[None]:
        yield


@pytest.mark.parametrize(("alone", "expected"), [(True, [(0, 1), (1, 4)]), (False, [(0, 4)])])
async def test_the_first_token_of_a_chat_is_parsed_alone(alone: bool, expected: list[tuple[int, int]]) -> None:
    streams = Streams(Readers(), Derendered())  # type: ignore[arg-type]
    turn = turn_of([5, 6, 7, 8], settled=True)
    assert [one async for one in streams.follow(turn, first_alone=alone)] == expected
