"""Client of one vLLM engine: token ids in, token ids out, and the text services around it.

Every call ends: with its answer, or with one of the `EngineError`s by a deadline.
Wire: `POST /inference/v1/generate` (needs `--enable-scale-out`), `/v1/.../render`, `/v1/.../derender`, `/health`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import aiohttp

from pearl_api import tokens
from pearl_gateway.calls import Calls
from pearl_gateway.chunks import Patience, read_chunks, spans_of
from pearl_gateway.engine_connection import CallError
from pearl_gateway.errors import (
    EngineClosedError,
    EngineFaultError,
    EngineRefusedError,
    EngineStalledError,
    EngineUnreachableError,
    EngineWeightsError,
)
from pearl_gateway.jsons import dumps, loads
from pearl_gateway.versions import ANY, WEIGHTS_HEADER, Accepted

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from pearl_gateway.calls import Call
    from pearl_gateway.chunks import Chunk

GATE_HEADER = "x-pearl-gate"
_SECONDS_HEADER = "x-pearl-seconds"
"""From the engine's guard: how long it took from request to answer."""
_GENERATE = "/inference/v1/generate"
_JSON = {"Content-Type": "application/json"}
_TEXT_SECONDS = 30.0
_PROBE_SECONDS = 2.0
TURN_WAITS_SECONDS = 0.5
"""Longest wait for an agent's state while a turn waits for it."""


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A prompt's KV waits on its worker under a lease."""

    kv_transfer_params: dict[str, Any]
    version: int | None
    seconds: float | None = None
    """How long the engine took; the rest of the call was on the way. None = it did not say."""


