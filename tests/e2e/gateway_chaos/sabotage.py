"""Breaks answers on purpose between the engine and its guard: proof that the checks see it."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS = ("drop", "repeat", "label", "token")
_SHARE = 0.1
"""Of streamed answers that are broken."""


def saboteur(kind: str | None, seed: str) -> Callable[[Any], Any]:
    """An ASGI middleware that drops a token, repeats one, tells a wrong version, or changes a token; None = nothing."""
    draw = random.Random(seed)

    def wrap(app: Any) -> Any:
        if kind is None:
            return app

        async def serve(scope: Any, receive: Any, send: Any) -> None:
            broken = scope.get("path") == "/inference/v1/generate" and draw.random() < _SHARE
            answer = _Answer(kind, draw)

            async def send_broken(message: Any) -> None:
                if message["type"] == "http.response.body":
                    message = {**message, "body": answer.broken(message.get("body", b""))}
                await send(message)

            await app(scope, receive, send_broken if broken else send)

        return serve

    return wrap


class _Answer:
    """One answer, one thing of which is wrong."""

    def __init__(self, kind: str, draw: random.Random) -> None:
        self._kind = kind
        self._draw = draw
        self._done = False

    def broken(self, body: bytes) -> bytes:
        """The next part of the stream."""
        return b"\n\n".join(self._event(one) for one in body.split(b"\n\n"))

    def _event(self, event: bytes) -> bytes:
        if not event.startswith(b"data: {"):
            return event
        message = json.loads(event[6:])
        for choice in message.get("choices", []):
            for span in (choice.get("weight_versions") or [])[-1:]:
                self._span(span)
            if choice.get("token_ids") and choice.get("logprobs") and not self._done:
                self._tokens(choice["token_ids"], choice["logprobs"]["content"])
        return b"data: " + json.dumps(message).encode()

    def _span(self, span: dict[str, Any]) -> None:
        if self._kind == "label":
            span["version"] = str(int(span["version"]) + 1)
        if self._kind == "repeat" and self._done:
            span["end"] += 1

    def _tokens(self, tokens: list[int], entries: list[Any]) -> None:
        at = self._draw.randrange(len(tokens))
        self._done = True
        if self._kind == "drop":
            del tokens[at], entries[at]
        elif self._kind == "repeat":
            tokens.insert(at, tokens[at])
            entries.insert(at, entries[at])
        elif self._kind == "token":
            tokens[at] = (tokens[at] + 1) % 94
