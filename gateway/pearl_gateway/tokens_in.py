"""OpenAI requests to token ids. The log's ids are kept verbatim; only what is new is rendered.

Re-tokenising history changes ids (wrong logprobs for training) and breaks the prefix cache, so a request that
continues what was said is rendered from its continuation alone:

- text: the new prompt starts with the old prompt and answer; the rest is tokenised.
- chat: the messages start with the old ones and the answer; the template's text between the generated ids and the
  new messages is found by rendering short conversations that differ only in what is asked for.

Where that does not fit, everything is rendered, and the log notices whether the prefix is broken.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from pearl_gateway.errors import bad_request
from pearl_gateway.said import asked, shape_of

if TYPE_CHECKING:
    from pearl_gateway.said import Base
    from pearl_gateway.text import TextService

_NOT_SAMPLING = ("prompt", "messages", "stream", "stream_options", "n", "user", "return_token_ids", "request_id")
_UNSUPPORTED = {
    "echo": False,
    "suffix": "",
    "best_of": 1,
    "prompt_logprobs": None,
    "use_beam_search": False,
    "prompt_embeds": None,
}
"""Fields that would change the answer and are not carried over, with the value that changes nothing."""
_ENGINE_MAX_TOKENS = 16
"""vLLM's default. Its render endpoints leave out what equals a default, also where the client wrote it."""
_TRANSFER = ("kv_transfer_params", "ec_transfer_params")
_PASSED_ON = ("cache_salt", "priority", "reasoning_ended", "reasoning_parser_kwargs", "features")
_TOKENIZING = ("model", "add_special_tokens")
_ASKER = {"role": "user", "content": "."}


@dataclass(frozen=True, slots=True)
class Rendered:
    """One prompt as the engine wants it."""

    prompt: list[int]
    sampling: dict[str, Any]
    extra: dict[str, Any]
    asked: str = ""
    """Digest of the request that it was rendered from; empty = nothing was rendered."""
    whole: str = ""
    """Why history was rendered anew although the trajectory had one: `edited`, `template` or `forgotten`."""


