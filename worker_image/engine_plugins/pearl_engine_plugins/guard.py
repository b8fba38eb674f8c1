"""ASGI middleware inside the engine: who may call what, and whether work is taken at all.

    vllm serve ... --middleware pearl_engine_plugins.guard.EngineGuard

Three kinds of path. *Open*: health and metrics. *Inference*: needs the engine token, which the gateway has, and an
open gate. *Admin* (everything else: pause, sleep, weights, RPC): needs the admin token, which only the worker agent
of this pod has, a new one for every start of the engine. The admin token opens inference too, gate or not: that is
how the agent proves that the engine serves a token before anybody else may ask.

The gate is closed at start. The agent reads and moves it at `/pearl/gate`; the answer also tells how many requests
are inside and for how long KV may still be pinned for another worker, so that the agent never pauses an engine
whose KV is being fetched (vLLM would block until the pin expires).

The agent opens the gate for one weight version. A request may say which it accepts (`X-Pearl-Min-Weights`,
`X-Pearl-Max-Weights`); outside of that it is refused like at a closed gate. So what a caller believes about this
worker may be out of date, and no token is ever made by weights that it did not want. Every answer of an inference
path begins with the version (`X-Pearl-Weights`), so that it is known even if the engine dies in the middle, and with
the seconds from request to answer (`X-Pearl-Seconds`), from which a caller knows how old pinned KV is at the most,
however late the answer arrives.

Environment: `PEARL_ENGINE_TOKEN_FILE` (one accepted token per line), `PEARL_ENGINE_ADMIN_TOKEN`,
`PEARL_KV_LEASE_SECONDS`, `PEARL_GATE` = closed | open (default closed).
"""

import hmac
import json
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

GATE_PATH = "/pearl/gate"
_GATE_QUERY = re.compile(r"open=(true|false)(?:&version=(\d+))?")
_MIN_HEADER, _MAX_HEADER = b"x-pearl-min-weights", b"x-pearl-max-weights"
_OPEN = frozenset({"/health", "/metrics", "/metrics/", "/ping", "/version"})
_INFERENCE = frozenset({"/tokenize", "/detokenize"})
_INFERENCE_PREFIXES = ("/v1/", "/inference/")
# A path of an inference prefix counts as inference only if no router could read it as anything else.
_PLAIN_PATH = re.compile(r"(/[A-Za-z0-9_\-:][A-Za-z0-9_\-:.]*)+")
_PINS_KV = re.compile(rb'"do_remote_decode"\s*:\s*true')
_OK = range(200, 300)


