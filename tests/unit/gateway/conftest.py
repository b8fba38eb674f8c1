"""An engine in this process, over loopback: vLLM's wire, and tokens that depend only on what precedes them."""

import asyncio
import json
import socket
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
import uvicorn
from aiohttp import web

from pearl_api.names import Activity, Role
from pearl_gateway.app import create_app
from pearl_gateway.connections import listener, server_config
from pearl_gateway.fleet import WorkerFacts
from pearl_gateway.gateway import Gateway
from pearl_gateway.settings import Limits, Settings, Tokens
from pearl_gateway.storage import Storage

EOS = 2
LIMITS = Limits(queue_seconds=5.0, handoff_seconds=1.0, stall_seconds=5.0, prefill_seconds=5.0, max_model_len=2048)
ROLES = {"system": 900, "user": 901, "assistant": 902, "tool": 903}


def next_token(context: list[int], version: int = 0) -> int:
    """The token a fake engine continues with: printable ASCII, a function of everything before and the weights."""
    return 97 + zlib.crc32(repr((context, version)).encode()) % 26


def continuation(prompt: list[int], count: int, version: int = 0) -> list[int]:
    """What an undisturbed engine answers."""
    context = list(prompt)
    for _ in range(count):
        context.append(next_token(context, version))
    return context[len(prompt) :]


def logprob(token: int) -> float:
    return -token / 100


def text_of(ids: list[int]) -> str:
    return "".join(chr(one) for one in ids if 32 <= one < 900)


def render_chat(messages: list[dict[str, Any]], *, add_generation_prompt: bool) -> list[int]:
    """Template: role, content, EOS, newline; then the assistant's role where it shall answer."""
    ids: list[int] = []
    for message in messages:
        ids += [ROLES[message["role"]], *map(ord, message.get("content") or ""), EOS, 10]
    return [*ids, ROLES["assistant"]] if add_generation_prompt else ids


