"""The three inference paths: token ids, completions, chat. Each becomes turns, and turns become its answer."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from pearl_gateway.asgi import CLIENT_LEFT, EventStream, json_body, json_response, openai_error, while_connected
from pearl_gateway.errors import GatewayError, bad_request
from pearl_gateway.identity import read_identity

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

    from pearl_gateway.gateway import Gateway
    from pearl_gateway.identity import Identity
    from pearl_gateway.trajectory import Turn

_PASSED_ON = ("cache_salt", "priority", "reasoning_ended", "reasoning_parser_kwargs")
"""Fields of the engine's request that only the engine understands."""


class Inference:
    """Handlers of the inference paths."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def generate(self, request: Request) -> Response:
        """Token ids in, token ids out."""
        body = await json_body(request)
        identity = read_identity(request.headers, body)
        self._check_model(body)
        sampling = body.get("sampling_params") or {}
        if not isinstance(sampling, dict) or sampling.get("n", 1) != 1:
            raise bad_request("sampling_params must be an object with n = 1: send one request per sample")
        prompt = body.get("token_ids")
        if not isinstance(prompt, list) or not all(isinstance(one, int) for one in prompt):
            raise bad_request("token_ids must be a list of token ids")
        turn = self._open(identity, prompt, sampling, body)
        if body.get("stream"):
            return EventStream(self._token_events(turn, with_logprobs=sampling.get("logprobs") is not None))
        done = await while_connected(request, self._gateway.sessions.answer(turn))
        if done is None:
            return Response(status_code=CLIENT_LEFT)
        return json_response(token_answer(turn, with_logprobs=sampling.get("logprobs") is not None))

    async def completions(self, request: Request) -> Response:
        """OpenAI completions."""
        raise bad_request("not yet")

    async def chat(self, request: Request) -> Response:
        """OpenAI chat completions."""
        raise bad_request("not yet")

    def _open(self, identity: Identity, prompt: list[int], sampling: dict[str, Any], body: dict[str, Any]) -> Turn:
        extra = {name: body[name] for name in _PASSED_ON if body.get(name) is not None}
        sessions = self._gateway.sessions
        trajectory = sessions.obtain(identity)
        try:
            return sessions.open_turn(trajectory, identity, prompt, sampling, extra)
        except GatewayError:
            sessions.drop_if_unused(trajectory)
            raise

    def _check_model(self, body: dict[str, Any]) -> None:
        wanted, served = body.get("model"), self._gateway.settings.model
        if served is not None and wanted not in (None, "", served):
            raise GatewayError(
                HTTPStatus.NOT_FOUND, "ModelUnknown", f"model {wanted!r} is not served here; this rollout serves {served!r}"
            )

    async def _token_events(self, turn: Turn, *, with_logprobs: bool) -> AsyncIterator[bytes]:
        async for start, end in self.follow(turn):
            choice: dict[str, Any] = {
                "index": 0,
                "token_ids": turn.token_ids[start:end],
                "finish_reason": None,
                "stop_reason": None,
                "logprobs": {"content": turn.entries[start:end]} if with_logprobs else None,
            }
            if turn.settled and end == len(turn.token_ids):
                if turn.error is not None:
                    yield json.dumps(openai_error(turn.error)).encode()
                    return
                choice.update(finish_reason=turn.finish_reason, stop_reason=turn.stop_reason)
                choice["weight_versions"] = weight_versions(turn)
            yield json.dumps({"request_id": request_id(turn), "choices": [choice]}, separators=(",", ":")).encode()

    async def follow(self, turn: Turn) -> AsyncIterator[tuple[int, int]]:
        """Ranges of new tokens as they come; the last one may be empty and comes when the turn is settled."""
        sent = 0
        async with self._gateway.sessions.reading(turn):
            while True:
                end, settled = turn.visible, turn.settled
                if end > sent or settled:
                    yield sent, end
                    sent = end
                    if settled:
                        return
                else:
                    await turn.wait()


def request_id(turn: Turn) -> str:
    """The id of an answer."""
    return f"{turn.trajectory}/{turn.number}/{turn.attempt}"


def weight_versions(turn: Turn) -> list[dict[str, Any]]:
    """Weight versions of the answer's tokens; null where a worker died before it told."""
    spans = [span for piece in turn.pieces for span in piece.spans]
    return [{"version": span.version, "start": span.start, "end": span.end} for span in spans]


def token_answer(turn: Turn, *, with_logprobs: bool) -> dict[str, Any]:
    """The whole answer in the shape of the engine's own token path, with versions as numbers."""
    prompt, generated = len(turn.prompt), len(turn.token_ids)
    return {
        "request_id": request_id(turn),
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
        },
        "output_mode": "tokens",
        "choices": [
            {
                "index": 0,
                "token_ids": turn.token_ids,
                "finish_reason": turn.finish_reason,
                "stop_reason": turn.stop_reason,
                "logprobs": {"content": turn.entries} if with_logprobs else None,
                "weight_versions": weight_versions(turn),
            }
        ],
    }