class EngineGuard:
    """The middleware. Raises ValueError when a token is missing: an engine without a guard must not start."""

    def __init__(
        self,
        app: App,
        environment: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        environment = os.environ if environment is None else environment
        self._app = app
        self._clock = clock
        self._engine_tokens = _tokens_from_file(environment.get("PEARL_ENGINE_TOKEN_FILE", ""))
        self._admin_token = environment.get("PEARL_ENGINE_ADMIN_TOKEN", "").encode()
        if not self._admin_token:
            raise ValueError("PEARL_ENGINE_ADMIN_TOKEN is empty: set it to a random secret")
        self._lease_seconds = float(environment.get("PEARL_KV_LEASE_SECONDS", "30"))
        self._gate_open = environment.get("PEARL_GATE", "closed") == "open"
        self._version: int | None = None
        self._in_flight = 0
        self._pinning = 0
        self._pinned_until = float("-inf")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: PLR0911 - a list of rules
        """Pass on, answer or refuse one connection."""
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        path = _route_path(scope)
        if path in _OPEN:
            return await self._app(scope, receive, send)
        token = _bearer(scope)
        admin = hmac.compare_digest(token, self._admin_token)
        if path == GATE_PATH and admin:
            return await self._answer_gate(scope, send)
        if not _is_inference(path):
            return await (
                self._app(scope, receive, send) if admin else _refuse(scope, send, 401, "admin token required")
            )
        if not (admin or _is_one_of(token, self._engine_tokens)):
            return await _refuse(scope, send, 401, "engine token required")
        if not (admin or self._gate_open):
            return await _refuse(scope, send, 503, "this worker takes no work now; ask another")
        if not admin and not self._accepted(scope):
            message = f"this worker serves weights {self._version}, which the request does not accept; ask another"
            return await _refuse(scope, send, 503, message, [(b"x-pearl-weights", str(self._version).encode())])
        return await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = bytearray()
        pins_kv = succeeded = False

        async def watched_receive() -> Message:
            nonlocal pins_kv
            message = await receive()
            if message["type"] == "http.request":
                body.extend(message.get("body", b""))
                if not message.get("more_body", False) and not pins_kv:
                    pins_kv = _PINS_KV.search(body) is not None
                    self._pinning += pins_kv
                    body.clear()
            return message

        began, served = self._clock(), self._version

        async def watched_send(message: Message) -> None:
            nonlocal succeeded
            if message.get("status", 0) in _OK:
                succeeded = True
                message = {**message, "headers": [*message.get("headers", ()), *self._told(served, began)]}
            await send(message)

        self._in_flight += 1
        try:
            await self._app(scope, watched_receive, watched_send)
        finally:
            self._in_flight -= 1
            self._pinning -= pins_kv
            if succeeded and pins_kv:
                self._pinned_until = self._clock() + self._lease_seconds

    def _told(self, served: int | None, began: float) -> list[tuple[bytes, bytes]]:
        seconds = (b"x-pearl-seconds", f"{self._clock() - began:.3f}".encode())
        return [seconds] if served is None else [seconds, (b"x-pearl-weights", str(served).encode())]

    def _accepted(self, scope: Scope) -> bool:
        if self._version is None:
            return True
        least, most = _number(scope, _MIN_HEADER), _number(scope, _MAX_HEADER)
        return (least is None or least <= self._version) and (most is None or self._version <= most)

    async def _answer_gate(self, scope: Scope, send: Send) -> None:
        query = scope.get("query_string", b"").decode("latin-1")
        if scope.get("method") == "POST":
            found = _GATE_QUERY.fullmatch(query)
            if found is None:
                return await _refuse(scope, send, 400, f"query must be open=true|false[&version=N], got {query!r}")
            self._gate_open = found[1] == "true"
            self._version = int(found[2]) if found[2] else None
        state = {
            "open": self._gate_open,
            "in_flight": self._in_flight,
            "pinning": self._pinning,
            "pinned_seconds": max(0.0, self._pinned_until - self._clock()),
        }
        return await _answer(send, 200, state)


def _tokens_from_file(name: str) -> list[bytes]:
    if not name:
        raise ValueError("PEARL_ENGINE_TOKEN_FILE is empty: name a file with one token per line")
    tokens = Path(name).read_bytes().split()
    if not tokens:
        raise ValueError(f"PEARL_ENGINE_TOKEN_FILE={name} holds no token: write one per line")
    return tokens


def _is_one_of(token: bytes, known: list[bytes]) -> bool:
    # Compares with all of them, so that the time does not tell which one it was.
    return sum(hmac.compare_digest(token, one) for one in known) > 0


def _route_path(scope: Scope) -> str:
    # The same path that the router behind will see.
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(root + "/") else path


def _is_inference(path: str) -> bool:
    plain = _PLAIN_PATH.fullmatch(path) is not None and "/.." not in path
    return plain and (path in _INFERENCE or path.startswith(_INFERENCE_PREFIXES))


def _number(scope: Scope, header: bytes) -> int | None:
    values = [value for name, value in scope["headers"] if name == header and value.isdigit()]
    return int(values[0]) if values else None


def _bearer(scope: Scope) -> bytes:
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    # Two headers could be read differently by two layers: that is no token at all.
    if len(values) != 1 or values[0][:7].lower() != b"bearer ":
        return b""
    return bytes(values[0][7:]).strip()


async def _refuse(
    scope: Scope, send: Send, status: int, message: str, headers: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": message})
        return
    kind = {400: "BadRequestError", 401: "Unauthorized", 503: "ServiceUnavailable"}[status]
    await _answer(send, status, {"error": {"message": message, "type": kind, "code": status}}, headers)


async def _answer(
    send: Send, status: int, body: dict[str, Any], more_headers: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    content = json.dumps(body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode()), *more_headers]
    if status == HTTPStatus.UNAUTHORIZED:
        headers.append((b"www-authenticate", b"Bearer"))
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers += [(b"retry-after", b"1"), (b"x-pearl-gate", b"closed")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
