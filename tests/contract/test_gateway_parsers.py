"""Tool calls and reasoning, as an engine's parsers see them, asked directly and through the gateway: the same answers.

The engine's model says what a request wants (`scripted_logits`), so answers are those of a model that was trained.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from equality import EXCEPTIONS, Difference, Json, Row, add, differences, explained

if TYPE_CHECKING:
    from conftest import RealBench

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

TYPED = {"type": "object", "properties": {"a": {"type": "string"}}}
LOOK = {"type": "function", "function": {"name": "look", "parameters": TYPED}}
NAMED = {"type": "function", "function": {"name": "look"}}
USER = [{"role": "user", "content": "hi"}]
PATH = "/v1/chat/completions"

THOUGHT = "<think>\nIs it {é}? A <tool> 🙂\n</think>\n\n"
BRIEF = "<think>\nIs it {é}?</think>"
UNTHOUGHT = "<think>\n\n</think>\n\n"
CALL = '<tool_call>\n{"name": "look", "arguments": {"a": "{é} \\"🙂\\" }}"}}\n</tool_call>'
SECOND = '<tool_call>\n{"name": "look", "arguments": {"a": "x", "b": [1, {"c": {}}]}}\n</tool_call>'
END = "<|im_end|>"


def said(script: str, **more: Any) -> Json:
    """A chat request that is answered by `script`."""
    common = {"model": "tiny", "max_tokens": 400, "temperature": 0, "messages": USER, "tools": [LOOK]}
    return {**common, "vllm_xargs": {"say": "assistant\n" + script}, **more}


CALLS: dict[str, Json] = {
    "call": said(THOUGHT + CALL + END),
    "call at once": said(UNTHOUGHT + CALL + END, chat_template_kwargs={"enable_thinking": False}),
    "calls after text": said(THOUGHT + "Let me see: {é}.\n" + CALL + "\n" + SECOND + END),
    "only one call": said(BRIEF + CALL + END, parallel_tool_calls=False),
    "call unwanted": said(THOUGHT + CALL + END, tool_choice="none"),
    "call without tools": said(THOUGHT + CALL + END, tools=None),
    "call cut short": said(THOUGHT + CALL[:-30], max_tokens=len((THOUGHT + CALL).encode()) - 80),
    "call broken": said(THOUGHT + '<tool_call>\n{"name": "look", "arguments": {"a": }\n</tool_call>' + END),
    "call ids": said(THOUGHT + CALL + END, return_token_ids=True),
    "call logprobs": said(THOUGHT + CALL + END, logprobs=True, top_logprobs=2),
    "call logprobs by id": said(THOUGHT + CALL + END, logprobs=True, return_tokens_as_token_ids=True),
    "call ends by length": said(THOUGHT + CALL + " and", max_tokens=len((THOUGHT + CALL).encode()) - 30),
    "call stopped": said(THOUGHT + CALL + " and so on" + END, stop=["so"]),
    "stopped in the call": said(THOUGHT + CALL + END, stop=["🙂"]),
    "stopped in the reasoning": said(THOUGHT + CALL + END, stop=["A <t"]),
    "stopped with what stopped it": said(THOUGHT + CALL + END, stop=["A <t"], include_stop_str_in_output=True),
    "content": said(THOUGHT + "It is so." + END),
    "content without reasoning": said("It is so." + END),
    "content stopped": said(THOUGHT + "It is so." + END, stop=[" so"]),
    "reasoning without an end": said(THOUGHT[:20] + "é" * 50, max_tokens=40),
    "reasoning in a budget": said("<think>\n", thinking_token_budget=5, max_tokens=20, ignore_eos=True),
    "reasoning hidden": said(THOUGHT + "It is so." + END, include_reasoning=False),
    "reasoning hidden and all asked": said(
        THOUGHT + "It is so." + END, include_reasoning=False, logprobs=True, return_token_ids=True
    ),
    "reasoning hidden, without an end": said(THOUGHT[:20] + "é" * 50, max_tokens=40, include_reasoning=False),
    "special tokens": said(THOUGHT + "It <|pad|>is" + CALL + END),
    "special tokens without tools": said(THOUGHT + "It <|pad|>is." + END, tools=None),
    "schema after reasoning": said(
        BRIEF + '{"a":"x"}' + END,
        tools=None,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": TYPED}},
    ),
    "schema without reasoning": said(
        UNTHOUGHT + '{"a":"x"}' + END,
        tools=None,
        chat_template_kwargs={"enable_thinking": False},
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": TYPED}},
    ),
    "named": said(BRIEF + CALL + END, tool_choice=NAMED),
    "required": said(BRIEF + CALL + SECOND + END, tool_choice="required"),
    "samples": said(THOUGHT + CALL + END, n=2, temperature=0.5, seed=3),
}
WHOLE_ONLY = ("call broken", "special tokens", "special tokens without tools")
"""What parsers make of these in a stream depends on how the engine divides it, which differs from time to time."""
STREAMED: Json = {"stream": True, "stream_options": {"include_usage": True}}
BOTH = CALLS | {f"{name}, streamed": {**body, **STREAMED} for name, body in CALLS.items() if name not in WHOLE_ONLY}


async def asked_both(parsed: RealBench, body: Json) -> list[Difference]:
    engine = parsed.engines[0].call("POST", PATH, body)
    return differences(engine, await parsed.client.post(PATH, json=body))


def unexplained(found: list[Difference], name: str = "") -> list[Difference]:
    return [one for one in found if explained(one, name) is None]


@pytest.mark.parametrize("name", BOTH)
async def test_the_gateway_answers_as_its_engine_does(parsed: RealBench, name: str) -> None:
    assert unexplained(await asked_both(parsed, BOTH[name]), name) == []
    assert not [worker.facts.pod for worker in parsed.gateway.fleet.workers.values() if worker.ejected]


@pytest.mark.parametrize("row", [row for row in EXCEPTIONS if row.parsers], ids=lambda row: row.what)
async def test_every_exception_is_to_be_seen(parsed: RealBench, row: Row) -> None:
    assert row in [explained(one, row.shown_by) for one in await asked_both(parsed, BOTH[row.shown_by])]


async def message(parsed: RealBench, body: Json, trajectory: str, turn: int) -> Json:
    """The assistant's message, put together as clients do it."""
    headers = {"X-Pearl-Trajectory": trajectory, "X-Pearl-Turn": str(turn)}
    answer = await parsed.client.post(PATH, json=body, headers=headers)
    if not body.get("stream"):
        found: Json = answer.json()["choices"][0]["message"]
        return found
    deltas = [json.loads(line[6:])["choices"] for line in answer.text.split("\n\n") if line.startswith("data: {")]
    whole: Json = {}
    for delta in [choice["delta"] for choices in deltas for choice in choices]:
        assert "null" not in json.dumps(delta)
        add(whole, delta)
    calls = whole.pop("tool_calls", {}).values()
    functions = [{name: call[name] for name in ("name", "arguments")} for call in calls]
    named = [{**call, "function": function} for call, function in zip(calls, functions, strict=True)]
    return {**whole, "tool_calls": named}