@dataclass
class FakeEngine:
    """One engine; the switches say how it misbehaves next."""

    kv: dict[str, list[int]]
    """KV that waits for other engines, shared by all of a test: id → prompt."""
    name: str = "a"
    version: int = 0
    url: str = ""
    stop_after: int | None = None
    """Kill the whole server after this many tokens of a stream."""
    abort_after: int | None = None
    version_after_abort: int = 0
    version_after_fetch: int | None = None
    """Gets these weights after it has accepted KV of another engine and before the first token."""
    stall_after: int | None = None
    refuse: bool = False
    broken: bool = False
    breaks_off: bool = False
    """Streams begin with an error event, as those of vLLM do that fails on a request when it has begun."""
    mute: bool = False
    gate_closed: bool = False
    deaf: bool = False
    """Waits for KV of other engines that never arrives."""
    slow: asyncio.Event | None = None
    """Answers that are not streamed wait for it."""
    text_late: asyncio.Event | None = None
    """Text of tokens waits for it, from its first generation on."""
    end_late: asyncio.Event | None = None
    """The mark behind the last event of a stream waits for it."""
    experts: str | None = None
    hang_up: int = 0
    """Break so many connections before any answer."""
    tells: bool = False
    """Says its version and its seconds at the start of an answer, as PEARL's guard does."""
    answer_late: float = 0.0
    """Seconds that a prefill's answer is on the way."""
    guarded: bool = True
    """Refuses requests that do not accept its weights, as PEARL's guard does."""
    merges: bool = False
    """Rendering a text gives other ids than generating it: pairs of letters are one token, as real tokenizers do."""
    tokens_per_chunk: int = 1
    pause: float = 0.0
    requests: list[dict[str, Any]] = field(default_factory=list)
    fetched: int = 0
    unwanted: int = 0
    left: asyncio.Event = field(default_factory=asyncio.Event)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    runner: web.AppRunner | None = None

    async def start(self, port: int = 0) -> "FakeEngine":
        app = web.Application()
        app.router.add_post("/inference/v1/generate", self.generate)
        app.router.add_post("/v1/completions/render", self.render_completion)
        app.router.add_post("/v1/chat/completions/render", self.render_chat)
        app.router.add_post("/v1/completions/derender", self.derender)
        app.router.add_post("/v1/chat/completions/derender", self.derender)
        app.router.add_get("/health", self.health)
        self.runner = web.AppRunner(app, shutdown_timeout=0.0, handler_cancellation=True)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", port)
        await site.start()
        host, port = self.runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def stop(self) -> None:
        if self.runner is not None:
            self.release.set()
            runner, self.runner = self.runner, None
            await runner.cleanup()

    async def health(self, _request: web.Request) -> web.Response:
        return web.Response(status=503 if self.mute else 200)

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        if self.hang_up:
            self.hang_up -= 1
            assert request.transport is not None
            request.transport.abort()
        if self.refuse:
            return web.json_response(
                {"error": {"message": "bad token", "type": "BadRequestError", "code": 400}}, status=400
            )
        if self.broken:
            return web.Response(status=500)
        if self.gate_closed:
            return web.json_response({"error": {"message": "closed"}}, status=503, headers={"x-pearl-gate": "closed"})
        least, most = (request.headers.get(f"X-Pearl-{end}-Weights", self.version) for end in ("Min", "Max"))
        if self.guarded and not int(least) <= self.version <= int(most):
            self.unwanted += 1
            headers = {"x-pearl-gate": "closed", "x-pearl-weights": str(self.version)}
            return web.json_response({"error": {"message": "other weights"}}, status=503, headers=headers)
        kv = body.get("kv_transfer_params")
        if kv and kv.get("do_remote_prefill"):
            if self.deaf:
                await self.release.wait()
            assert self.kv.pop(kv["remote_request_id"]) == body["token_ids"], "KV of another prompt"
            self.fetched += 1
            if self.version_after_fetch is not None:
                self.version, self.version_after_fetch = self.version_after_fetch, None
        return await (self._stream(request, body) if body.get("stream") else self._whole(body, kv))

    async def _whole(self, body: dict[str, Any], kv: dict[str, Any] | None) -> web.Response:
        if self.slow is not None:
            await self.slow.wait()
        params = None
        if kv and kv.get("do_remote_decode"):
            name = f"{self.name}-{len(self.requests)}"
            self.kv[name] = body["token_ids"]
            params = {"do_remote_prefill": True, "do_remote_decode": False, "remote_request_id": name}
        tokens = continuation(body["token_ids"], body["sampling_params"]["max_tokens"], self.version)
        choice = {
            "index": 0,
            "token_ids": tokens,
            "finish_reason": "length",
            "weight_versions": self._spans(len(tokens)),
        }
        await asyncio.sleep(self.answer_late)
        told = {"X-Pearl-Seconds": "0.001"} if self.tells else {}
        return web.json_response({"choices": [choice], "kv_transfer_params": params}, headers=told)

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        told = {"X-Pearl-Weights": str(self.version)} if self.tells else {}
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **told})
        await response.prepare(request)
        sampling = body["sampling_params"]
        context, done = list(body["token_ids"]), 0
        stops = sampling.get("stop") or []
        if self.breaks_off:
            await response.write(b'data: {"error": {"message": "no token is left", "code": 500}}\n\n')
            return response
        try:
            while True:
                if done == self.stop_after:
                    assert request.transport is not None
                    request.transport.abort()
                    task = asyncio.get_running_loop().create_task(self.stop())
                    await asyncio.sleep(3600)
                    await task
                if done == self.abort_after:
                    self.abort_after = None
                    await self._send(response, body, [], done, "abort")
                    self.version = self.version_after_abort
                    break
                if done == self.stall_after:
                    await self.release.wait()
                count = min(self.tokens_per_chunk, sampling["max_tokens"] - done)
                new = continuation(context, count, self.version)
                context += new
                done += count
                text = text_of(context[len(body["token_ids"]) :])
                stop = next((one for one in stops if one in text), None)
                finish = "stop" if stop else "length" if done >= sampling["max_tokens"] else None
                await self._send(response, body, new, done, finish, stop)
                if finish:
                    break
                await asyncio.sleep(self.pause)
            if self.end_late is not None:
                await self.end_late.wait()
            await response.write(b"data: [DONE]\n\n")
        except (ConnectionError, asyncio.CancelledError):
            self.left.set()
            raise
        return response

    async def _send(  # noqa: PLR0913, PLR0917 - one event of the stream
        self,
        response: web.StreamResponse,
        body: dict[str, Any],
        new: list[int],
        done: int,
        finish: str | None,
        stop: str | None = None,
    ) -> None:
        entries = [{"token_id": one, "logprob": logprob(one), "rank": 1, "top_logprobs": []} for one in new]
        choice = {
            "index": 0,
            "token_ids": new,
            "finish_reason": finish,
            "stop_reason": stop,
            "weight_versions": self._spans(done) if finish else None,
            "routed_experts": self.experts if finish else None,
            "logprobs": {"content": entries} if body["sampling_params"].get("logprobs") is not None else None,
        }
        await response.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")

    def _spans(self, end: int) -> list[dict[str, Any]]:
        label = str(self.version) if self.version else "default"
        return [{"version": label, "start": 0, "end": end}] if end else []

    async def render_completion(self, request: web.Request) -> web.Response:
        body = await request.json()
        prompt = body["prompt"]
        ids = self._merged([ord(one) for one in prompt]) if isinstance(prompt, str) else prompt
        return web.json_response([{"token_ids": ids, "sampling_params": self._sampling(body)}])

    async def render_chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self.broken:
            return web.Response(status=500, text="template failed")
        ids = self._merged(render_chat(body["messages"], add_generation_prompt=body.get("add_generation_prompt", True)))
        return web.json_response({"token_ids": ids, "sampling_params": self._sampling(body)})

    def _merged(self, ids: list[int]) -> list[int]:
        if not self.merges:
            return ids
        merged: list[int] = []
        for one in ids:
            if merged and 97 <= one < 123 and 97 <= merged[-1] < 123:
                merged[-1] = 10_000 + 100 * (merged[-1] - 97) + one - 97
            else:
                merged.append(one)
        return merged

    @staticmethod
    def _sampling(body: dict[str, Any]) -> dict[str, Any]:
        names = ("max_tokens", "temperature", "stop", "seed", "logprobs", "min_tokens")
        return {name: body[name] for name in names if body.get(name) is not None}

    async def derender(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self.text_late is not None and self.requests:
            await self.text_late.wait()
        chat = request.path.startswith("/v1/chat")
        if body.get("stream"):
            source = body["generate_chunk"]
        else:
            source = body["generate_response"] if chat else body["generate_responses"][0]
        choice = source["choices"][0]
        text = text_of(choice["token_ids"])
        out = {"index": 0, "finish_reason": choice.get("finish_reason"), "stop_reason": choice.get("stop_reason")}
        if not chat:
            out["text"] = text
        elif body.get("stream"):
            out["delta"] = {"content": text}
        else:
            out["message"] = {"role": "assistant", "content": text}
        answer = {"id": "x", "choices": [out]}
        if body.get("stream"):
            assert body["stream_state"] in (None, {"carried": True})
            return web.json_response({"chunk": answer, "stream_state": {"carried": True}})
        return web.json_response(answer)


class Bench:
    """A gateway with fake engines behind it and a client before it."""

    continuation = staticmethod(continuation)
    logprob = staticmethod(logprob)
    text_of = staticmethod(text_of)
    render_chat = staticmethod(render_chat)

    def __init__(self, gateway: Gateway, client: httpx.AsyncClient) -> None:
        self.gateway = gateway
        self.client = client
        self.engines: list[FakeEngine] = []
        self.kv: dict[str, list[int]] = {}
        self.server: uvicorn.Server | None = None
        """While `served`."""

    async def engine(self, role: Role = Role.COLOCATED, **switches: Any) -> FakeEngine:
        engine = await FakeEngine(kv=self.kv, name="abcdefgh"[len(self.engines)], **switches).start()
        self.engines.append(engine)
        self.place(engine, role)
        return engine

    def place(  # noqa: PLR0913 - a worker's facts
        self,
        engine: FakeEngine,
        role: Role = Role.COLOCATED,
        epoch: int = 0,
        activity: Activity = Activity.ACTIVE,
        *,
        ready: bool = True,
        agent: str | None = None,
    ) -> None:
        self.gateway.fleet.upsert(
            WorkerFacts(
                uid=engine.name,
                pod=f"pod-{engine.name}",
                url=engine.url,
                agent_url=agent,
                role=role,
                role_epoch=epoch,
                activity=activity,
                ready=ready,
            )
        )

    async def generate(
        self, prompt: list[int], count: int, trajectory: str | None = "t1", turn: int | None = None, **more: Any
    ) -> httpx.Response:
        headers = {}
        if trajectory is not None:
            headers["X-Pearl-Trajectory"] = trajectory
        if turn is not None:
            headers["X-Pearl-Turn"] = str(turn)
        headers |= more.pop("headers", {})
        sampling = {"max_tokens": count, "temperature": 0.0, **more.pop("sampling", {})}
        body = {"token_ids": prompt, "sampling_params": sampling, **more}
        return await self.client.post("/inference/v1/generate", json=body, headers=headers)

    @staticmethod
    def tokens(response: httpx.Response) -> list[int]:
        assert response.status_code == 200, response.text
        found: list[int] = response.json()["choices"][0]["token_ids"]
        return found

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something another task brings about."""
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
                await asyncio.sleep(0.005)

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        """The gateway as a real HTTP server."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        config = server_config(create_app(self.gateway), self.gateway.settings.limits, host="127.0.0.1", port=port)
        self.server = server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve([listener(config, self.gateway.settings.limits.client_stall_seconds)]))
        await self.until(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            await task

    def received(self, trajectory: str) -> int:
        """Tokens of its running turns that arrived so far."""
        known = self.gateway.sessions.live.get(trajectory)
        return sum(len(turn.token_ids) for turn in known.turns.values() if not turn.committed) if known else 0

    async def export(self, trajectory: str) -> dict[str, Any]:
        response = await self.client.get(f"/v1/trajectories/{trajectory}")
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    async def stats(self) -> dict[str, Any]:
        response = await self.client.get("/v1/stats")
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found


@asynccontextmanager
async def make_bench(limits: Limits, storage: Storage | None = None, **settings: Any) -> AsyncIterator[Bench]:
    # As in the process: closed before engines close them, or a request would meet the closing end of one.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0)
    async with aiohttp.ClientSession(connector=connector) as session:
        numbers = iter(range(1_000_000))
        gateway = Gateway(
            settings=Settings(rollout="r", tokens=Tokens(client="secret"), limits=limits, **settings),
            session=session,
            clock=time.monotonic,
            wall=time.time,
            new_id=lambda: str(next(numbers)),
            storage=storage,
        )
        transport = httpx.ASGITransport(create_app(gateway))
        headers = {"Authorization": "Bearer secret"}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://gateway", headers=headers, timeout=20
        ) as client:
            bench = Bench(gateway, client)
            try:
                yield bench
            finally:
                await gateway.close()
                for engine in bench.engines:
                    await engine.stop()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """A gateway without workers; deadlines short enough for a test, long enough for a busy machine."""
    async with make_bench(LIMITS, local_append_tokens=4) as made:
        yield made


@pytest.fixture
def lasting(tmp_path: Path) -> Callable[[], AbstractAsyncContextManager[Bench]]:
    """Makes gateways one after the other over the same storage."""

    def make() -> AbstractAsyncContextManager[Bench]:
        return make_bench(LIMITS, Storage(tmp_path, time.monotonic))

    return make


@pytest.fixture
def benches() -> Callable[..., AbstractAsyncContextManager[Bench]]:
    """Makes gateways with other limits or settings."""
    return make_bench


@pytest.fixture
async def engines() -> AsyncIterator[Callable[..., Awaitable[FakeEngine]]]:
    """Makes engines that no gateway knows yet."""
    made: list[FakeEngine] = []
    kv: dict[str, list[int]] = {}

    async def make(**switches: Any) -> FakeEngine:
        engine = await FakeEngine(kv=kv, name="abcdefgh"[len(made)], **switches).start()
        made.append(engine)
        return engine

    yield make
    for engine in made:
        await engine.stop()


@pytest.fixture(name="continuation")
def continuation_of_engines() -> Callable[..., list[int]]:
    """What an undisturbed engine answers."""
    return continuation
