"""Checks of the sampling parameters that the gateway itself computes with; all others are the engine's to judge."""

from __future__ import annotations

from typing import Any

from pearl_gateway.errors import bad_request

_LONGEST = 1 << 31
_LARGEST_SEED = 1 << 63
_NUMBERS = {"max_tokens": 1, "min_tokens": 0, "logprobs": -1}
"""Whole numbers and their smallest values; None is as if left out."""


def check_sampling(sampling: Any) -> dict[str, Any]:
    """`sampling_params` of the token path.

    Raises:
        GatewayError: a value cannot be meant; the message names it.
    """
    if sampling is None:
        return {}
    if not isinstance(sampling, dict) or sampling.get("n", 1) != 1:
        message = "sampling_params must be an object with n = 1: send one request per sample"
        raise bad_request(message, param="sampling_params")
    for name, least in _NUMBERS.items():
        _check_number(name, sampling.get(name), least, _LONGEST)
    _check_number("seed", sampling.get("seed"), -_LARGEST_SEED, _LARGEST_SEED)
    if (sampling.get("min_tokens") or 0) > (sampling.get("max_tokens") or _LONGEST):
        raise bad_request("min_tokens must not be above max_tokens", param="min_tokens")
    stop = sampling.get("stop")
    listed = [stop] if isinstance(stop, str) or stop is None else stop
    if not isinstance(listed, list) or not all(one is None or isinstance(one, str) for one in listed):
        raise bad_request("stop must be a text or a list of texts", param="stop")
    return sampling


def _check_number(name: str, value: Any, least: int, most: int) -> None:
    if value is not None and (type(value) is not int or not least <= value < most):
        raise bad_request(f"{name}: {value!r:.80} must be a whole number from {least}", param=name)


def check_stream(body: dict[str, Any]) -> None:
    """`stream` and `stream_options` of any path.

    Raises:
        GatewayError: they are of another kind.
    """
    if not isinstance(body.get("stream"), (bool, type(None))):
        raise bad_request("stream must be true or false", param="stream")
    if not isinstance(body.get("stream_options"), (dict, type(None))):
        raise bad_request("stream_options must be an object", param="stream_options")


def check_options(body: dict[str, Any]) -> None:
    """`stream_options` of an OpenAI path.

    Raises:
        GatewayError: the answer is not streamed.
    """
    if body.get("stream_options") is not None and not body.get("stream"):
        raise bad_request("stream_options are for stream = true only: leave them out", param="stream_options")


def samples_of(body: dict[str, Any], prompts: int, most: int) -> int:
    """`n`, for that many prompts; `most` turns are taken at all.

    Raises:
        GatewayError: it is no number that can be served.
    """
    samples = body.get("n")
    if samples is None:
        return 1
    if type(samples) is not int or samples < 1:
        raise bad_request(f"n: {samples!r:.80} must be a whole number from 1", param="n")
    if samples * prompts > most:
        raise bad_request(f"n: {samples} samples of {prompts} prompts are more than the {most} turns taken", param="n")
    return samples


def sample(sampling: dict[str, Any], index: int) -> dict[str, Any]:
    """Parameters of sample `index` of a prompt: each draws by a seed of its own, as in the engine."""
    if not index or sampling.get("seed") is None:
        return dict(sampling)
    return {**sampling, "seed": sampling["seed"] + index}