class TokensIn:
    """Renders requests by the engines' own render endpoints."""

    def __init__(self, text: TextService) -> None:
        self._text = text

    async def completion(self, body: dict[str, Any], base: Base | None) -> list[Rendered]:
        """The prompts of a completion request; with a trajectory there is exactly one.

        Raises:
            GatewayError: a field is not supported, or the prompt is of no known kind.
            EngineRefusedError: the engine does not accept the request.
        """
        refuse_transfer(body, body.get("vllm_xargs"))
        refuse_unsupported(body)
        params = {name: value for name, value in body.items() if name not in _NOT_SAMPLING}
        sampling = await self._completion_sampling(params)
        found = [await self._prompt_ids(one, params, base) for one in _prompts(body.get("prompt"))]
        return [Rendered(ids, dict(sampling[0]), dict(sampling[1]), asked(body), whole) for ids, whole in found]

    async def _completion_sampling(self, params: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        key = "completion " + json.dumps(params, sort_keys=True)
        (rendered,) = await self._text.remembered(key, "/v1/completions/render", {**params, "prompt": [0]})
        return {"max_tokens": _ENGINE_MAX_TOKENS, **rendered["sampling_params"]}, _extra(rendered)

    async def _prompt_ids(
        self, prompt: str | list[int], params: dict[str, Any], base: Base | None
    ) -> tuple[list[int], str]:
        if not isinstance(prompt, str):
            return prompt, ""
        plain: dict[str, Any] = {name: params[name] for name in _TOKENIZING if name in params}
        if base is not None and base.said is not None and base.said.begins_text(prompt):
            rest = prompt[base.said.length :]
            return [*base.ids, *(await self._tokenize(rest, {**plain, "add_special_tokens": False}))], ""
        return await self._tokenize(prompt, plain), _why_whole(base)

    async def _tokenize(self, text: str, params: dict[str, Any]) -> list[int]:
        if not text:
            return []
        (rendered,) = await self._text.call("/v1/completions/render", {**params, "prompt": text, "max_tokens": 1})
        ids: list[int] = rendered["token_ids"]
        return ids

    async def chat(self, body: dict[str, Any], base: Base | None) -> Rendered:
        """The prompt of a chat request.

        Raises:
            GatewayError: a field is not supported.
            EngineRefusedError: the engine does not accept the request.
        """
        refuse_transfer(body, body.get("vllm_xargs"))
        refuse_unsupported(body)
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages or not all(isinstance(one, dict) for one in messages):
            raise bad_request("messages must be a list of at least one message object", param="messages")
        request = {name: value for name, value in body.items() if name not in ("stream", "stream_options", "n")}
        rendered = prompt = None
        whole = _why_whole(base)
        if base is not None and base.said is not None and base.said.begins_chat(body):
            whole = "template"
            rendered, delta = await self._continuation(request, messages, base.said.length)
            if delta is not None:
                prompt, whole = base.ids + await self._joint(request, base.ids) + delta, ""
        if rendered is None or prompt is None:
            rendered = await self._text.call("/v1/chat/completions/render", request)
            prompt = rendered["token_ids"]
        sampling = {"max_tokens": _ENGINE_MAX_TOKENS, **rendered["sampling_params"]}
        if body.get("max_tokens") is None and body.get("max_completion_tokens") is None:
            # The engine filled in what fits beside the prompt that it saw; that may have been a part only.
            del sampling["max_tokens"]
        return Rendered(prompt, sampling, _extra(rendered), asked(body), whole)

    async def _continuation(
        self, request: dict[str, Any], messages: list[dict[str, Any]], known: int
    ) -> tuple[dict[str, Any] | None, list[int] | None]:
        """The rendered request of the new messages alone, and their ids with the generation prompt."""
        if known >= len(messages):
            return None, None
        base = [_ASKER, messages[known - 1]]
        before = await self._render(request, base, generation_prompt=False)
        rendered = await self._text.call(
            "/v1/chat/completions/render", {**request, "messages": base + messages[known:]}
        )
        ids: list[int] = rendered["token_ids"]
        if ids[: len(before)] != before:
            return None, None
        return rendered, ids[len(before) :]

    async def _joint(self, request: dict[str, Any], context: list[int]) -> list[int]:
        """What the template puts after an answer and the model did not generate itself."""
        key = "closing " + json.dumps([request.get("model"), shape_of(request)])
        closing = self._text.recall(key)
        if closing is None:
            opened = await self._render(request, [_ASKER], generation_prompt=True)
            closed = await self._render(
                request, [_ASKER, {"role": "assistant", "content": ""}], generation_prompt=False
            )
            closing = closed[len(opened) :] if closed[: len(opened)] == opened else []
            self._text.remember(key, closing)
        ends = bool(closing) and context[-1:] == closing[:1]
        return list(closing[1:] if ends else closing)

    async def _render(
        self, request: dict[str, Any], messages: list[dict[str, Any]], *, generation_prompt: bool
    ) -> list[int]:
        body = {**request, "messages": messages, "add_generation_prompt": generation_prompt}
        ids: list[int] = (await self._text.call("/v1/chat/completions/render", body))["token_ids"]
        return ids


def _why_whole(base: Base | None) -> str:
    if base is None:
        return ""
    return "forgotten" if base.said is None else "edited"


def are_token_ids(value: Any) -> TypeGuard[list[int]]:
    """Whether it is a list of at least one token id; quick also for long ones."""
    return isinstance(value, list) and set(map(type, value)) == {int}


def _prompts(prompt: Any) -> list[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        if are_token_ids(prompt):
            return [prompt]
        if all(isinstance(one, str) for one in prompt):
            return list(prompt)
        if all(are_token_ids(one) for one in prompt):
            return list(prompt)
    raise bad_request("prompt must be a text, a list of token ids, or a list of these, and not empty", param="prompt")


def refuse_transfer(*holders: Any) -> None:
    """KV moves between workers only as the gateway says.

    A client's own parameters could read another prompt's KV, and incomplete ones end the engine: vLLM asserts them.

    Raises:
        GatewayError: one of the objects names them.
    """
    for holder in holders:
        for name in _TRANSFER:
            if isinstance(holder, dict) and holder.get(name) is not None:
                raise bad_request(f"{name} is the gateway's own business: leave it out", param=name)


def refuse_unsupported(body: dict[str, Any]) -> None:
    """Raise GatewayError for a field, of a request or of its sampling parameters, that no answer would show."""
    for name, harmless in _UNSUPPORTED.items():
        value = body.get(name)
        if value is not None and (type(value) is not type(harmless) or value != harmless):
            raise bad_request(f"{name} is not supported by the gateway: leave it out", param=name)


def _extra(rendered: dict[str, Any]) -> dict[str, Any]:
    return {name: rendered[name] for name in _PASSED_ON if rendered.get(name)}