class EngineClient:
    """Calls engines and agents by URL with this rollout's tokens; `lenders`: by the URLs of those that are borrowed."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        engine_token: str | None,
        agent_token: str | None = None,
        connect_seconds: float = 2.0,
        lenders: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._session = session
        self._calls = Calls(connect_seconds)
        self._engine_token = engine_token
        self._agent_token = agent_token
        self._lenders = lenders

    async def close(self) -> None:
        """Close the connections to engines; agents are called over the session."""
        await self._calls.close()

    def _bearer(self, token: str | None, url: str) -> dict[str, str]:
        if not token:
            return {}
        return {"Authorization": f"Bearer {tokens.of_borrower(token, self._lenders.get(url))}"}

    async def generate(  # noqa: PLR0913 - all but the first two are bounds
        self,
        url: str,
        body: dict[str, Any],
        *,
        first_seconds: float,
        stall_seconds: float,
        on_open: Callable[[Callable[[], None]], None],
        on_version: Callable[[int], None] = lambda _: None,
        weights: Accepted = ANY,
    ) -> AsyncGenerator[Chunk]:
        """Stream one generation.

        Args:
            url: Base URL of the engine.
            body: GenerateRequest; `stream` is set here.
            first_seconds: Deadline until the first token.
            stall_seconds: Longest silence after it.
            on_open: Gets a function that breaks the connection, to be called when the worker is known to be gone.
            on_version: Gets the version that serves this call, before its first token, if the engine tells it.
            weights: Versions that may answer; the engine refuses with others.

        Raises:
            EngineError: see `pearl_gateway.errors`; the chunks yielded before it are valid.
        """
        call = self._call(url, _GENERATE, {**body, "stream": True}, weights.headers())
        # Closing breaks the connection: that is what tells the engine to stop generating.
        on_open(call.close)
        patience = Patience(call, asyncio.get_running_loop().time() + first_seconds)
        try:
            await call.begin()
            await _check(call, url)
            version = call.headers.get(WEIGHTS_HEADER, "")
            if version.isdigit():
                on_version(int(version))
            async for chunk in read_chunks(call, url, patience, stall_seconds):
                yield chunk
        except CallError as error:
            if patience.over:
                raise EngineStalledError(f"{url}: silent past its deadline") from None
            raise EngineUnreachableError(f"{url}: {error}") from error
        finally:
            patience.end()
            call.close()

    def _call(self, url: str, path: str, body: Any, headers: Mapping[str, str]) -> Call:
        return self._calls.post(url + path, {**_JSON, **self._bearer(self._engine_token, url), **headers}, dumps(body))

    async def prefill(self, url: str, body: dict[str, Any], seconds: float, weights: Accepted = ANY) -> Prefilled:
        """Compute the prompt's KV and keep it for another worker to fetch.

        Raises:
            EngineError: refused, unreachable, or not done within `seconds`.
        """
        request = {**body, "stream": False, "kv_transfer_params": _KEEP_KV}
        request["sampling_params"] = {"max_tokens": 1, "temperature": 0.0, "detokenize": False}
        answer, headers = await self._post(url, _GENERATE, request, seconds, weights.headers())
        params = answer.get("kv_transfer_params")
        if not params:
            raise EngineUnreachableError(f"{url}: prefill gave no kv_transfer_params; is --kv-transfer-config set?")
        spans = spans_of(answer["choices"][0].get("weight_versions")) or []
        return Prefilled(params, spans[0].version if spans else None, _number(headers.get(_SECONDS_HEADER)))

    async def post(
        self,
        url: str,
        path: str,
        body: Any,
        seconds: float = _TEXT_SECONDS,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """One JSON call to the engine, answered as JSON.

        Raises:
            EngineError: refused, unreachable, or not done within `seconds`.
        """
        return (await self._post(url, path, body, seconds, headers))[0]

    async def _post(
        self, url: str, path: str, body: Any, seconds: float, headers: Mapping[str, str] | None
    ) -> tuple[Any, Mapping[str, str]]:
        call = self._call(url, path, body, headers or {})
        try:
            async with asyncio.timeout(seconds):
                await call.begin()
                await _check(call, url)
                return loads(await call.read()), call.headers
        except TimeoutError:
            raise EngineStalledError(f"{url}{path}: no answer within {seconds:.1f} s") from None
        except (CallError, ValueError) as error:
            raise EngineUnreachableError(f"{url}{path}: {error}") from error
        finally:
            call.close()

    async def healthy(self, url: str) -> bool:
        """Whether the engine answers its health check."""
        timeout = aiohttp.ClientTimeout(total=_PROBE_SECONDS)
        try:
            async with self._session.get(url + "/health", timeout=timeout) as response:
                return response.status == HTTPStatus.OK
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False

    async def agent_state(self, agent_url: str, seconds: float = _PROBE_SECONDS) -> dict[str, Any] | None:
        """The worker agent's state, or None if it does not answer."""
        timeout = aiohttp.ClientTimeout(total=seconds)
        headers = self._bearer(self._agent_token, agent_url)
        try:
            async with self._session.get(agent_url + "/v1/state", headers=headers, timeout=timeout) as response:
                return await response.json() if response.status == HTTPStatus.OK else None
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return None

    async def report(self, agent_url: str, kind: str, detail: str) -> None:
        """Tell the agent about a fault that only it can mend; it may be gone, then nobody is told."""
        timeout = aiohttp.ClientTimeout(total=_PROBE_SECONDS)
        body, headers = {"kind": kind, "detail": detail}, self._bearer(self._agent_token, agent_url)
        try:
            async with self._session.post(agent_url + "/v1/engine/report", json=body, headers=headers, timeout=timeout):
                return
        except (aiohttp.ClientError, OSError, TimeoutError):
            return


_KEEP_KV = {"do_remote_decode": True, "do_remote_prefill": False}


async def _check(response: Call, url: str) -> None:
    if response.status == HTTPStatus.OK:
        return
    content = await response.read()
    if response.status == HTTPStatus.SERVICE_UNAVAILABLE and GATE_HEADER in response.headers:
        version = response.headers.get(WEIGHTS_HEADER, "")
        if version.isdigit():
            raise EngineWeightsError(f"{url}: it serves weights {version}", int(version))
        raise EngineClosedError(f"{url}: the gate is closed")
    text = content[:500].decode("utf-8", "replace")
    if response.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        raise EngineUnreachableError(f"{url}: {response.status}, engine token or --enable-scale-out is wrong: {text}")
    if response.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise EngineFaultError(f"{url}: {response.status} {text}")
    raise EngineRefusedError(response.status, *_refusal(content, text))


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _refusal(content: bytes, text: str) -> tuple[str, object]:
    try:
        body = loads(content)
        return str(body["error"]["message"]), body
    except (ValueError, KeyError, TypeError):
        return text, None
