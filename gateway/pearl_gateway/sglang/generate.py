"""One `/generate` request as a turn of the gateway, and the turn as its answer.

Only what training loops use. What would change the answer and is not carried over is refused by name: a loop that
asked for routed experts and silently got none would train on something else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pearl_gateway.errors import bad_request
from pearl_gateway.text import PROMPT_TAIL
from pearl_gateway.tokens_in import Rendered, are_token_ids

if TYPE_CHECKING:
    from pearl_gateway.text import TextService
    from pearl_gateway.turn_state import Turn

_SAME = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "skip_special_tokens",
)
_RENAMED = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "sampling_seed": "seed"}
_ONLY_TEXT = ("n", "no_stop_trim", "spaces_between_special_tokens", "stream_interval")
"""Sampling parameters that change at most the text beside the token ids."""
_UNSUPPORTED = (
    "image_data",
    "video_data",
    "audio_data",
    "input_embeds",
    "lora_path",
    "session_params",
    "return_hidden_states",
    "return_routed_experts",
    "top_logprobs_num",
    "token_ids_logprob",
    "bootstrap_host",
)
_DEFAULT_NEW_TOKENS = 128


async def read_generate(body: dict[str, Any], text: TextService) -> Rendered:
    """The turn that a `/generate` request asks for.

    Raises:
        GatewayError: neither `input_ids` nor `text`, or something that is not supported.
    """
    params = body.get("sampling_params") or {}
    if not isinstance(params, dict) or params.get("n", 1) != 1 or body.get("stream"):
        raise bad_request("send one request per sample (sampling_params an object, n = 1) and leave out `stream`")
    unknown = [name for name in params if name not in (*_SAME, *_RENAMED, *_ONLY_TEXT) and params[name] is not None]
    for name in (*(name for name in _UNSUPPORTED if body.get(name)), *unknown):
        raise bad_request(f"{name} is not carried over to the workers of this rollout: leave it out")
    sampling = {name: params[name] for name in _SAME if params.get(name) is not None}
    sampling |= {ours: params[theirs] for theirs, ours in _RENAMED.items() if params.get(theirs) is not None}
    sampling.setdefault("max_tokens", _DEFAULT_NEW_TOKENS)
    if body.get("return_logprob"):
        sampling["logprobs"] = 0
    return Rendered(await _prompt(body, text), sampling, {})


async def _prompt(body: dict[str, Any], text: TextService) -> list[int]:
    ids = body.get("input_ids")
    if are_token_ids(ids):
        return ids
    if isinstance(body.get("text"), str) and body["text"]:
        request = {"prompt": body["text"], "max_tokens": 1}
        (rendered,) = await text.call("/v1/completions/render", request)
        found: list[int] = rendered["token_ids"]
        return found
    raise bad_request("send `input_ids` (a list of token ids) or `text`, for one prompt")


async def generate_answer(body: dict[str, Any], turn: Turn, text: TextService) -> dict[str, Any]:
    """The answer to `/generate`; a turn without its end is one that was aborted."""
    ids = turn.token_ids[: turn.visible]
    info: dict[str, Any] = {
        "id": body.get("rid") or turn.trajectory,
        "finish_reason": _finish(turn, ids),
        "prompt_tokens": len(turn.prompt),
        "completion_tokens": len(ids),
        **_versions(turn),
    }
    if turn.cached_tokens is not None:
        info["cached_tokens"] = turn.cached_tokens
    if body.get("return_logprob"):
        pairs = zip(turn.logprobs, ids, strict=False)  # fewer ids than logprobs while a stop string is looked for
        info["output_token_logprobs"] = [[logprob, token, None] for logprob, token in pairs]
    shown = await text.decode(turn.prompt[-PROMPT_TAIL:], ids)
    return {"text": shown, "output_ids": ids, "meta_info": info}


def _versions(turn: Turn) -> dict[str, Any]:
    """SGLang knows one version per answer, here the last one; `weight_versions` has those of all its tokens."""
    spans = [span for piece in turn.pieces for span in piece.spans]
    if not spans or spans[-1].version is None:
        return {}
    all_of_them = [{"version": span.version, "start": span.start, "end": span.end} for span in spans]
    return {"weight_version": str(spans[-1].version), "weight_versions": all_of_them}


def _finish(turn: Turn, ids: list[int]) -> dict[str, Any]:
    if turn.finish_reason is None:
        return {"type": "abort", "message": "aborted on request; the tokens so far are valid"}
    if turn.finish_reason == "length":
        return {"type": "length", "length": len(ids)}
    matched = turn.stop_reason if turn.stop_reason is not None else ids[-1:]
    return {"type": turn.finish_reason, "matched": matched[0] if isinstance(matched, list) and matched else matched}
