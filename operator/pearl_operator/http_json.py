"""JSON over HTTP with bearer tokens: what the clients of gateway, agents and Prometheus share."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import aiohttp
from pydantic import BaseModel, ValidationError

from pearl_api.wire.worker import Problem
from pearl_operator.errors import Refused, Unavailable, described

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from pearl_operator.calls import Calls, Receiver

M = TypeVar("M", bound=BaseModel)

_MAX_ANSWER_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class HttpJson:
    """One shared session with a deadline for every call."""

    session: aiohttp.ClientSession
    timeout_seconds: float
    calls: Calls

    async def call(  # noqa: PLR0913 - by name
        self,
        to: Receiver,
        method: str,
        url: str,
        *,
        token: str | None = None,
        body: BaseModel | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        context: ssl.SSLContext | None = None,
    ) -> bytes:
        """The body of a 2xx answer; `context` checks the server's certificate, None = as the system does.

        Raises:
            Unavailable: No answer within the deadline, 429 or 5xx.
            Refused: Any other status; the message is the receiver's.
        """
        sent = {**(headers or {}), "Accept": "application/json"}
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        data: Any = None
        if body is not None:
            sent["Content-Type"] = "application/json"
            data = body.model_dump_json(by_alias=True)
        try:
            with self.calls.told(to, method, url) as told:
                async with self.session.request(
                    method,
                    url,
                    headers=sent,
                    ssl=context if context is not None else True,
                    data=data,
                    params=params,
                    timeout=aiohttp.ClientTimeout(total=self.timeout_seconds),
                    allow_redirects=False,  # a token must not follow one
                ) as answer:
                    raw, status = await _whole(answer), answer.status
                told.answer = str(status)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"{method} {url}: no answer ({described(error)})") from error
        if status in range(200, 300):
            return raw
        problem = _problem(raw)
        message = f"{method} {url}: {problem.message if problem else _said(raw) or f'HTTP {status}'}"
        if status == 429 or status >= 500:  # noqa: PLR2004
            raise Unavailable(message, seconds=(problem and problem.retry_after_seconds) or 1.0)
        raise Refused(message)


async def _whole(answer: aiohttp.ClientResponse) -> bytes:
    """The body; `StreamReader.read(n)` would stop at what has arrived so far."""
    raw = bytearray()
    async for chunk in answer.content.iter_any():
        raw += chunk
        if len(raw) > _MAX_ANSWER_BYTES:
            raise aiohttp.ClientPayloadError(f"the answer is longer than {_MAX_ANSWER_BYTES} bytes")
    return bytes(raw)


def _said(raw: bytes) -> str | None:
    """What Prometheus says that is wrong with a query."""
    try:
        found = json.loads(raw).get("error")
    except (ValueError, AttributeError):
        return None
    return found if isinstance(found, str) else None


def _problem(raw: bytes) -> Problem | None:
    try:
        return Problem.model_validate_json(raw)
    except ValidationError:
        return None


def parse(model: type[M], raw: bytes, what: str) -> M:
    """The message, or `Unavailable` where the other side speaks another version."""
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        raise Unavailable(f"{what}: the answer is not a {model.__name__}: {error}") from error
