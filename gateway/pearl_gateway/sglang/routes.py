"""The paths that training loops expect of an external SGLang engine. `docs/integrations/slime.md` lists them."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from pearl_gateway.asgi import CLIENT_LEFT, error_response, json_body, json_response, while_connected
from pearl_gateway.errors import try_later
from pearl_gateway.identity import read_identity
from pearl_gateway.sglang import info
from pearl_gateway.sglang.generate import generate_answer, read_generate
from pearl_gateway.sglang.running import Here, Running, first_of
from pearl_gateway.sglang.weights import PULLED, from_disk, newest_served

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from pearl_gateway.gateway import Gateway
    from pearl_gateway.inference import Inference
    from pearl_gateway.sglang.running import Everywhere
    from pearl_gateway.turn_state import Turn

    Handler = Callable[[Request], Awaitable[Response]]

SESSION = "X-SMG-Routing-Key"
"""The session of a sample, as clients of SGLang's router send it; here it names the trajectory."""
_PUSHES = (
    "/update_weights_from_tensor",
    "/update_weights_from_distributed",
    "/update_weights_from_ipc",
    "/init_weights_update_group",
    "/destroy_weights_update_group",
    "/release_memory_occupation",
    "/resume_memory_occupation",
)


def sglang_routes(
    gateway: Gateway,
    inference: Inference,
    client: Callable[[Handler], Handler],
    work: Callable[[Handler], Handler],
    running: Everywhere | None = None,
) -> list[Route]:
    """Routes of one gateway.

    Args:
        gateway: What answers.
        inference: Its token path.
        client: Guards a handler with the client token.
        work: The same of a handler that asks for tokens.
        running: Requests under way; None = this process's.
    """
    api = _Sglang(gateway, inference, running or Here(Running(gateway.clock)))
    get = {
        ("/server_info", "/get_server_info"): api.server_info,
        ("/model_info", "/get_model_info"): api.model_info,
        ("/get_weight_version", "/weight_version"): api.weight_version,
        ("/v1/loads", "/get_load"): api.loads,
        ("/workers",): api.workers,
        ("/flush_cache",): api.flush_cache,
    }
    post = {
        ("/abort_request",): api.abort_request,
        ("/pause_generation",): api.pause,
        ("/continue_generation",): api.go_on,
        ("/flush_cache",): api.flush_cache,
        ("/workers",): api.add_worker,
        ("/update_weights_from_disk",): api.update_from_disk,
        _PUSHES: api.refuse_push,
    }
    routes = [Route(path, client(handler), methods=["GET"]) for paths, handler in get.items() for path in paths]
    routes += [Route(path, client(handler), methods=["POST"]) for paths, handler in post.items() for path in paths]
    routes.append(Route("/generate", work(api.generate), methods=["POST"]))
    return [*routes, Route("/health_generate", api.health_generate, methods=["GET"])]


class _Sglang:
    """Handlers; errors are as of OpenAI clients, which SGLang's clients read too."""

    def __init__(self, gateway: Gateway, inference: Inference, everywhere: Everywhere) -> None:
        self._gateway = gateway
        self._inference = inference
        self._everywhere = everywhere
        self._running = everywhere.here

    async def generate(self, request: Request) -> Response:
        body = await json_body(request)
        answer = await while_connected(request, self._generate(request, body))
        return Response(status_code=CLIENT_LEFT) if answer is None else json_response(answer)

    async def _generate(self, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        session = request.headers.get(SESSION)
        if session:
            body["pearl"] = {"trajectory": session, **(body.get("pearl") or {})}
        identity = read_identity(request.scope["headers"], body)
        self._inference.check_model(body)
        rendered = await read_generate(body, self._gateway.text)
        with self._running.under(str(body.get("rid") or identity.trajectory or self._gateway.new_id())) as stop:
            if not await self._running.admitted(stop):
                return _aborted_unstarted(body, len(rendered.prompt))
            turn = self._inference.open_turn(identity, rendered)
            await self._answer(turn, stop)
            return await generate_answer(body, turn, self._gateway.text)

    async def _answer(self, turn: Turn, stop: asyncio.Event) -> None:
        if not await first_of(self._gateway.sessions.answer(turn), stop):
            await turn.stopped()

    async def abort_request(self, request: Request) -> Response:
        body = await json_body(request)
        rid = None if body.get("abort_all") else str(body.get("rid") or "")
        if rid == "":
            return _said("send `rid`, or `abort_all`: true", success=False)
        return _said(f"{await self._everywhere.abort(rid)} requests aborted", success=True)

    async def pause(self, request: Request) -> Response:
        mode = (await _optional_body(request)).get("mode", "abort")
        await self._everywhere.pause(abort=mode == "abort")
        return _said("new requests wait for /continue_generation", success=True)

    async def go_on(self, _request: Request) -> Response:
        await self._everywhere.go_on()
        return _said("generation goes on", success=True)

    async def flush_cache(self, _request: Request) -> Response:
        return PlainTextResponse("nothing to flush: cached prefixes carry the version of the weights\n")

    async def server_info(self, request: Request) -> Response:
        return json_response(info.server_info(request, self._gateway))

    async def model_info(self, _request: Request) -> Response:
        return json_response(info.model_info(self._gateway))

    async def weight_version(self, _request: Request) -> Response:
        return json_response({"weight_version": newest_served(self._gateway)})

    async def loads(self, _request: Request) -> Response:
        return json_response(info.loads(await self._everywhere.count()))

    async def workers(self, request: Request) -> Response:
        return json_response(info.workers(request))

    async def add_worker(self, request: Request) -> Response:
        url = str((await json_body(request)).get("url", ""))
        if url.rstrip("/").endswith(f"//{request.url.netloc}"):
            return json_response({"status": "accepted", "worker_id": url}, HTTPStatus.ACCEPTED)
        return _said("workers of this rollout are the operator's: change the PearlRollout's capacity", success=False)

    async def update_from_disk(self, request: Request) -> Response:
        body = await json_body(request)
        answer = await while_connected(request, from_disk(body, self._gateway))
        if answer is None:
            return Response(status_code=CLIENT_LEFT)
        return _said(answer[1], success=answer[0])

    async def refuse_push(self, _request: Request) -> Response:
        return _said(PULLED, success=False)

    async def health_generate(self, _request: Request) -> Response:
        if self._gateway.fleet.candidates():
            return PlainTextResponse("ok\n")
        return error_response(try_later("NoWorker", "no worker is ready", 2.0))


def _said(message: str, *, success: bool) -> Response:
    """SGLang's own shape of such answers."""
    return json_response({"success": success, "message": message}, HTTPStatus.OK if success else HTTPStatus.BAD_REQUEST)


def _aborted_unstarted(body: dict[str, Any], prompt_tokens: int) -> dict[str, Any]:
    finish = {"type": "abort", "message": "aborted on request before it began"}
    meta: dict[str, Any] = {
        "id": body.get("rid"),
        "finish_reason": finish,
        "prompt_tokens": prompt_tokens,
        "completion_tokens": 0,
    }
    if body.get("return_logprob"):
        meta["output_token_logprobs"] = []
    return {"text": "", "output_ids": [], "meta_info": meta}


async def _optional_body(request: Request) -> dict[str, Any]:
    return await json_body(request) if await request.body() else {}
