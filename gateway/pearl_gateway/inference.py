"""The three inference paths: token ids, completions, chat. Each becomes turns, and turns become its answer."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from pearl_gateway.answers import request_id, token_answer
from pearl_gateway.asgi import CLIENT_LEFT, EventStream, json_body, json_response, while_connected
from pearl_gateway.errors import GatewayError, bad_request
from pearl_gateway.identity import read_identity
from pearl_gateway.said import asked, said_chat, said_text
from pearl_gateway.sampling import check_options, check_sampling, check_stream, sample, samples_of
from pearl_gateway.streams import Streams
from pearl_gateway.tokens_in import Rendered, TokensIn, are_token_ids, refuse_transfer, refuse_unsupported
from pearl_gateway.tokens_out import TokensOut
from pearl_gateway.usage import stream_usage, usage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from starlette.requests import Request

    from pearl_gateway.gateway import Gateway
    from pearl_gateway.identity import Identity
    from pearl_gateway.said import Base
    from pearl_gateway.trajectory import Trajectory
    from pearl_gateway.turn_state import Turn

_PASSED_ON = ("cache_salt", "priority", "reasoning_ended", "reasoning_parser_kwargs")
"""Fields of the engine's request that only the engine understands."""


class Inference:
    """Handlers of the inference paths."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._tokens_in = TokensIn(gateway.text)
        self._tokens_out = TokensOut(gateway.text)
        self._streams = Streams(gateway.sessions, gateway.text)

    async def generate(self, request: Request) -> Response:
        """Token ids in, token ids out."""
        body = await json_body(request)
        identity = read_identity(request.scope["headers"], body)
        self.check_model(body)
        check_stream(body)
        sampling = check_sampling(body.get("sampling_params"))
        refuse_transfer(body, sampling.get("extra_args"))
        refuse_unsupported(sampling)
        if body.get("output_mode") not in (None, "tokens"):
            raise bad_request("output_mode must be tokens: for text there is /v1/completions", param="output_mode")
        prompt = body.get("token_ids")
        if not are_token_ids(prompt):
            raise bad_request("token_ids must be a list of at least one token id", param="token_ids")
        extra = {name: body[name] for name in _PASSED_ON if body.get(name) is not None}
        turn = self.open_turn(identity, Rendered(prompt, sampling, extra))
        with_logprobs = sampling.get("logprobs") is not None
        if body.get("stream"):
            return EventStream(self._streams.token_events(turn, stream_usage(body), with_logprobs=with_logprobs))
        done = await while_connected(request, self._gateway.sessions.answer(turn))
        if done is None:
            return _left()
        answer = token_answer(turn, with_logprobs=with_logprobs)
        return json_response({**answer, "model": self._model, "created": int(self._gateway.wall())})

    async def completions(self, request: Request) -> Response:
        """OpenAI completions."""
        body, identity = await self._openai_body(request)
        answer = await while_connected(request, self._completions(body, identity))
        return _left() if answer is None else answer

    async def _completions(self, body: dict[str, Any], identity: Identity) -> Response:
        turns, samples = await self._turns(body, identity, self._tokens_in.completion)
        if body.get("stream"):
            return EventStream(self._text_events(body, turns, samples, "text_completion"))
        await self._answers(turns)
        choices = [await self._tokens_out.completion_choice(body, turn, at) for at, turn in enumerate(turns)]
        self._remember(turns[0], body, {"content": choices[0]["text"]})
        return json_response(self._envelope(turns, "text_completion", choices) | {"usage": usage(turns, samples)})

    async def chat(self, request: Request) -> Response:
        """OpenAI chat completions."""
        body, identity = await self._openai_body(request)
        answer = await while_connected(request, self._chat(body, identity))
        return _left() if answer is None else answer

    async def _chat(self, body: dict[str, Any], identity: Identity) -> Response:
        turns, samples = await self._turns(body, identity, self._rendered_chat)
        if body.get("stream"):
            return EventStream(self._text_events(body, turns, samples, "chat.completion.chunk"))
        await self._answers(turns)
        choices = [await self._tokens_out.chat_choice(body, turn, at) for at, turn in enumerate(turns)]
        self._remember(turns[0], body, choices[0]["message"])
        answer = self._envelope(turns, "chat.completion", choices) | {"usage": usage(turns, samples)}
        if body.get("return_token_ids"):
            answer["prompt_token_ids"] = turns[0].prompt
        return json_response(answer)

    async def _openai_body(self, request: Request) -> tuple[dict[str, Any], Identity]:
        body = await json_body(request)
        identity = read_identity(request.scope["headers"], body)
        self.check_model(body)
        check_stream(body)
        check_options(body)
        return body, identity

    async def _turns(
        self, body: dict[str, Any], identity: Identity, render: Callable[..., Awaitable[list[Rendered]]]
    ) -> tuple[list[Turn], int]:
        """The running turns of a request, and how many samples each of its prompts has."""
        if identity.trajectory is not None and identity.turn is not None:
            turn = self._gateway.sessions.repeated(identity, asked(body))
            if turn is not None:
                return [turn], 1
        known = self._known(identity)
        rendered = await render(body, known.base(identity.turn, identity.parent_turn) if known is not None else None)
        samples = samples_of(body, len(rendered), self._gateway.settings.limits.max_turns)
        return self._open_all(identity, rendered, samples), samples

    async def _rendered_chat(self, body: dict[str, Any], base: Base | None) -> list[Rendered]:
        return [await self._tokens_in.chat(body, base)]

    def _known(self, identity: Identity) -> Trajectory | None:
        return self._gateway.sessions.live.get(identity.trajectory) if identity.trajectory else None

    def _open_all(self, identity: Identity, rendered: list[Rendered], samples: int) -> list[Turn]:
        if identity.trajectory is not None and len(rendered) * samples != 1:
            message = "a trajectory takes one prompt and n = 1 per turn: use one trajectory per sample"
            raise bad_request(message, param="n")
        turns: list[Turn] = []
        try:
            for one in rendered:
                for at in range(samples):
                    mine = replace(one, sampling=sample(one.sampling, at))
                    turns.append(self.open_turn(identity, mine))
        except GatewayError:
            self._gateway.sessions.drop(turns)
            raise
        return turns

    def open_turn(self, identity: Identity, rendered: Rendered) -> Turn:
        """The running turn of a request; raises GatewayError where it cannot be taken."""
        sessions = self._gateway.sessions
        trajectory = sessions.obtain(identity)
        try:
            return sessions.open_turn(trajectory, identity, rendered)
        except GatewayError:
            sessions.drop_if_unused(trajectory)
            raise

    async def _answers(self, turns: list[Turn]) -> None:
        sessions = self._gateway.sessions
        if len(turns) == 1:
            await sessions.answer(turns[0])
            return
        await asyncio.gather(*(sessions.answer(turn) for turn in turns))

    def check_model(self, body: dict[str, Any]) -> None:
        """Raises GatewayError (404) where the body names a model that is not served here."""
        wanted, served = body.get("model"), self._gateway.settings.model
        if served is not None and wanted not in (None, "", served):
            raise GatewayError(
                HTTPStatus.NOT_FOUND,
                "ModelUnknown",
                f"model {wanted!r:.200} is not served here; this rollout serves {served!r}",
                param="model",
            )

    def _remember(self, turn: Turn, body: dict[str, Any], message: dict[str, Any]) -> None:
        """`message`: the answer, as an assistant message or with its text as `content`."""
        trajectory = self._gateway.sessions.live.get(turn.trajectory)
        if trajectory is None or trajectory.ephemeral:
            return
        if "messages" in body:
            self._gateway.recorder.said(trajectory, turn.number, said_chat(body, message))
        elif isinstance(body.get("prompt"), str):
            self._gateway.recorder.said(trajectory, turn.number, said_text(body["prompt"] + message["content"]))

    @property
    def _model(self) -> str:
        return self._gateway.settings.model or self._gateway.settings.rollout

    def _envelope(self, turns: list[Turn], kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": request_id(turns[0]),
            "object": kind,
            "created": int(self._gateway.wall()),
            "model": self._model,
            "choices": choices,
        }

    def _text_events(self, body: dict[str, Any], turns: list[Turn], samples: int, kind: str) -> AsyncGenerator[bytes]:
        def ended(message: dict[str, Any]) -> None:
            self._remember(turns[0], body, message)

        return self._streams.text_events(body, turns, samples, self._envelope(turns, kind, []), ended)


def _left() -> Response:
    return Response(status_code=CLIENT_LEFT)
