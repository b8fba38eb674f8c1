"""What an engine streams: its events, read by read, as chunks of tokens."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from pearl_gateway.errors import (
    EngineError,
    EngineFaultError,
    EngineRefusedError,
    EngineUnreachableError,
)
from pearl_gateway.jsons import loads

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pearl_gateway.calls import Call

_DEFAULT_VERSION = "default"
"""What the engine calls weights that nobody labelled: version 0, the model as it was started."""
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Span:
    """Generated tokens [start, end) of one call came from this weight version; None = unlabelled otherwise."""

    version: int | None
    start: int
    end: int


@dataclass(slots=True)
class Chunk:
    """What one read brought: some tokens, perhaps the end."""

    token_ids: list[int]
    logprobs: list[float | None] | None
    """Of the chosen tokens; None where none were asked for."""
    entries: list[dict[str, Any]] | None
    """The engine's own logprob entries, for clients that asked for them."""
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    spans: list[Span] | None = None
    """Only with the end."""
    routed_experts: str | None = None
    """Only with the end, where the engine is told to return them."""


async def read_chunks(call: Call, url: str, patience: Patience, stall_seconds: float) -> AsyncIterator[Chunk]:
    """Chunks of one generation until its end; `patience` ends while a chunk is used and begins anew afterwards.

    Raises:
        EngineError: the stream ended before its answer, or says that it failed.
        CallError: broken off, by the engine or for its silence.
    """
    loop = asyncio.get_running_loop()
    pending = b""
    while True:
        data = await call.read_any()
        if not data:
            raise EngineUnreachableError(f"{url}: the stream ended without a finish reason")
        events = (pending + data).split(b"\n\n")
        pending = events.pop()
        chunk = _merge(events, url)
        if chunk is None:
            continue
        patience.until = None
        if chunk.finish_reason is not None:
            # An end mark follows: the answer need not wait for it.
            call.let_go()
        yield chunk
        if chunk.finish_reason is not None:
            return
        patience.until = loop.time() + stall_seconds


class Patience:
    """Breaks a call off that is silent for too long: one timer for all its reads, which looks when it fires."""

    def __init__(self, call: Call, until: float) -> None:
        self.until: float | None = until
        """Of the loop's clock; None while nobody reads."""
        self.over = False
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_at(until, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        if self.until is not None and self.until <= now:
            self.over = True
            self._call.close()
        else:
            self._timer = self._loop.call_at(self.until or now + _LOOK_SECONDS, self._look)

    def end(self) -> None:
        """Not needed any more."""
        self._timer.cancel()


def _merge(events: list[bytes], url: str) -> Chunk | None:
    """All events of one read as one chunk: work is per read, not per token."""
    merged: Chunk | None = None
    for event in events:
        if not event.startswith(b"data: {"):
            continue
        message = loads(event[6:])
        if "error" in message:
            raise _failed(message, url)
        for choice in message["choices"]:
            chunk = _chunk(choice)
            merged = chunk if merged is None else _join(merged, chunk)
    return merged


def _failed(message: dict[str, Any], url: str) -> EngineError:
    """What an error event means. vLLM checks some of a request only when its stream has begun, with status 200."""
    error = message["error"] if isinstance(message["error"], dict) else {}
    code = error.get("code")
    if isinstance(code, int) and HTTPStatus.BAD_REQUEST <= code < HTTPStatus.INTERNAL_SERVER_ERROR:
        return EngineRefusedError(code, str(error.get("message")), message)
    said = f"{url}: {str(error.get('message') or message['error'])[:300]}"
    return EngineFaultError(said) if isinstance(code, int) else EngineUnreachableError(said)


def _chunk(choice: dict[str, Any]) -> Chunk:
    entries = (choice.get("logprobs") or {}).get("content")
    return Chunk(
        token_ids=choice.get("token_ids") or [],
        logprobs=None if entries is None else [entry["logprob"] for entry in entries],
        entries=entries,
        finish_reason=choice.get("finish_reason"),
        stop_reason=choice.get("stop_reason"),
        spans=spans_of(choice.get("weight_versions")),
        routed_experts=choice.get("routed_experts"),
    )


def _join(first: Chunk, second: Chunk) -> Chunk:
    first.token_ids += second.token_ids
    if first.logprobs is not None and second.logprobs is not None:
        first.logprobs += second.logprobs
    if first.entries is not None and second.entries is not None:
        first.entries += second.entries
    first.finish_reason, first.stop_reason, first.spans = second.finish_reason, second.stop_reason, second.spans
    first.routed_experts = second.routed_experts or first.routed_experts
    return first


def spans_of(found: list[dict[str, Any]] | None) -> list[Span] | None:
    """The weight versions of an answer as the engine tells them; None where it does not."""
    if found is None:
        return None
    return [Span(parse_version(one["version"]), one["start"], one["end"]) for one in found]


def parse_version(label: str) -> int | None:
    """The engine's label of its weights as a manifest version; None if it is no number."""
    if label == _DEFAULT_VERSION:
        return 0
    return int(label) if label.isdigit() else None
