"""The little of HTTP that Starlette leaves open: JSON in and out, tokens, streams that notice a client that left."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.responses import Response

from pearl_api.tokens import matches
from pearl_gateway.errors import GatewayError, bad_request
from pearl_gateway.jsons import dumps, loads

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

T = TypeVar("T")

CLIENT_LEFT = 499
"""Status in the log of an answer that nobody waited for."""


async def json_body(request: Request) -> dict[str, Any]:
    """The request's JSON object.

    Raises:
        GatewayError: it is none.
    """
    try:
        body = loads(await request.body(), _no_number)
    except ValueError as error:
        raise bad_request(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise bad_request("the body is nested too deeply") from None
    if not isinstance(body, dict):
        raise bad_request("the body must be a JSON object")
    return body


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def json_response(content: Any, status: int = HTTPStatus.OK, headers: dict[str, str] | None = None) -> Response:
    """A compact JSON answer."""
    body = dumps(content)
    return Response(body, status, headers, media_type="application/json")


def openai_error(error: GatewayError) -> dict[str, Any]:
    """The body that OpenAI clients expect, with the fields of vLLM's: they look for `error.message`."""
    later = {} if error.retry_after_seconds is None else {"retryAfterSeconds": error.retry_after_seconds}
    said = {"message": error.message, "type": error.error, "param": error.param, "code": int(error.status)}
    return {"error": {**said, **later}}


def error_response(error: GatewayError) -> Response:
    """A refusal, as OpenAI clients read it."""
    headers = {}
    if error.retry_after_seconds is not None:
        headers["Retry-After"] = str(max(1, round(error.retry_after_seconds)))
    if error.status == HTTPStatus.REQUEST_TIMEOUT:
        headers["Connection"] = "close"
    return json_response(openai_error(error), error.status, headers)


def check_token(request: Request, *accepted: str | None) -> None:
    """Raise GatewayError (401) unless the request carries one of the accepted bearer tokens."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and any(matches(token.strip(), one or "") for one in accepted):
        return
    raise GatewayError(
        HTTPStatus.UNAUTHORIZED, "Unauthorized", "send `Authorization: Bearer <token>` with the rollout's client token"
    )


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """Result of `work`, or None if the client left first; `work` is cancelled then."""
    return await _unless_left(request.receive, work)


async def until_client_leaves(answer: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Send an answer; what makes it is cancelled when the client leaves, which is no error."""
    with suppress(OSError):
        await _unless_left(receive, answer)


async def _unless_left(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    # `work` runs in the task that is here: one more, and waiting for either, would cost as much as a short answer.
    mine = asyncio.current_task()
    left = False

    async def watch() -> None:
        nonlocal left
        while (await receive())["type"] != "http.disconnect":
            pass
        left = True
        if mine is not None:
            mine.cancel()

    watcher = asyncio.ensure_future(watch())
    try:
        return await work
    except asyncio.CancelledError:
        if left and mine is not None and not mine.uncancel():
            return None
        raise
    finally:
        watcher.cancel()


class EventStream(Response):
    """Server-sent events from an iterator of ready-made `data:` payloads; closed as soon as the client leaves.

    A `GatewayError` before the first event is an answer with its status; a later one is the last event.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes]) -> None:
        super().__init__(None, HTTPStatus.OK, {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events; the iterator is closed in any case."""
        await until_client_leaves(self._answer(scope, receive, send), receive)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events) as events:
            try:
                first = await anext(events, None)
            except GatewayError as error:
                await error_response(error)(scope, receive, send)
                return
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if first is not None:
                await _send_event(send, first)
            try:
                async for event in events:
                    await _send_event(send, event)
            except GatewayError as error:
                await _send_event(send, dumps(openai_error(error)))
            await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})


async def _send_event(send: Send, event: bytes) -> None:
    await send({"type": "http.response.body", "body": b"data: " + event + b"\n\n", "more_body": True})
