"""The emulated engine answers as vLLM does, field by field: every request here goes to both.

`vllm_answers.json` holds vLLM's answers with what may differ blanked out (FREE below; docs/emulator.md says why).
Real vLLM is held against it in the engine suite, the emulator in the unit suite. `PEARL_RECORD=1` and real engines
write it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from conftest import RealEngine

pytestmark = pytest.mark.timeout(600)

RECORD = Path(__file__).with_name("vllm_answers.json")
IDS = [1, 2, 3, 4]
LONG = [(37 * at + 11) % 200 + 32 for at in range(71)]
KEEP_KV = {"do_remote_decode": True, "do_remote_prefill": False}
SAID = [{"role": "user", "content": "hi"}]
ALL_TOKENS = list(range(256))


def text(**more: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/completions", {
        "model": "tiny",
        "prompt": IDS,
        "max_tokens": 4,
        "temperature": 0,
        "ignore_eos": True,
        **more,
    }


def chat(**more: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {
        "model": "tiny",
        "messages": SAID,
        "max_tokens": 4,
        "temperature": 0,
        "ignore_eos": True,
        **more,
    }


def ids(sampling: dict[str, Any] | None = None, **more: Any) -> tuple[str, dict[str, Any]]:
    given = {"max_tokens": 4, "temperature": 0, "ignore_eos": True, **(sampling or {})}
    return "/inference/v1/generate", {"model": "tiny", "token_ids": IDS, "sampling_params": given, **more}


def without(call: tuple[str, dict[str, Any]], *names: str) -> tuple[str, dict[str, Any]]:
    return call[0], {name: value for name, value in call[1].items() if name not in names}


def to(path: str, call: tuple[str, dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    return call[0] + path, call[1]


def answered(**choice: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "token_ids": [65, 66], **choice}]}


USAGE = {"include_usage": True}
STREAM = {"stream": True, "max_tokens": 24}
SCORED = {
    "content": [
        {
            "token_id": one,
            "logprob": -0.5,
            "rank": 1,
            "top_logprobs": [{"token_id": one, "logprob": -0.5, "rank": 1}],
        }
        for one in (65, 66)
    ]
}
ANY_TEMPERATURE = {"n": 2, "temperature": 1.0}
DERENDER, DERENDER_CHAT = "/v1/completions/derender", "/v1/chat/completions/derender"

POSTS: dict[str, tuple[str, Any]] = {
    # First, so that the leases are over when something waits for them.
    "text keeps kv": text(prompt=LONG, max_tokens=1, kv_transfer_params=KEEP_KV),
    "ids keeps kv": ids({"max_tokens": 1}, token_ids=LONG, kv_transfer_params=KEEP_KV),
    "text": text(),
    "text ids": text(return_token_ids=True),
    "text logprobs 0": text(logprobs=0, return_tokens_as_token_ids=True),
    "text logprobs 2": text(logprobs=2),
    "text prompt logprobs": text(prompt_logprobs=0),
    "text echo": text(prompt="ab", echo=True),
    "text two samples": text(**ANY_TEMPERATURE, return_token_ids=True),
    "text two greedy samples": text(n=2),
    "text of text": text(prompt="Once upon é"),
    "text two prompts": text(prompt=["ab", "cd"], return_token_ids=True),
    "text two prompts of ids": text(prompt=[[1, 2], [3, 4, 5]]),
    "text stream": text(**STREAM, return_token_ids=True),
    "text stream usage": text(**STREAM, stream_options=USAGE),
    "text stream usage each time": text(**STREAM, stream_options={**USAGE, "continuous_usage_stats": True}),
    "text stream logprobs": text(**STREAM, logprobs=1),
    "text stream two samples": text(**STREAM, **ANY_TEMPERATURE),
    "text stream options alone": text(stream_options=USAGE),
    "text stream out of vocabulary": text(prompt=[1, 2, 9999], stream=True),
    "text stream too long": text(prompt=[1] * 2250, stream=True),
    "text stream many logprobs": text(logprobs=50, stream=True),
    "text stream temperature": text(temperature=-1, stream=True),
    "text out of vocabulary": text(prompt=[1, 2, 9999]),
    "text negative id": text(prompt=[1, -2]),
    "text too long": text(prompt=[1] * 2250),
    "text just too long": text(prompt=[1] * 2048),
    "text cut by the context": text(prompt=[1] * 2040, max_tokens=100),
    "text default length": without(text(), "max_tokens"),
    "text no tokens": text(max_tokens=0),
    "text too many tokens": text(max_tokens=100_000),
    "text empty ids": text(prompt=[]),
    "text empty": text(prompt=""),
    "text no prompt": without(text(), "prompt"),
    "text other model": text(model="other"),
    "text no model": without(text(), "model"),
    "text temperature": text(temperature=-1),
    "text top p": text(top_p=2),
    "text top k": text(top_k=-5),
    "text no samples": text(n=0),
    "text not a number": text(max_tokens="many"),
    "text negative logprobs": text(logprobs=-1),
    "text many logprobs": text(logprobs=50),
    "text unknown field": text(no_such_field=1),
    "text min above max": text(min_tokens=6),
    "text seed": text(seed=7, temperature=1.0),
    "text stop token": text(max_tokens=30, stop_token_ids=ALL_TOKENS, return_token_ids=True),
    "text own id": text(request_id="mine"),
    "chat": chat(),
    "chat logprobs": chat(return_token_ids=True, logprobs=True, top_logprobs=2),
    "chat logprobs 0": chat(logprobs=True, top_logprobs=0, return_tokens_as_token_ids=True),
    "chat stream": chat(**STREAM),
    "chat stream all": chat(**STREAM, logprobs=True, top_logprobs=1, return_token_ids=True, stream_options=USAGE),
    "chat stream many logprobs": chat(logprobs=True, top_logprobs=50, stream=True),
    "chat stream no tokens": chat(max_tokens=0, stream=True),
    "chat two samples": chat(**ANY_TEMPERATURE),
    "chat other limit": chat(max_tokens=None, max_completion_tokens=3),
    "chat no messages": without(chat(), "messages"),
    "chat empty": chat(messages=[]),
    "chat parts": chat(
        messages=[{"role": "system", "content": "x"}, {"role": "user", "content": [{"type": "text", "text": "yo"}]}]
    ),
    "chat top logprobs alone": chat(top_logprobs=2),
    "ids": ids(),
    "ids logprobs 0": ids({"logprobs": 0}),
    "ids logprobs 2": ids({"logprobs": 2}),
    "ids as text": ids({"logprobs": 1}, output_mode="text"),
    "ids stream": ids({"max_tokens": 24}, stream=True),
    "ids stream all": ids({"logprobs": 1, "max_tokens": 24}, stream=True, stream_options=USAGE, return_token_ids=True),
    "ids two samples": ids(ANY_TEMPERATURE),
    "ids stream two samples": ids({**ANY_TEMPERATURE, "max_tokens": 24}, stream=True),
    "ids stream out of vocabulary": ids(token_ids=[9999], stream=True),
    "ids stream too long": ids(token_ids=[1] * 2250, stream=True),
    "ids stream just too long": ids(token_ids=[1] * 2048, stream=True),
    "ids stream many logprobs": ids({"logprobs": 50}, stream=True),
    "ids stream negative logprobs": ids({"logprobs": -1}, stream=True),
    "ids stream temperature": ids({"temperature": -1}, stream=True),
    "ids stream no tokens": ids({"max_tokens": 0}, stream=True),
    "ids stream min above max": ids({"min_tokens": 6}, stream=True),
    "ids stream greedy samples": ids({"n": 2}, stream=True),
    "ids prompt logprobs": ids({"prompt_logprobs": 0}),
    "ids own id": ids(request_id="one"),
    "ids empty": ids(token_ids=[]),
    "ids negative": ids(token_ids=[-1]),
    "ids out of vocabulary": ids(token_ids=[9999]),
    "ids too long": ids(token_ids=[1] * 2250),
    "ids just too long": ids(token_ids=[1] * 2048),
    "ids cut by the context": ids({"max_tokens": 100}, token_ids=[1] * 2040),
    "ids no tokens": ids({"max_tokens": 0}),
    "ids no parameters": without(ids(), "sampling_params"),
    "ids no ids": without(ids(), "token_ids"),
    "ids temperature": ids({"temperature": -1}),
    "ids unknown parameter": ids({"no_such": 1}),
    "ids other model": ids(model="other"),
    "ids no samples": ids({"n": 0}),
    "ids priority": ids(priority=3),
    "ids stop token": ids({"max_tokens": 30, "stop_token_ids": ALL_TOKENS}),
    "tokenize": ("/tokenize", {"model": "tiny", "prompt": "2+2=é\n<|im_end|>"}),
    "tokenize names": ("/tokenize", {"model": "tiny", "prompt": "2+2", "return_token_strs": True}),
    "tokenize chat": ("/tokenize", {"model": "tiny", "messages": SAID}),
    "tokenize nothing": ("/tokenize", {"model": "tiny"}),
    "detokenize": ("/detokenize", {"model": "tiny", "tokens": [17, 10, 17, 28, 256]}),
    "detokenize unknown": ("/detokenize", {"model": "tiny", "tokens": [99_999]}),
    "render text": to("/render", text(prompt="ab<|im_end|>c", stop=["x"], logprobs=1, seed=3, min_tokens=1)),
    "render texts": to("/render", text(prompt=["ab", "c"])),
    "render least": ("/v1/completions/render", {"prompt": [0]}),
    "render too many tokens": to("/render", text(max_tokens=100_000)),
    "render chat": to("/render", chat(logprobs=True, top_logprobs=1, stop="q", stop_token_ids=[5])),
    "render history": to("/render", chat(add_generation_prompt=False)),
    "render continuation": to(
        "/render",
        chat(
            messages=[*SAID, {"role": "assistant", "content": "b"}],
            add_generation_prompt=False,
            continue_final_message=True,
        ),
    ),
    "render no messages": to("/render", without(chat(), "messages")),
    "derender": (DERENDER, {"generate_responses": [answered()], "prompt_token_ids": [[1, 2]]}),
    "derender logprobs": (
        DERENDER,
        {"generate_responses": [answered(logprobs=SCORED)], "completion_request": {"prompt": [0]}},
    ),
    "derender nothing": (DERENDER, {"generate_responses": []}),
    "derender chat": (
        DERENDER_CHAT,
        {"generate_response": answered(logprobs=SCORED), "prompt_token_ids": [1, 2], "chat_request": chat()[1]},
    ),
    "derender stream": (
        DERENDER,
        {"stream": True, "generate_chunk": answered(finish_reason=None), "prompt_token_ids": [1, 2]},
    ),
    "derender chat stream": (
        DERENDER_CHAT,
        {
            "stream": True,
            "generate_chunk": answered(finish_reason="length"),
            "prompt_token_ids": [1, 2],
            "chat_request": chat()[1],
        },
    ),
    "abort nobody": ("/abort_requests", {"request_ids": ["x", "y"]}),
    "abort quietly": ("/inference/v1/abort_requests", {"request_ids": ["x"]}),
    "abort quietly without ids": ("/inference/v1/abort_requests", {}),
    "pause mode": ("/pause?mode=never", None),
    "sleep level": ("/sleep?level=5", None),
    "sleep level below": ("/sleep?level=-1", None),
    "sleep level word": ("/sleep?level=deep", None),
    "init weights": ("/init_weight_transfer_engine", {"init_info": {}}),
    "init weights without": ("/init_weight_transfer_engine", {}),
    "update without start": ("/update_weights", {"update_info": {"paths": ["/nothere"]}}),
    "finish without start": ("/finish_weight_update", {"weight_version": "3"}),
    "label": ("/update_weight_version", {"new_version": "default"}),
    "label without": ("/update_weight_version", {}),
    "rpc unknown": ("/collective_rpc", {"method": "no_such"}),
    "is scaling": ("/is_scaling_elastic_ep", None),
    "nowhere": ("/nothing", {}),
    "broken json": ("/inference/v1/generate", b'{"x'),
    "no object": ("/v1/completions", b"[1]"),
    "abort broken json": ("/abort_requests", b"{"),
    "abort list": ("/abort_requests", b"[]"),
}
GETS = (
    *("/health", "/ping", "/version", "/v1/models", "/is_paused", "/is_sleeping", "/weight_info", "/get_world_size"),
    *("/kv_event_sources", "/v1/completions", "/nothing"),
)

FREE = {
    # identities and times
    *("id", "request_id", "created", "system_fingerprint", "root"),
    *("remote_engine_id", "remote_request_id", "remote_port", "remote_block_ids", "remote_prefill_cached_tokens"),
    # what follows from the tokens
    *("text", "content", "token_ids", "token", "token_id", "tokens", "token_logprobs", "logprob", "rank", "bytes"),
    *("text_offset", "decoded_token", "stop_reason"),
    # where the incremental decoder of the text is
    *("prev_tokens", "prefix_offset", "read_offset"),
}
BY_TOKEN = {"prompt_logprobs", "top_logprobs"}
TOKENS_COUNT = {"token_ids", "tokens", "token_logprobs", "text_offset"}
SAME_TEXT = ("tokenize", "detokenize", "render", "derender")
"""Cases where the tokens are no matter of the model: there the ids and texts are equal too."""


def blanked(value: Any, name: str = "", *, free: set[str] = FREE) -> Any:
    """The form of an answer: free values as their types, everything else as it is."""
    if name in BY_TOKEN and isinstance(value, dict):  # keyed by token
        return [blanked(one, "logprob", free=free) for one in list(value.values())[:1]]
    if isinstance(value, dict):
        return {key: blanked(one, key, free=free) for key, one in value.items()}
    if isinstance(value, list) and name in free:
        return f"{len(value)} tokens" if name in TOKENS_COUNT else "list"
    if isinstance(value, list):
        return [blanked(one, name, free=free) for one in value]
    if name == "message" and "validation errors:" in str(value):
        return "validation"
    return type(value).__name__ if name in free and value is not None else value


def streamed(events: list[dict[str, Any]]) -> list[Any]:
    """Events that differ in form, in order. How many tokens an event has depends on how fast they are read."""
    found: list[dict[str, Any]] = []
    for event in events:
        for choice in event.get("choices", ()):
            if "token_ids" in choice:
                choice["token_ids"] = choice["token_ids"] is not None
            if choice.get("logprobs"):
                choice["logprobs"] = sorted(choice["logprobs"])
        if event.get("choices") and event.get("usage"):
            event["usage"] = sorted(event["usage"])
        if event not in found:
            found.append(event)
    # Samples of one request come in any order.
    return sorted(found, key=lambda one: one["choices"][0]["index"] if one.get("choices") else 9)


def form(name: str, response: httpx.Response) -> dict[str, Any]:
    free = {one for one in FREE if not name.startswith(SAME_TEXT) or one in ("id", "request_id", "created")}
    if "stream" in name:
        free |= {"prev_tokens", "prefix_offset", "read_offset"}
    body: Any = response.text
    if body.startswith("data: "):
        *events, end = [one.removeprefix("data: ") for one in body.strip().split("\n\n")]
        body = [*streamed([blanked(json.loads(one), free=free) for one in events]), end]
    elif response.headers.get("content-type") == "application/json":
        body = blanked(response.json(), free=free)
        if name in ("text negative id", "tokenize nothing"):  # the emulator names the first of several mistakes
            body["error"]["message"] = "validation"
    return {"status": response.status_code, "type": response.headers.get("content-type"), "body": body}


def ask(engine: RealEngine, name: str) -> httpx.Response:
    if name.startswith("/"):
        return engine.call("GET", name)
    path, body = POSTS[name]
    return engine.call("POST", path, body)


@pytest.fixture(scope="module")
def recorded() -> Iterator[dict[str, Any]]:
    found = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    yield found
    if os.environ.get("PEARL_RECORD"):
        lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in found.items()]
        RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")


@pytest.mark.parametrize("name", [*GETS, *POSTS])
def test_answers_are_vllms(engines: list[RealEngine], recorded: dict[str, Any], name: str) -> None:
    found = form(name, ask(engines[0], name))
    if os.environ.get("PEARL_RECORD") and type(engines[0]).__name__ == "RealEngine":
        recorded[name] = found
    assert found == recorded[name]


def test_request_id_of_the_header_wins(engines: list[RealEngine]) -> None:
    path, body = ids(request_id="body")
    answer = engines[0].call("POST", path, body, headers={"X-Request-Id": "header"})
    assert answer.json()["request_id"] == "generate-tokens-header"


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_end_the_answer_and_are_cut_off(engines: list[RealEngine], stream: bool) -> None:
    whole = engines[0].call("POST", *text(max_tokens=40, prompt=LONG)).json()["choices"][0]["text"]
    stop = next(one for one in whole[8:] if one.isascii() and one.isprintable() and one not in whole[:8])
    before = whole[: whole.index(stop)]
    for include in (False, True):
        more = {"stop": [stop, "never there"], "include_stop_str_in_output": include, "stream": stream}
        response = engines[0].call("POST", *text(max_tokens=40, prompt=LONG, **more))
        if stream:
            events = [json.loads(one[6:]) for one in response.text.split("\n\n") if one.startswith("data: {")]
            choices = [event["choices"][0] for event in events]
        else:
            choices = [response.json()["choices"][0]]
        assert "".join(one["text"] for one in choices) == before + (stop if include else "")
        assert (choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == ("stop", stop)


def test_metrics_have_vllms_names_types_labels_and_buckets(engines: list[RealEngine], recorded: dict[str, Any]) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    engines[0].call("POST", *ids())
    for path in ("/sleep?level=1", "/wake_up", "/init_weight_transfer_engine"):
        engines[0].call("POST", path, {"init_info": {}} if path.startswith("/init") else None)
    found: dict[str, Any] = {}
    for family in text_string_to_metric_families(engines[0].call("GET", "/metrics").text):
        if not family.name.startswith("vllm:"):
            continue  # of the process and of HTTP
        labels: dict[str, set[str]] = {}
        for sample in family.samples:
            for name, value in sample.labels.items():
                labels.setdefault(name, set()).add(value)
        if family.name == "vllm:cache_config_info":
            labels = {name: set() for name in ("block_size", "num_gpu_blocks", "engine") if name in labels}
        if "operation" in labels:
            labels["operation"] = set()  # those that were called
        found[family.name] = [family.type, {name: sorted(values) for name, values in sorted(labels.items())}]
    if os.environ.get("PEARL_RECORD") and type(engines[0]).__name__ == "RealEngine":
        recorded["metrics"] = found
    assert found == recorded["metrics"]
