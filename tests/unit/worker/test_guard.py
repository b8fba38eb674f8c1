"""The guard inside the engine: what each token opens, and that no spelling of a path opens more."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

ENGINE, ADMIN = "engine-token", "admin-token"


class Caller:
    """Calls a guarded application that answers 200 and says what reached it."""

    def __init__(self, tmp_path: Path, **environment: str) -> None:
        from pearl_engine_plugins.guard import EngineGuard

        (tmp_path / "engine").write_text(ENGINE + "\n")
        self.reached: list[str] = []
        self.clock = 100.0
        self.seconds = 0.0
        """What the application takes."""
        self.headers: dict[bytes, bytes] = {}
        """Of the last answer."""
        variables = {"PEARL_ENGINE_TOKEN_FILE": str(tmp_path / "engine"), "PEARL_ENGINE_ADMIN_TOKEN": ADMIN}
        self.guard = EngineGuard(self._app, variables | environment, lambda: self.clock)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.reached.append(scope["path"])
        await receive()
        self.clock += self.seconds
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def __call__(  # noqa: PLR0913 - the parts of a request
        self,
        path: str,
        token: str | None = None,
        *,
        method: str = "POST",
        query: bytes = b"",
        body: bytes = b"{}",
        headers: Any = None,
        **scope: Any,
    ) -> tuple[int, Any]:
        sent = []
        authorization = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: str) -> None:
            sent.append(message)

        request = {
            "type": "http",
            "path": path,
            "method": method,
            "query_string": query,
            "headers": authorization if headers is None else headers,
            **scope,
        }
        await self.guard(request, receive, send)
        if sent[0]["type"] == "websocket.close":
            return 401, None
        self.headers = dict(sent[0]["headers"])
        return sent[0]["status"], json.loads(sent[-1]["body"] or b"null")


@pytest.fixture
def call(tmp_path: Path) -> Caller:
    return Caller(tmp_path, PEARL_GATE="open", PEARL_KV_LEASE_SECONDS="10")


@pytest.mark.parametrize("path", ["/health", "/metrics", "/ping", "/version"])
async def test_health_and_metrics_are_open(call: Any, path: str) -> None:
    assert (await call(path))[0] == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/models", "/inference/v1/generate", "/tokenize"])
async def test_inference_needs_the_engine_token(call: Any, path: str) -> None:
    assert [(await call(path, token))[0] for token in (None, "", "wrong", ENGINE, ADMIN)] == [401, 401, 401, 200, 200]


@pytest.mark.parametrize(
    "path",
    [
        *("/pause", "/resume", "/sleep", "/wake_up", "/collective_rpc", "/update_weights", "/abort_requests"),
        *("/server_info", "/invocations", "/", "", "*", "/pearl/gate", "/docs", "/openapi.json"),
        # spellings that a router behind might read as something else than they look
        *("/v1/../pause", "/v1/..", "/inference/./../pause", "//pause", "/v1//pause", "/v1/%2e%2e/pause"),
        *("/V1/completions", "/v1", "/v1/", "/health/", "/health/../pause", "/healthz", "/metrics/x", "/v1\\pause"),
        *("/v1/completions\n", "/v1/\x00", "/v1/completions;/../../pause", "/tokenize/../pause", "/version/pause"),
    ],
)
async def test_everything_else_needs_the_admin_token(call: Any, path: str) -> None:
    assert (await call(path, ENGINE))[0] == 401
    assert (await call(path))[0] == 401
    assert call.reached == []


async def test_the_admin_token_opens_admin_paths(call: Any) -> None:
    assert (await call("/pause", ADMIN))[0] == 200


async def test_a_root_path_does_not_shift_the_rules(call: Any) -> None:
    assert (await call("/api/pause", ENGINE, root_path="/api"))[0] == 401
    assert (await call("/v1/pause", ENGINE, root_path="/v1"))[0] == 401  # the router sees /pause
    assert (await call("/api/v1/models", ENGINE, root_path="/api"))[0] == 200


async def test_two_authorization_headers_are_none(call: Any) -> None:
    headers = [(b"authorization", b"Bearer " + ADMIN.encode()), (b"authorization", b"Bearer x")]
    assert (await call("/pause", headers=headers))[0] == 401


async def test_a_websocket_without_a_token_is_closed(call: Any) -> None:
    assert (await call("/v1/realtime", type="websocket"))[0] == 401
    assert call.reached == []


async def test_a_closed_gate_refuses_everybody_but_the_agent(tmp_path: Path) -> None:
    call = Caller(tmp_path)
    assert (await call("/v1/completions", ENGINE))[0] == 503
    assert (await call("/v1/completions", ADMIN))[0] == 200
    assert (await call("/pearl/gate", ADMIN, query=b"open=true"))[1]["open"] is True
    assert (await call("/v1/completions", ENGINE))[0] == 200
    assert (await call("/pearl/gate", ADMIN, query=b"open=maybe"))[0] == 400


@pytest.mark.parametrize(
    ("accepted", "status"),
    [
        ({}, 200),
        ({"x-pearl-min-weights": "7"}, 200),
        ({"x-pearl-min-weights": "8"}, 503),
        ({"x-pearl-max-weights": "7"}, 200),
        ({"x-pearl-max-weights": "6"}, 503),
        ({"x-pearl-min-weights": "5", "x-pearl-max-weights": "5"}, 503),
        ({"x-pearl-min-weights": "seven"}, 200),
    ],
)
async def test_weights_that_a_request_does_not_accept_make_no_token(
    tmp_path: Path, accepted: dict[str, str], status: int
) -> None:
    call = Caller(tmp_path)
    await call("/pearl/gate", ADMIN, query=b"open=true&version=7")
    headers = [(b"authorization", b"Bearer " + ENGINE.encode())]
    headers += [(name.encode(), value.encode()) for name, value in accepted.items()]
    assert (await call("/inference/v1/generate", headers=headers))[0] == status
    assert len(call.reached) == (status == 200)
    await call("/pearl/gate", ADMIN, query=b"open=true")  # an agent that names no version
    assert (await call("/inference/v1/generate", headers=headers))[0] == 200


async def test_the_gate_tells_of_requests_that_are_going_to_pin_kv(tmp_path: Path) -> None:
    call = Caller(tmp_path, PEARL_GATE="open")
    seen = []

    async def app(_: Any, receive: Any, send: Any) -> None:
        await receive()
        seen.append((await call("/pearl/gate", ADMIN, method="GET"))[1]["pinning"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    call.guard._app = app
    await call("/v1/completions", ENGINE, body=b'{"kv_transfer_params": {"do_remote_decode": true}}')
    await call("/v1/completions", ENGINE)
    assert seen == [1, 0]
    assert (await call("/pearl/gate", ADMIN, method="GET"))[1]["pinning"] == 0


async def test_the_gate_tells_how_long_kv_may_be_pinned(call: Any) -> None:
    async def pinned() -> float:
        return (await call("/pearl/gate", ADMIN, method="GET"))[1]["pinned_seconds"]

    await call("/v1/completions", ENGINE, body=b'{"kv_transfer_params": {"do_remote_decode": false}}')
    assert await pinned() == 0
    await call("/v1/completions", ENGINE, body=b'{"kv_transfer_params": {"do_remote_decode" : true}}')
    call.clock += 4
    assert await pinned() == 6
    call.clock += 7
    assert await pinned() == 0


async def test_an_answer_begins_with_its_version_and_how_long_it_took(call: Any) -> None:
    call.seconds = 2.5
    await call("/v1/completions", ENGINE)
    assert call.headers == {b"x-pearl-seconds": b"2.500"}  # the gate was opened for no version
    await call("/pearl/gate", ADMIN, query=b"open=true&version=7")
    await call("/v1/completions", ENGINE)
    assert (call.headers[b"x-pearl-weights"], call.headers[b"x-pearl-seconds"]) == (b"7", b"2.500")


@pytest.mark.parametrize("variable", ["PEARL_ENGINE_TOKEN_FILE", "PEARL_ENGINE_ADMIN_TOKEN"])
def test_an_engine_without_a_token_does_not_start(tmp_path: Path, variable: str) -> None:
    with pytest.raises(ValueError, match=variable):
        Caller(tmp_path, **{variable: ""})
