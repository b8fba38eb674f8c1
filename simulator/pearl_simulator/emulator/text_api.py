"""Text services: tokenize, render (requests to token ids) and derender (token ids to answers). No engine is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pearl_simulator.emulator import asked, tokenizer
from pearl_simulator.emulator.answers import Json, chat_message
from pearl_simulator.emulator.errors import ApiError, invalid, missing

if TYPE_CHECKING:
    from collections.abc import Callable

    from pearl_simulator.emulator.config import EngineConfig

_CARRIED = 4
"""Token ids that the streaming state remembers for logprobs."""


def tokenize(body: Json, config: EngineConfig) -> Json:
    """`/tokenize` of a text or a conversation."""
    if "messages" in body:
        ids = asked.chat_prompt(body)
    elif "prompt" in body:
        ids = tokenizer.encode(body["prompt"])
    else:
        raise missing("body.prompt", body)
    names = [tokenizer.decode((one,), keep_special=True) for one in ids] if body.get("return_token_strs") else None
    return {"count": len(ids), "max_model_len": config.max_model_len, "tokens": ids, "token_strs": names}


def detokenize(body: Json) -> Json:
    """`/detokenize`, special tokens as their names."""
    if "tokens" not in body:
        raise missing("body.tokens", body)
    return {"prompt": tokenizer.decode(body["tokens"], keep_special=True)}


def render_completion(body: Json, config: EngineConfig, new_id: Callable[[], str]) -> list[Json]:
    """`/v1/completions/render`: one token request per prompt."""
    checked = asked.completion(body, config)
    name = f"cmpl-{body.get('request_id') or new_id()}"
    several = len(checked.prompts) > 1
    return [
        _rendered(f"{name}-{at}" if several else name, prompt, checked, body, checked.sampling.logprobs)
        for at, prompt in enumerate(checked.prompts)
    ]


def render_chat(body: Json, config: EngineConfig, new_id: Callable[[], str]) -> Json:
    """`/v1/chat/completions/render`."""
    checked = asked.chat(body, config)
    name = f"chatcmpl-{body.get('request_id') or new_id()}"
    return _rendered(name, checked.prompts[0], checked, body, checked.sampling.logprobs)


def _rendered(name: str, prompt: list[int], checked: asked.Asked, body: Json, logprobs: int | None) -> Json:
    return {
        "request_id": name,
        "token_ids": prompt,
        "token_offsets": None,
        "features": None,
        "content_parts": None,
        "sampling_params": _params(checked, body, logprobs),
        "model": body.get("model"),
        "reasoning_ended": None,
        "reasoning_parser_kwargs": None,
        "return_token_ids": None,
        "output_mode": "tokens",
        "stream": checked.stream,
        "stream_options": body.get("stream_options") if checked.stream else None,
        "cache_salt": body.get("cache_salt"),
        "priority": body.get("priority") or 0,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
    }


def _params(checked: asked.Asked, body: Json, logprobs: int | None) -> Json:
    """Sampling parameters as vLLM serialises them: what equals its defaults is left out."""
    sampling = checked.sampling
    temperature = 1.0 if body.get("temperature") is None else float(body["temperature"])
    found: Json = {
        "presence_penalty": float(body.get("presence_penalty") or 0.0),
        "frequency_penalty": float(body.get("frequency_penalty") or 0.0),
        "repetition_penalty": float(body.get("repetition_penalty") or 1.0),
        "temperature": temperature,
    }
    if temperature > 0:
        found["top_p"] = float(body.get("top_p") or 1.0)
        if body.get("top_k"):
            found["top_k"] = body["top_k"]
        found["min_p"] = float(body.get("min_p") or 0.0)
    if body.get("seed") is not None:
        found["seed"] = body["seed"]
    found["stop"] = list(sampling.stop)
    found["stop_token_ids"] = list(body.get("stop_token_ids") or [])
    if sampling.ignore_eos:
        found["ignore_eos"] = True
    if sampling.max_tokens != 16:  # noqa: PLR2004 - vLLM's default
        found["max_tokens"] = sampling.max_tokens
    if sampling.min_tokens:
        found["min_tokens"] = sampling.min_tokens
    if logprobs is not None:
        found["logprobs"] = logprobs
    if sampling.include_stop:
        found["include_stop_str_in_output"] = True
    return found | {"output_kind": 2, "skip_clone": True, "bad_words": [], "skip_reading_prefix_cache": False}


class Derenderer:
    """Token answers to OpenAI answers."""

    def __init__(self, config: EngineConfig, new_id: Callable[[], str], wall: Callable[[], float]) -> None:
        self._model = config.model
        self._new_id = new_id
        self._wall = wall

    def completion(self, body: Json) -> Json:
        """`/v1/completions/derender`."""
        if body.get("stream"):
            return self._streamed(body, chat=False)
        responses = body.get("generate_responses")
        if responses is None:
            raise missing("body.generate_responses", body)
        if not responses:
            raise ApiError("generate_responses must not be empty")
        choices = [one for response in responses for one in response["choices"]]
        prompts = body.get("prompt_tokens") or [0]
        found = [
            {
                "index": at,
                "text": _text(one, body.get("completion_request")),
                "logprobs": _completion_logprobs(one, 0),
                "finish_reason": one.get("finish_reason") or "stop",
                "stop_reason": one.get("stop_reason"),
                "token_ids": None,
                "prompt_logprobs": None,
                "prompt_token_ids": None,
                "routed_experts": None,
            }
            for at, one in enumerate(choices)
        ]
        return self._whole("text_completion", found, choices, sum(prompts))

    def chat(self, body: Json) -> Json:
        """`/v1/chat/completions/derender`."""
        if body.get("stream"):
            return self._streamed(body, chat=True)
        response = body.get("generate_response")
        if response is None:
            raise missing("body.generate_response", body)
        choices = response["choices"]
        found = [
            {
                "index": at,
                "message": chat_message(_text(one, body.get("chat_request"))),
                "logprobs": _chat_logprobs(one),
                "finish_reason": one.get("finish_reason") or "stop",
                "stop_reason": one.get("stop_reason"),
                "token_ids": _ids_asked_for(one, body.get("chat_request")),
                "routed_experts": None,
            }
            for at, one in enumerate(choices)
        ]
        more = {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None}
        return self._whole("chat.completion", found, choices, int(body.get("prompt_tokens") or 0), more)

    def _whole(self, kind: str, found: list[Json], choices: list[Json], prompt: int, more: Json | None = None) -> Json:
        answer = sum(len(one.get("token_ids") or ()) for one in choices)
        usage = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + answer,
            "completion_tokens": answer,
            "prompt_tokens_details": None,
            "completion_tokens_details": None,
        }
        return {
            "id": self._new_id(),
            "object": kind,
            "created": int(self._wall()),
            "model": self._model,
            "choices": found,
            "service_tier": None,
            "system_fingerprint": None,
            "usage": usage,
            **(more or {}),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _streamed(self, body: Json, *, chat: bool) -> Json:
        chunk = body.get("generate_chunk")
        if chunk is None:
            raise missing("body.generate_chunk", body)
        if len(chunk["choices"]) > 1:
            raise ApiError(f"derender expects at most one choice per chunk (got {len(chunk['choices'])}).")
        state = dict(body.get("stream_state") or {})
        choices = []
        for one in chunk["choices"]:
            text, state = _next_text(one, state, chat=chat)
            choice = _streamed_choice(one, text, state, chat=chat)
            choices.append({**choice, "token_ids": _ids_asked_for(one, body.get("chat_request"))})
            state["role_sent"] = chat
        found = {
            "id": self._new_id(),
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": int(self._wall()),
            "model": self._model,
            "choices": choices,
            "usage": None,
            "system_fingerprint": None,
        }
        if chat:
            found |= {"prompt_token_ids": None, "prompt_text": None}
        return {"chunk": {**found, "metrics": None}, "stream_state": state}


def _text(choice: Json, request: Json | None) -> str:
    keep = not (request or {}).get("skip_special_tokens", True)
    return tokenizer.decode(choice.get("token_ids") or (), keep_special=keep)


def _ids_asked_for(choice: Json, request: Json | None) -> list[int] | None:
    return choice.get("token_ids") if (request or {}).get("return_token_ids") else None


def _next_text(choice: Json, state: Json, *, chat: bool) -> tuple[str, Json]:
    """Text that this chunk completes, and the state for the next; a half character is carried."""
    ids = choice.get("token_ids") or []
    carried = list(state.get("prev_tokens") or ())
    pending = tokenizer.of_letters(carried[int(state.get("read_offset") or 0) :])
    found = tokenizer.spelled([*pending, *ids])
    end = len(found) if choice.get("finish_reason") else tokenizer.complete_part(found)
    left = len(found) - end
    text = found[:end].decode("utf-8", "replace")
    context = [*(state.get("logprob_context_token_ids") or ()), *ids][-_CARRIED:]
    return text, {
        "prev_tokens": [tokenizer.letter(one) for one in [*pending, *ids][len(pending) + len(ids) - left :]],
        "prefix_offset": 0,
        "read_offset": 0,
        "role_sent": bool(state.get("role_sent")),
        "logprob_context_token_ids": context,
        "logprob_text_offset": 0 if chat else int(state.get("logprob_text_offset") or 0) + len(text),
        "output_token_ids": [],
        "output_chunk_lens": [],
        "tools_streamed": False,
        "last_tool_call_ids": [],
    }


def _streamed_choice(choice: Json, text: str, state: Json, *, chat: bool) -> Json:
    ends = {"finish_reason": choice.get("finish_reason"), "stop_reason": choice.get("stop_reason")}
    if not chat:
        offset = int(state["logprob_text_offset"]) - len(text)
        logprobs = _completion_logprobs(choice, offset)
        head = {"index": choice["index"], "text": text, "logprobs": logprobs}
        return {**head, **ends, "prompt_token_ids": None}
    role = None if state["role_sent"] else "assistant"
    delta = {"role": role, "content": text, "reasoning": None}
    head = {"index": choice["index"], "delta": delta, "logprobs": _chat_logprobs(choice)}
    return {**head, **ends}


def _entries(choice: Json) -> list[Json] | None:
    logprobs = choice.get("logprobs")
    if logprobs is None:
        return None
    if not isinstance(logprobs, dict) or not isinstance(logprobs.get("content"), list):
        raise invalid("body.logprobs", "model_type", "Input should be an object with content", logprobs)
    return list(logprobs["content"])


def _completion_logprobs(choice: Json, offset: int) -> Json | None:
    entries = _entries(choice)
    if entries is None:
        return None
    names = [tokenizer.decode((one["token_id"],)) for one in entries]
    return {
        "text_offset": [offset + sum(map(len, names[:at])) for at in range(len(names))],
        "token_logprobs": [one["logprob"] for one in entries],
        "tokens": names,
        "top_logprobs": [
            {tokenizer.decode((top["token_id"],)): top["logprob"] for top in one.get("top_logprobs") or ()}
            for one in entries
        ],
    }


def _chat_logprobs(choice: Json) -> Json | None:
    entries = _entries(choice)
    if entries is None:
        return None
    return {
        "content": [
            _spoken(one) | {"top_logprobs": [_spoken(top) for top in one.get("top_logprobs") or ()]} for one in entries
        ]
    }


def _spoken(entry: Any) -> Json:
    text = tokenizer.decode((entry["token_id"],))
    return {"token": text, "logprob": entry["logprob"], "bytes": list(text.encode())}