@pytest.mark.parametrize("more", [{}, STREAMED], ids=["whole", "streamed"])
async def test_history_with_tool_calls_and_reasoning_goes_on_from_the_ids(parsed: RealBench, more: Json) -> None:
    name = f"history-{bool(more)}"
    scripts = [THOUGHT + "Let me see.\n" + CALL + "\n" + SECOND + END, UNTHOUGHT + SECOND + END, BRIEF + "So." + END]
    messages: list[Json] = list(USER)
    for at, script in enumerate(scripts):
        said_now = await message(parsed, said(script, messages=messages, **more), name, at)
        assert [one["function"]["name"] for one in said_now.get("tool_calls") or ()] == ["look"] * (2, 1, 0)[at]
        results = [
            {"role": "tool", "tool_call_id": one["id"], "content": '{"found": "é"}'}
            for one in said_now.get("tool_calls") or ()
        ]
        messages += [said_now, *results]
    export = (await parsed.client.get(f"/v1/trajectories/{name}")).json()
    assert [one["reason"] for one in export["segments"]] == ["complete"] * 3
    generated = [export["tokenIds"][one["start"] : one["end"]] for one in export["segments"]]
    assert generated == [tokens(parsed, script) for script in scripts]
    # What came between two answers: the results as the template writes them, and no word of the history again.
    between = export["tokenIds"][export["segments"][0]["end"] : export["segments"][1]["start"]]
    result = '<|im_start|>tool\n{"found": "é"}<|im_end|>\n'
    assert between == tokens(parsed, "\n" + result + result + "<|im_start|>assistant\n")


def tokens(parsed: RealBench, text: str) -> list[int]:
    found: list[int] = parsed.engines[0].call("POST", "/tokenize", {"prompt": text}).json()["tokens"]
    return found


@pytest.mark.parametrize("more", [{}, STREAMED], ids=["whole", "streamed"])
async def test_an_answer_that_is_resumed_within_a_call_is_parsed_as_one(parsed: RealBench, more: Json) -> None:
    long = CALL.replace("{é}", "{é}" * 60)
    body, name = said(THOUGHT + "So: " + long + SECOND + END, **more), f"resumed-{bool(more)}"
    direct = parsed.engines[0].call("POST", PATH, body)
    task = asyncio.create_task(parsed.client.post(PATH, json=body, headers={"X-Pearl-Trajectory": name}))
    await parsed.received(name, len(THOUGHT) + 60)
    parsed.engines[0].ask("/pause?mode=abort", token="admin")  # noqa: S106
    parsed.engines[0].ask("/resume", token="admin")  # noqa: S106
    gateway = await task
    export = (await parsed.client.get(f"/v1/trajectories/{name}")).json()
    first, second = export["segments"]
    begun, ended = tokens(parsed, THOUGHT + "So: <tool_call>"), tokens(parsed, THOUGHT + "So: " + long)
    assert len(begun) < second["start"] - first["start"] < len(ended)
    assert unexplained(differences(direct, gateway)) == []


async def test_a_repeated_turn_has_the_same_calls(parsed: RealBench) -> None:
    body = said(THOUGHT + CALL + SECOND + END)
    whole, again = [await message(parsed, body, "repeated", 0) for _ in range(2)]
    streamed = await message(parsed, {**body, **STREAMED}, "repeated", 0)
    assert whole == again
    ids = [one["id"] for one in whole["tool_calls"]]
    assert [one["id"] for one in streamed["tool_calls"]] == ids
    assert len(set(ids)) == 2
