"""The HTTP interface of one emulated engine: the routes of `vllm serve` 0.32 that the project uses.

Development routes (pause, sleep, weights) are always there; who may call what is the engine guard's business, which is
an ASGI middleware and can be put around this application as around vLLM's.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn

from pearl_simulator.emulator import asked, config, errors, text_api
from pearl_simulator.emulator.errors import ApiError, EngineDeadError, EngineFaultError
from pearl_simulator.emulator.generation import Generations
from pearl_simulator.emulator.http import BrokenConnectionError, Receive, Request, Scope, Send

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pearl_simulator.emulator.engine import Engine
    from pearl_simulator.emulator.weights import Weights

_PAUSE_MODES = ("abort", "wait", "keep")
_DEEPEST_SLEEP = 2


class EmulatorApp:
    """An ASGI application around one engine."""

    def __init__(self, engine: Engine, new_id: Callable[[], str], wall: Callable[[], float]) -> None:
        self._engine = engine
        self._config = engine.config
        self._started = int(wall())
        self._new_id = new_id
        self._generations = Generations(engine, new_id, wall)
        self._derenderer = text_api.Derenderer(engine.config, new_id, wall)
        self._routes = self._make_routes()
        self._paths = {path for _, path in self._routes}

    def _make_routes(self) -> dict[tuple[str, str], Callable[[Request], Awaitable[None]]]:
        said = self._say
        return {
            ("POST", "/v1/completions"): self._generations.completion,
            ("POST", "/v1/chat/completions"): self._generations.chat,
            ("POST", "/inference/v1/generate"): self._generations.generate,
            ("GET", "/health"): self._health,
            ("GET", "/ping"): self._health,
            ("POST", "/ping"): self._health,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/version"): said(lambda: {"version": config.VERSION}),
            ("GET", "/load"): said(lambda: {"server_load": self._generations.open}),
            ("GET", "/v1/models"): said(self._models),
            ("GET", "/is_paused"): said(lambda: {"is_paused": self._engine.paused}),
            ("GET", "/is_sleeping"): said(lambda: {"is_sleeping": self._engine.sleeping}),
            ("GET", "/weight_info"): said(lambda: {"weight_version": self._engine.weights.version}),
            ("GET", "/get_world_size"): said(lambda: {"world_size": 1}),
            ("GET", "/kv_event_sources"): said(dict),
            ("POST", "/is_scaling_elastic_ep"): said(lambda: {"is_scaling_elastic_ep": False}),
            ("POST", "/tokenize"): self._text(lambda body: text_api.tokenize(body, self._config)),
            ("POST", "/detokenize"): self._text(text_api.detokenize),
            ("POST", "/v1/completions/render"): self._text(
                lambda body: text_api.render_completion(body, self._config, self._new_id)
            ),
            ("POST", "/v1/chat/completions/render"): self._text(
                lambda body: text_api.render_chat(body, self._config, self._new_id)
            ),
            ("POST", "/v1/completions/derender"): self._text(self._derenderer.completion),
            ("POST", "/v1/chat/completions/derender"): self._text(self._derenderer.chat),
            ("POST", "/abort_requests"): self._abort,
            ("POST", "/inference/v1/abort_requests"): self._abort_quietly,
            ("POST", "/pause"): self._pause,
            ("POST", "/resume"): self._resume,
            ("POST", "/sleep"): self._sleep,
            ("POST", "/wake_up"): self._wake_up,
            ("POST", "/reset_prefix_cache"): self._reset_prefix_cache,
            ("POST", "/init_weight_transfer_engine"): self._init_weights,
            ("POST", "/start_weight_update"): self._start_weights,
            ("POST", "/update_weights"): self._update_weights,
            ("POST", "/finish_weight_update"): self._finish_weights,
            ("POST", "/update_weight_version"): self._label_weights,
            ("POST", "/collective_rpc"): self._rpc,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection's request."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive, send)
        route = self._routes.get((request.method, request.path))
        if route is None:
            known = request.path in self._paths
            detail = "Method Not Allowed" if known else "Not Found"
            await request.answer_json({"detail": detail}, 405 if known else 404)
            return
        await request.read()
        try:
            await route(request)
        except ApiError as error:
            await request.answer_json(error.body, error.status)
        except EngineDeadError:
            ended = errors.dead()
            await request.answer_json(ended.body, ended.status)
        except EngineFaultError as fault:
            told = errors.failed(f"Call to collective_rpc method failed: {fault}")
            await request.answer_json(told.body, told.status)
            raise BrokenConnectionError from fault  # vLLM's server closes the connection after such an answer

    # -- what is known ------------------------------------------------------------------------------------------

    @staticmethod
    def _say(body: Callable[[], Any]) -> Callable[[Request], Awaitable[None]]:
        async def answer(request: Request) -> None:
            await request.answer_json(body())

        return answer

    def _text(self, service: Callable[[dict[str, Any]], Any]) -> Callable[[Request], Awaitable[None]]:
        async def answer(request: Request) -> None:
            body = asked.parse_json(request.content)
            asked.check_model(body, self._config)
            await request.answer_json(service(body))

        return answer

    async def _health(self, request: Request) -> None:
        await request.answer(b"", 503 if self._engine.dead else 200, None)

    async def _metrics(self, request: Request) -> None:
        await request.answer(self._engine.metrics.render(), kind="text/plain; version=1.0.0; charset=utf-8")

    def _models(self) -> dict[str, Any]:
        permission = {
            "id": f"modelperm-{self._new_id()}",
            "object": "model_permission",
            "created": self._started,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        model = {
            "id": self._config.model,
            "object": "model",
            "created": self._started,
            "owned_by": "vllm",
            "root": self._config.model,
            "parent": None,
            "max_model_len": self._config.max_model_len,
            "permission": [permission],
        }
        return {"object": "list", "data": [model]}

    # -- requests inside ----------------------------------------------------------------------------------------

    async def _abort(self, request: Request) -> None:
        names = _request_ids(request)
        count = self._engine.abort(names or None)
        await request.answer_json({"status": "aborted", "aborted": len(names) if names else count})

    async def _abort_quietly(self, request: Request) -> None:
        names = _request_ids(request)
        if names is None:
            raise ApiError("Missing 'request_ids' in request body", kind="Bad Request")
        self._engine.abort(names)
        await request.answer(b"", kind=None)

    async def _pause(self, request: Request) -> None:
        mode = _choice(request, "mode", "abort")
        await self._engine.pause(mode, clear_cache=(request.query("clear_cache") or ["true"])[-1] != "false")
        await request.answer_json({"status": "paused"})

    async def _resume(self, request: Request) -> None:
        self._engine.resume()
        await request.answer_json({"status": "resumed"})

    async def _sleep(self, request: Request) -> None:
        level = _level((request.query("level") or ["1"])[-1])
        began = self._engine.clock.now()
        await self._engine.sleep(level, _choice(request, "mode", "abort"))
        self._engine.metrics.operation("sleep_mode", "sleep", self._engine.clock.now() - began)
        await request.answer_json({"status": "sleeping", "level": level})

    async def _wake_up(self, request: Request) -> None:
        tags = request.query("tags") or None
        awake = self._engine.wake(tags)
        self._engine.metrics.operation("sleep_mode", "wake", 0.0)
        await request.answer_json({"status": "awake" if awake else "sleeping", "tags": tags})

    async def _reset_prefix_cache(self, request: Request) -> None:
        await request.answer_json({"success": self._engine.reset_prefix_cache()})

    # -- weights ------------------------------------------------------------------------------------------------

    def _weights(self) -> Weights:
        self._engine.check_alive()
        return self._engine.weights

    async def _init_weights(self, request: Request) -> None:
        _field(request, "init_info")
        self._weights().init()
        await self._weights_done(request, "init", "Weight transfer initialized")

    async def _start_weights(self, request: Request) -> None:
        self._weights().start()
        await self._weights_done(request, "start", "Weight update started")

    async def _update_weights(self, request: Request) -> None:
        self._weights().load(_field(request, "update_info"))
        await self._weights_done(request, "update", "Weights updated")

    async def _finish_weights(self, request: Request) -> None:
        body = asked.parse_json(request.content) if request.content else {}
        self._weights().finish(body.get("weight_version"))
        await self._weights_done(request, "finish", "Weight update finished")

    async def _weights_done(self, request: Request, operation: str, message: str) -> None:
        self._engine.metrics.operation("rl_weight_update", operation, 0.0)
        await request.answer_json({"message": message})

    async def _label_weights(self, request: Request) -> None:
        version = _field(request, "new_version")
        self._weights().version = version
        await request.answer_json({"success": True, "new_version": version})

    async def _rpc(self, request: Request) -> NoReturn:
        raise EngineFaultError(f"Method '{_field(request, 'method')}' is not implemented.")


def _field(request: Request, name: str) -> Any:
    body = asked.parse_json(request.content) if request.content else {}
    if not body or name not in body:
        raise errors.missing(f"body.{name}", None)
    return body[name]


def _choice(request: Request, name: str, default: str) -> str:
    mode = (request.query(name) or [default])[-1]
    if mode not in _PAUSE_MODES:
        shown = "'abort', 'wait' or 'keep'"
        raise errors.invalid(f"query.{name}", "literal_error", f"Input should be {shown}", mode, expected=shown)
    return mode


def _level(given: str) -> int:
    where = "query.level"
    if not given.lstrip("-").isdigit():
        message = "Input should be a valid integer, unable to parse string as an integer"
        raise errors.invalid(where, "int_parsing", message, given)
    level = int(given)
    if level < 0:
        raise errors.invalid(where, "greater_than_equal", "Input should be greater than or equal to 0", given, ge=0)
    if level > _DEEPEST_SLEEP:
        message = f"Input should be less than or equal to {_DEEPEST_SLEEP}"
        raise errors.invalid(where, "less_than_equal", message, given, le=_DEEPEST_SLEEP)
    return level


def _request_ids(request: Request) -> list[str] | None:
    try:
        body = json.loads(request.content)
    except ValueError:
        raise ApiError("Invalid JSON format", kind="Bad Request") from None
    if not isinstance(body, dict):
        raise ApiError("Request body must be a JSON object", kind="Bad Request")
    return body.get("request_ids")
