"""`/generate` and `/server_info` for training loops that expect an SGLang engine at the other end.

Only the fields that such loops use; streaming and `n` > 1 are refused with the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pearl_gateway.errors import bad_request
from pearl_gateway.text import PROMPT_TAIL
from pearl_gateway.tokens_in import Rendered, are_token_ids

if TYPE_CHECKING:
    from pearl_gateway.text import TextService
    from pearl_gateway.trajectory import Turn

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
_DEFAULT_NEW_TOKENS = 128


async def read_generate(body: dict[str, Any], text: TextService) -> Rendered:
    """The turn that a `/generate` request asks for.

    Raises:
        GatewayError: neither `input_ids` nor `text`, or something that is not supported.
    """
    params = body.get("sampling_params") or {}
    if not isinstance(params, dict) or params.get("n", 1) != 1 or body.get("stream"):
        raise bad_request("send one request per sample (n = 1) and leave out `stream`")
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
    """The answer to `/generate`."""
    versions = [span.version for piece in turn.pieces for span in piece.spans]
    info: dict[str, Any] = {
        "id": body.get("rid") or turn.trajectory,
        "finish_reason": _finish(turn),
        "prompt_tokens": len(turn.prompt),
        "completion_tokens": len(turn.token_ids),
        "weight_version": str(versions[-1]) if versions and versions[-1] is not None else None,
    }
    if body.get("return_logprob"):
        info["output_token_logprobs"] = [
            [logprob, token, None] for logprob, token in zip(turn.logprobs, turn.token_ids, strict=True)
        ]
    shown = await text.decode(turn.prompt[-PROMPT_TAIL:], turn.token_ids)
    return {"text": shown, "output_ids": turn.token_ids, "meta_info": info}


def _finish(turn: Turn) -> dict[str, Any]:
    if turn.finish_reason == "length":
        return {"type": "length", "length": len(turn.token_ids)}
    matched = turn.stop_reason if turn.stop_reason is not None else turn.token_ids[-1:]
    return {"type": turn.finish_reason, "matched": matched[0] if isinstance(matched, list) and matched else matched}
