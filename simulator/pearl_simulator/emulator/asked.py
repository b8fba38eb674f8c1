"""Request bodies: what a client asks for, checked as vLLM checks it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pearl_simulator.emulator import tokenizer
from pearl_simulator.emulator.errors import ApiError, LateError, invalid, missing, wrong
from pearl_simulator.emulator.sequence import Sampling

if TYPE_CHECKING:
    from pearl_simulator.emulator.config import EngineConfig

_MOST_LOGPROBS = 20
_COMPLETION_TOKENS = 16
"""What the completions API gives when nobody says how many."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One generation request."""

    prompts: list[list[int]]
    sampling: Sampling
    body: dict[str, Any]
    """For what only shapes the answer."""

    @property
    def stream(self) -> bool:
        """Whether the answer comes piece by piece."""
        return bool(self.body.get("stream"))


def parse_json(content: bytes) -> dict[str, Any]:
    """The body as an object.

    Raises:
        ApiError: it is none.
    """
    if not content:
        raise missing("body", None)
    try:
        body = json.loads(content)
    except json.JSONDecodeError as error:
        raise invalid(f"body.{error.pos}", "json_invalid", "JSON decode error", {}, error=error.msg) from error
    if not isinstance(body, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        raise invalid("body", "model_attributes_type", message, body)
    return body


def check_model(body: dict[str, Any], config: EngineConfig) -> None:
    """Raises ApiError for a model that is not served."""
    model = body.get("model")
    if model is not None and model != config.model:
        message = f"The model `{model}` does not exist. Valid aliases: {config.model}."
        raise ApiError(message, kind="NotFoundError", status=404, param="model")


def completion(body: dict[str, Any], config: EngineConfig) -> Asked:
    """`/v1/completions`: any number of prompts, as text or as ids."""
    _check_numbers(body, "body")
    _check_stream_options(body)
    given = body.get("prompt")
    if given is None or given == "":
        raise wrong("prompt", "Either prompt or prompt_embeds must be provided and non-empty.")
    if given == []:
        raise ApiError("You must pass at least one prompt")
    prompts = _prompts(given)
    longest = max(map(len, prompts))
    for prompt in prompts:
        _check_text_length(prompt, config)
        _check_vocabulary(prompt, config)
    room = _room(body.get("max_tokens"), longest, config, _COMPLETION_TOKENS)
    return Asked(prompts, _sampling(body, room, body.get("logprobs")), body)


def chat(body: dict[str, Any], config: EngineConfig) -> Asked:
    """`/v1/chat/completions`."""
    if "messages" not in body:
        raise missing("body.messages", body)
    _check_numbers(body, "body")
    _check_stream_options(body)
    if body.get("top_logprobs") and not body.get("logprobs"):
        raise wrong("top_logprobs", "when using `top_logprobs`, `logprobs` must be set to true.")
    prompt = chat_prompt(body)
    _check_text_length(prompt, config)
    wanted = body.get("max_completion_tokens")
    room = _room(body.get("max_tokens") if wanted is None else wanted, len(prompt), config, None)
    logprobs = body.get("top_logprobs") or 0 if body.get("logprobs") else None
    return Asked([prompt], _sampling(body, room, logprobs), body)


def chat_prompt(body: dict[str, Any]) -> list[int]:
    """Token ids of a conversation."""
    if not body["messages"]:
        raise ApiError("Cannot apply chat template to an empty conversation. Provide at least one message.")
    text = tokenizer.render_chat(
        body["messages"],
        add_generation_prompt=body.get("add_generation_prompt", True),
        continue_final=bool(body.get("continue_final_message")),
    )
    return tokenizer.encode(text)


def generate(body: dict[str, Any], config: EngineConfig) -> Asked:
    """`/inference/v1/generate`: one prompt of ids."""
    for name in ("token_ids", "sampling_params"):
        if name not in body:
            raise missing(f"body.{name}", body)
    prompt, params = body["token_ids"], body["sampling_params"]
    _check_ids(prompt)
    _check_numbers(params, "body.sampling_params")
    length, limit = len(prompt), config.max_model_len
    given = params.get("max_tokens")
    tokens = limit - length if given is None else int(given)
    if given is not None or length < limit:
        _sampling(params, tokens, params.get("logprobs"))
    _check_vocabulary(prompt, config)
    if length > limit:
        raise LateError(
            f"The decoder prompt (length {length}) is longer than the maximum model length of {limit}. "
            "Make sure that `max_model_len` is no smaller than the number of text tokens."
        )
    if length == limit:
        raise LateError(
            f"The decoder prompt (length {length}) plus the number of requested output tokens (at least 1) is longer "
            f"than the maximum model length of {limit}. Make sure that `max_model_len` is no smaller than the number "
            "of text tokens (prompt + requested output tokens)."
        )
    return Asked([prompt], _sampling(params, tokens, params.get("logprobs")), body)


def kv_params(body: dict[str, Any]) -> dict[str, Any] | None:
    """Parameters of a hand-over, wherever vLLM lets a client put them."""
    extra = (body.get("sampling_params") or {}).get("extra_args") or body.get("vllm_xargs") or {}
    found: dict[str, Any] | None = body.get("kv_transfer_params") or extra.get("kv_transfer_params")
    return found


def _prompts(given: Any) -> list[list[int]]:
    if isinstance(given, str):
        return [tokenizer.encode(given)]
    if isinstance(given, list) and all(isinstance(one, int) for one in given):
        _check_ids(given, "body.prompt")
        return [given]
    if not isinstance(given, list):
        raise invalid("body.prompt", "list_type", "Input should be a valid list", given)
    return [one for part in given for one in _prompts(part)]


def _check_ids(found: Any, where: str = "body.token_ids") -> None:
    if not isinstance(found, list):
        raise invalid(where, "list_type", "Input should be a valid list", found)
    if not found:
        raise invalid(
            where,
            "too_short",
            "List should have at least 1 item after validation, not 0",
            found,
            field_type="List",
            min_length=1,
            actual_length=0,
        )
    if min(found) >= 0:
        return
    if where == "body.token_ids":
        message = "token_ids must not contain negative values"
        raise invalid(where, "value_error", f"Value error, {message}", found, error=ValueError(message))
    at = next(index for index, one in enumerate(found) if one < 0)
    message = "Input should be greater than or equal to 0"
    raise invalid(f"{where}.{at}", "greater_than_equal", message, found[at], ge=0)


def _check_vocabulary(prompt: list[int], config: EngineConfig) -> None:
    worst = max(prompt)
    if worst >= config.vocabulary:
        raise LateError(f"Token id {worst} is out of vocabulary")


def _check_text_length(prompt: list[int], config: EngineConfig) -> None:
    if len(prompt) > config.max_model_len:
        message = (
            f"This model's maximum context length is {config.max_model_len} tokens. However, your prompt contains "
            f"{len(prompt)} input tokens, which exceeds this limit even without any output tokens. Please reduce the "
            "length of the input prompt."
        )
        raise wrong("input_tokens", message, len(prompt))


def _room(given: Any, length: int, config: EngineConfig, default: int | None) -> int:
    limit = config.max_model_len
    if given is not None and int(given) > limit:
        message = (
            f"max_tokens={given} cannot be greater than max_model_len={limit}. Please request fewer output tokens."
        )
        raise wrong("max_tokens", message, given)
    wanted = default if given is None else int(given)
    return limit - length if wanted is None else min(wanted, limit - length)


def _check_stream_options(body: dict[str, Any]) -> None:
    if body.get("stream_options") and not body.get("stream"):
        raise wrong("stream_options", "Stream options can only be defined when `stream=True`.")


_WHOLE = ("max_tokens", "max_completion_tokens", "min_tokens", "n", "seed", "top_k")


def _check_numbers(params: Any, where: str) -> None:
    if not isinstance(params, dict):
        raise invalid(where, "dict_type", "Input should be an object", params)
    for name in _WHOLE:
        value = params.get(name)
        if isinstance(value, str) and not value.lstrip("-").isdigit():
            message = "Input should be a valid integer, unable to parse string as an integer"
            raise invalid(f"{where}.{name}", "int_parsing", message, value)


def _sampling(params: dict[str, Any], max_tokens: int, logprobs: int | None) -> Sampling:
    temperature = 1.0 if params.get("temperature") is None else float(params["temperature"])
    samples = 1 if params.get("n") is None else int(params["n"])
    _check_ranges(params, temperature, samples)
    if max_tokens < 1:
        raise wrong("max_tokens", f"max_tokens must be at least 1, got {max_tokens}.", max_tokens)
    least = int(params.get("min_tokens") or 0)
    if least > max_tokens:
        raise ApiError(f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {least}.")
    prompt_logprobs = params.get("prompt_logprobs")
    for name, wanted in (("sample", logprobs), ("prompt", prompt_logprobs)):
        if wanted is not None and (wanted > _MOST_LOGPROBS or wanted < 0):
            count = wanted if wanted >= 0 else tokenizer.SIZE
            message = f"Requested {name} logprobs of {count}, which is greater than max allowed: {_MOST_LOGPROBS}"
            raise wrong("logprobs" if name == "sample" else "prompt_logprobs", message, count, kind=LateError)
    stop = params.get("stop") or ()
    return Sampling(
        max_tokens=max_tokens,
        min_tokens=least,
        samples=samples,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=frozenset(params.get("stop_token_ids") or ()),
        ignore_eos=bool(params.get("ignore_eos")),
        include_stop=bool(params.get("include_stop_str_in_output")),
    )


def _check_ranges(params: dict[str, Any], temperature: float, samples: int) -> None:
    if samples < 1:
        raise ApiError(f"n must be at least 1, got {samples}.")
    if temperature < 0:
        raise wrong("temperature", f"temperature must be non-negative, got {temperature}.", temperature)
    top_p = params.get("top_p")
    if top_p is not None and not 0 < float(top_p) <= 1:
        raise wrong("top_p", f"top_p must be in (0, 1], got {float(top_p)}.", float(top_p))
    top_k = params.get("top_k")
    if top_k is not None and int(top_k) < -1:
        raise ApiError(f"top_k must be 0 (disable), or at least 1, got {top_k}.")
    if samples > 1 and temperature == 0:
        raise ApiError(f"n must be 1 when using greedy sampling, got {samples}.")
