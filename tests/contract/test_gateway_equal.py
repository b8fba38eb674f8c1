"""One engine asked directly and through the gateway: equal answers, field by field, but for EXCEPTIONS.

With `test_emulator.py` three are held against each other: real vLLM (engine suite), the emulated engine, the gateway.
docs/gateway.md shows EXCEPTIONS as a table; `PEARL_RECORD=1` writes it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from equality import EXCEPTIONS, OWN_CHECKS, Difference, Json, Row, differences, explained

if TYPE_CHECKING:
    from conftest import RealBench

pytestmark = pytest.mark.timeout(600)

DOCS = Path(__file__).parents[2] / "docs" / "gateway.md"
BEGIN, END = "<!-- exceptions: tests/contract/test_gateway_equal.py -->\n", "<!-- end -->\n"
Call = tuple[str, Any]
IDS = [1, 2, 3, 4]
USER = [{"role": "user", "content": "hi"}]
COMMON = {"model": "tiny", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
WARM = {"temperature": 0.9, "seed": 7}
STOPS = {"max_tokens": 40, "stop": ["e", "a", "c", "b"]}
STOP_IDS = {"max_tokens": 40, "stop_token_ids": list(range(256))}
PENALTIES = {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.2}
COUNTED: Json = {"stream": True, "stream_options": {"include_usage": True}}
OFTEN: Json = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
LOOK = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
CALLED = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": true}'}}
NAMED = {"type": "function", "function": {"name": "look"}}
BOUND: Json = {"max_tokens": 60, "ignore_eos": False}


def text(**more: Any) -> Call:
    return "/v1/completions", {**COMMON, "prompt": IDS, **more}


def chat(**more: Any) -> Call:
    return "/v1/chat/completions", {**COMMON, "messages": USER, **more}


def ids(sampling: Json | None = None, **more: Any) -> Call:
    given = {name: value for name, value in COMMON.items() if name != "model"} | (sampling or {})
    return "/inference/v1/generate", {"model": "tiny", "token_ids": IDS, "sampling_params": given, **more}


def without(call: Call, *names: str) -> Call:
    return call[0], {name: value for name, value in call[1].items() if name not in names}


ANSWERED: dict[str, Call] = {
    "text": text(),
    "text of text": text(prompt="Once upon é"),
    "text ids": text(return_token_ids=True),
    "text logprobs 0": text(logprobs=0),
    "text logprobs 2": text(logprobs=2),
    "text logprobs by id": text(logprobs=1, return_tokens_as_token_ids=True),
    "text two prompts": text(prompt=["ab", "cd"]),
    "text two prompts of ids": text(prompt=[[1, 2], [3, 4, 5]], return_token_ids=True),
    "text samples": text(n=2, **WARM),
    "text greedy samples": text(n=2),
    "text seed": text(**WARM),
    "text top": text(**WARM, top_p=0.8, top_k=20, min_p=0.05),
    "text penalties": text(**PENALTIES),
    "text stop": text(**STOPS),
    "text stop included": text(**STOPS, include_stop_str_in_output=True),
    "text stop ids": text(**STOP_IDS),
    "text min tokens": text(min_tokens=4, ignore_eos=False),
    "text bias": text(logit_bias={"65": 5}),
    "text bad words": text(bad_words=["x"]),
    "text allowed": text(allowed_token_ids=[65, 66, 67]),
    "text choice": text(structured_outputs={"choice": ["yes", "no"]}, **BOUND),
    "text default length": without(text(), "max_tokens"),
    "text of the default length": text(max_tokens=16),
    "text cut by the context": text(prompt=[1] * 2040, max_tokens=100),
    "text own id": text(request_id="mine", user="me", cache_salt="s", priority=3),
    "text special tokens": text(skip_special_tokens=False),
    "text no model": without(text(), "model"),
    "text unknown field": text(no_such_field=1),
    "text stream": text(stream=True),
    "text stream usage": text(**COUNTED),
    "text stream usage often": text(**OFTEN),
    "text stream logprobs": text(stream=True, logprobs=1),
    "text stream logprobs by id": text(stream=True, logprobs=1, return_tokens_as_token_ids=True),
    "text stream samples": text(stream=True, n=2, **WARM),
    "text stream stop": text(stream=True, **STOPS),
    "text stream ids": text(**COUNTED, return_token_ids=True),
    "chat": chat(),
    "chat ids": chat(return_token_ids=True),
    "chat logprobs": chat(logprobs=True, top_logprobs=2),
    "chat logprobs 0": chat(logprobs=True),
    "chat logprobs by id": chat(logprobs=True, top_logprobs=1, return_tokens_as_token_ids=True),
    "chat samples": chat(n=2, **WARM),
    "chat seed": chat(**WARM),
    "chat penalties": chat(**PENALTIES),
    "chat stop": chat(**STOPS),
    "chat stop ids": chat(**STOP_IDS),
    "chat other limit": chat(max_tokens=None, max_completion_tokens=3),
    "chat of the default length": chat(max_tokens=16),
    "chat default length": without(chat(), "max_tokens"),
    "chat parts": chat(messages=[{"role": "user", "content": [{"type": "text", "text": "yo"}]}]),
    "chat history": chat(messages=[*USER, {"role": "assistant", "content": "b"}, *USER]),
    "chat continued": chat(
        messages=[*USER, {"role": "assistant", "content": "b"}],
        add_generation_prompt=False,
        continue_final_message=True,
    ),
    "chat reasoning hidden": chat(include_reasoning=False, logprobs=True, return_token_ids=True),
    "chat tools": chat(tools=[LOOK], tool_choice="none"),
    "chat tool result": chat(
        messages=[
            *USER,
            {"role": "assistant", "content": None, "tool_calls": [CALLED]},
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
        ],
        tools=[LOOK],
        tool_choice="none",
    ),
    "chat tool or not": chat(tools=[LOOK], tool_choice="auto"),
    "chat tool named": chat(tools=[LOOK], tool_choice=NAMED, **BOUND),
    "chat tool required": chat(tools=[LOOK], tool_choice="required", **BOUND),
    "chat json": chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}, **BOUND),
    "chat stream": chat(stream=True),
    "chat stream all": chat(**COUNTED, logprobs=True, top_logprobs=1, return_token_ids=True),
    "chat stream usage often": chat(**OFTEN),
    "chat stream reasoning hidden": chat(include_reasoning=False, logprobs=True, return_token_ids=True, stream=True),
    "chat stream samples": chat(stream=True, n=2, **WARM),
    "chat stream stop": chat(stream=True, **STOPS),
    "chat stream tool": chat(tools=[LOOK], tool_choice=NAMED, stream=True, **BOUND),
    "ids": ids(),
    "ids logprobs 0": ids({"logprobs": 0}),
    "ids logprobs 2": ids({"logprobs": 2}),
    "ids stop": ids(STOPS),
    "ids stop ids": ids(STOP_IDS),
    "ids seed": ids(WARM),
    "ids of the default length": ids({"max_tokens": 16}),
    "ids stream": ids(stream=True),
    "ids stream all": ids({"logprobs": 1}, **COUNTED),
    "ids stream usage often": ids(**OFTEN),
    "ids no parameters": without(ids(), "sampling_params"),
}
REFUSED: dict[str, Call] = {
    "other model": text(model="other"),
    "temperature": text(temperature=-1),
    "top p": text(top_p=2),
    "top k": text(top_k=-5),
    "no samples": text(n=0),
    "not a number": text(max_tokens="many"),
    "no tokens": text(max_tokens=0),
    "too many tokens": text(max_tokens=100_000),
    "negative logprobs": text(logprobs=-1),
    "many logprobs": text(logprobs=50),
    "no prompt": without(text(), "prompt"),
    "empty prompt": text(prompt=""),
    "empty ids": text(prompt=[]),
    "out of vocabulary": text(prompt=[1, 2, 9999]),
    "negative id": text(prompt=[1, -2]),
    "too long": text(prompt=[1] * 2250),
    "just too long": text(prompt=[1] * 2048),
    "min above max": text(min_tokens=9),
    "options alone": text(stream_options={"include_usage": True}),
    "stream of a mistake": text(stream=True, temperature=-1),
    "stream out of vocabulary": text(prompt=[9999], stream=True),
    "ids stream of too many logprobs": ids({"logprobs": 50}, stream=True),
    "no messages": without(chat(), "messages"),
    "empty conversation": chat(messages=[]),
    "top logprobs alone": chat(top_logprobs=2),
    "no json": ("/v1/completions", b'{"x'),
    "no object": ("/v1/completions", b"[1]"),
    "ids empty": ids(token_ids=[]),
    "ids negative": ids(token_ids=[-1]),
    "ids out of vocabulary": ids(token_ids=[9999]),
    "ids none": without(ids(), "token_ids"),
    "ids temperature": ids({"temperature": -1}),
    "ids no tokens": ids({"max_tokens": 0}),
    "ids too long": ids(token_ids=[1] * 2250),
    "ids samples": ids({"n": 2}),
    "ids as text": ids(output_mode="text"),
    "ids prompt logprobs": ids({"prompt_logprobs": 0}),
    "echo": text(prompt="ab", echo=True),
    "suffix": text(suffix="x"),
    "prompt logprobs": text(prompt_logprobs=0),
    "beam search": text(use_beam_search=True),
}
CALLS = ANSWERED | REFUSED


async def asked_both(real: RealBench, name: str) -> list[Difference]:
    path, body = CALLS[name]
    real.gateway.fleet.remove("b")
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    engine = real.engines[0].call("POST", path, body)
    gateway = await real.client.post(path, content=content, headers={"Content-Type": "application/json"})
    return differences(engine, gateway)


@pytest.mark.parametrize("name", CALLS)
async def test_the_gateway_answers_as_its_engine_does(real: RealBench, name: str) -> None:
    unexplained = [one for one in await asked_both(real, name) if explained(one, name) is None]
    assert unexplained == []
    assert not [worker.facts.pod for worker in real.gateway.fleet.workers.values() if worker.ejected]


@pytest.mark.parametrize("row", [row for row in EXCEPTIONS if not row.parsers], ids=lambda row: row.what[:30])
async def test_every_exception_is_to_be_seen(real: RealBench, row: Row) -> None:
    assert row in [explained(one, row.shown_by) for one in await asked_both(real, row.shown_by)]


@pytest.mark.parametrize("name", [name for name in REFUSED if name not in ("no json", "no object")])
async def test_refusals_name_the_field(real: RealBench, name: str) -> None:
    path, body = CALLS[name]
    answer = await real.client.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code // 100, error["code"]) == (4, answer.status_code)
    if error["type"] in OWN_CHECKS:
        assert error["param"] in error["message"]


def test_the_exceptions_are_documented() -> None:
    head = ["| what | asked directly | through the gateway | why |", "|---|---|---|---|"]
    rows = [f"| {row.what} | {row.engine} | {row.gateway} | {row.why} |" for row in EXCEPTIONS]
    table = "\n".join([*head, *rows]) + "\n"
    page = DOCS.read_text()
    before, found = page.split(BEGIN)
    documented, after = found.split(END)
    if os.environ.get("PEARL_RECORD"):
        DOCS.write_text(f"{before}{BEGIN}{table}{END}{after}")
    assert documented == table, "PEARL_RECORD=1 writes it"
