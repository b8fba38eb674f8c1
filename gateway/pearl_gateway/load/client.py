"""Talks to a gateway and never gives a turn up silently: it repeats with the same key, which re-attaches."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import aiohttp

from pearl_api.wire.gateway import HEADER_ATTEMPT, HEADER_GROUP, HEADER_STEP, HEADER_TRAJECTORY, HEADER_TURN
from pearl_gateway.load.stream import StreamError, joined

if TYPE_CHECKING:
    from pearl_gateway.load.plan import Work

_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 5.0
_REACH_SECONDS = 10.0
"""How long a gateway that does not answer yet is waited for at the start."""
_REPEATABLE = frozenset({408, 425, 429, 499, 500, 502, 503, 504})


class LoadError(Exception):
    """A request that did not succeed although it was repeated, or that never can."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One turn as the client got it."""

    token_ids: list[int]
    text: str
    versions: list[dict[str, Any]]
    seconds: float
    repeats: int
    first_seconds: float | None = None
    """Until the first bytes of the answer; None where it was not streamed."""
    message: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Reply:
    """What a request came to."""

    content: Any
    repeats: int
    first_at: float


class GatewayClient:
    """One gateway; `give_up_seconds` bounds how long a single request is repeated."""

    def __init__(  # noqa: PLR0913 - one call, all by name
        self,
        session: aiohttp.ClientSession,
        url: str,
        token: str | None,
        model: str | None,
        give_up_seconds: float,
        *,
        stream: bool = False,
    ) -> None:
        self._stream = stream
        self._session = session
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._model = model
        self._give_up = give_up_seconds

    async def reach(self) -> None:
        """Raise LoadError where nothing answers at the gateway's address for a while."""
        deadline = time.monotonic() + min(self._give_up, _REACH_SECONDS)
        while True:
            try:
                async with self._session.get(self._url + "/health"):
                    return
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                if time.monotonic() + _PAUSE_SECONDS > deadline:
                    message = (
                        f"no gateway answers at {self._url}: {error}; see that it runs and that the address is its"
                    )
                    raise LoadError(message) from error
            await asyncio.sleep(_PAUSE_SECONDS)

    async def tokens(self, work: Work, turn: int, step: int, prompt: list[int], sampling: dict[str, Any]) -> Answer:
        """One turn by token ids."""
        body = {"token_ids": prompt, "sampling_params": sampling}
        return await self._turn("/inference/v1/generate", work, turn, step, body)

    async def text(self, work: Work, turn: int, step: int, prompt: str, sampling: dict[str, Any]) -> Answer:
        """One turn as a completion."""
        body = {"prompt": prompt, "return_token_ids": True, **sampling}
        return await self._turn("/v1/completions", work, turn, step, body)

    async def chat(
        self, work: Work, turn: int, step: int, messages: list[dict[str, Any]], sampling: dict[str, Any]
    ) -> Answer:
        """One turn as a chat completion."""
        body = {"messages": messages, "return_token_ids": True, **sampling}
        return await self._turn("/v1/chat/completions", work, turn, step, body)

    async def _turn(self, path: str, work: Work, turn: int, step: int, body: dict[str, Any]) -> Answer:
        headers = {
            HEADER_TRAJECTORY: work.trajectory,
            HEADER_TURN: str(turn),
            HEADER_ATTEMPT: "0",
            HEADER_GROUP: work.group,
            HEADER_STEP: str(step),
        }
        started = time.monotonic()
        reply = await self._repeat("POST", path, {"model": self._model, "stream": self._stream, **body}, headers)
        choice = reply.content["choices"][0]
        return Answer(
            token_ids=choice["token_ids"],
            text=choice.get("text") or "",
            versions=choice.get("weight_versions") or [],
            seconds=time.monotonic() - started,
            repeats=reply.repeats,
            first_seconds=reply.first_at - started if self._stream else None,
            message=choice.get("message") or {},
        )

    async def call(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[Any, int]:
        """One request, repeated while its refusals are retryable; also the number of repeats.

        Raises:
            LoadError: refused for good, or still not answered after the time to give up.
        """
        reply = await self._repeat(method, path, body, headers or {})
        return reply.content, reply.repeats

    async def _repeat(self, method: str, path: str, body: Any, headers: dict[str, str]) -> _Reply:
        deadline = time.monotonic() + self._give_up
        repeats = 0
        while True:
            pause, why, first_at = await self._try(method, path, body, headers)
            if pause is None:
                return _Reply(why, repeats, first_at)
            if time.monotonic() + pause > deadline:
                raise LoadError(f"{method} {path}: given up after {self._give_up:.0f} s and {repeats} repeats: {why}")
            repeats += 1
            await asyncio.sleep(pause)

    async def _try(self, method: str, path: str, body: Any, headers: dict[str, str]) -> tuple[float | None, Any, float]:
        """(None, content, when it began), or (seconds to pause, why, 0)."""
        try:
            async with self._session.request(
                method, self._url + path, json=body, headers={**self._headers, **headers}
            ) as response:
                begun = await response.content.readany()
                first_at = time.monotonic()
                text = (begun + await response.content.read()).decode()
                if response.status == HTTPStatus.OK:
                    streamed = response.content_type == "text/event-stream"
                    return None, joined(text) if streamed else json.loads(text), first_at
                if response.status not in _REPEATABLE:
                    raise LoadError(f"{method} {path}: {response.status} {text[:300]}")
                wait = float(response.headers.get("Retry-After", _PAUSE_SECONDS))
                return min(wait, _LONGEST_PAUSE_SECONDS), f"{response.status} {text[:300]}", 0.0
        except StreamError as error:
            if error.status is not None and error.status not in _REPEATABLE:
                raise LoadError(f"{method} {path}: {error}") from error
            return _PAUSE_SECONDS, str(error), 0.0
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            return _PAUSE_SECONDS, repr(error), 0.0
