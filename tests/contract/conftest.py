"""Two engines, real (with an open gate) or emulated, and a gateway before them, all on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import httpx
import pytest
import uvicorn
from ports import free_port

from pearl_api.names import Activity, Role
from pearl_gateway.app import create_app
from pearl_gateway.connections import server_config
from pearl_gateway.fleet import WorkerFacts
from pearl_gateway.gateway import Gateway
from pearl_gateway.settings import Limits, Settings, Tokens
from pearl_worker.cache import say
from pearl_worker.engine_command import engine_command
from pearl_worker.engine_env import ensure_engine_environment
from pearl_worker.engine_http import HttpEngineClient
from pearl_worker.models import ensure_model
from pearl_worker.settings import Device, cache_directory
from pearl_worker.settings import Settings as WorkerSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = ROOT / "tests" / "support"
MODEL = "tiny"
START_SECONDS = 300.0


def one_request_per_connection() -> httpx.Client:
    # vLLM closes connections after some answers, and a kept one would then fail the next request.
    return httpx.Client(timeout=60, limits=httpx.Limits(max_keepalive_connections=0))


@dataclass
class RealEngine:
    """One `vllm serve` in a process group of its own."""

    name: str
    log: Path
    tokens: Path
    url: str = ""
    model: Path | None = None
    """Directory of another model than the tests' usual one."""
    arguments: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    client: httpx.Client = field(default_factory=one_request_per_connection)

    def start(self) -> None:
        environment = ensure_engine_environment(ROOT, cache_directory(os.environ))
        settings = WorkerSettings(
            model=str(self.model or ensure_model(MODEL, ROOT, cache_directory(os.environ))),
            model_name=MODEL,
            device=Device.CPU,
            max_model_len=2048,
            lease_seconds=5.0,
            engine_args=("--kv-cache-memory-bytes", str(64 << 20), *self.arguments),
            engine_python=str(environment / "bin" / "python"),
            tokens_directory=self.tokens,
            engine_port=free_port(),
            nixl_port=free_port(),
        )
        command = engine_command(settings, os.environ, "admin")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command.argv,
                env={**command.environment, "PEARL_GATE": "open", "PYTHONPATH": str(PLUGINS)},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.url = f"http://127.0.0.1:{settings.engine_port}"

    def weights(self, model: str) -> Path:
        """A file that holds the model's weights."""
        return ensure_model(model, ROOT, cache_directory(os.environ)) / "model.safetensors"

    def wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self.process is not None
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            try:
                if httpx.get(self.url + "/health", timeout=2).status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.2)
        raise AssertionError(f"engine {self.name} did not start: {self.log.read_text()[-3000:]}")

    def kill(self) -> None:
        """`kill -9`, children too."""
        self.client.close()
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def ask(self, path: str, body: dict[str, Any] | None = None, token: str = "engine") -> httpx.Response:  # noqa: S107
        """The engine itself, past the gateway."""
        headers = {"Authorization": f"Bearer {token}"}
        return self.client.post(self.url + path, json=body, headers=headers)

    def call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> httpx.Response:
        """Any request, with every right; `bytes` are sent as they are."""
        head = {"Authorization": "Bearer admin", "Content-Type": "application/json", **(headers or {})}
        content = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        return self.client.request(method, self.url + path, content=content, headers=head)

    async def load(self, model: str, version: int) -> None:
        """New weights, as the worker agent brings them in: abort, load, label, go on."""
        file = self.weights(model)
        async with aiohttp.ClientSession() as session:
            engine = HttpEngineClient(session, self.url, MODEL, "admin")
            await engine.prepare_weight_updates()
            await engine.pause("abort")
            await engine.start_weight_update()
            await engine.load_weight_files([file])
            await engine.finish_weight_update(version)
            assert await engine.reset_prefix_cache()
            await engine.resume()

    def answer(self, prompt: list[int], count: int) -> list[int]:
        """Its own greedy answer, undisturbed."""
        sampling = {"max_tokens": count, "temperature": 0.0, "ignore_eos": True}
        response = self.ask("/inference/v1/generate", {"token_ids": prompt, "sampling_params": sampling})
        found: list[int] = response.json()["choices"][0]["token_ids"]
        return found


class EmulatedEngine(RealEngine):
    """The emulator in a process of its own; steps last as long as those of the real one."""

    def start(self) -> None:
        port = free_port()
        command = [sys.executable, "-m", "pearl_simulator.emulator", "--port", str(port), "--table", "tiny/cpu"]
        # As the real one is started, so that the answers can be compared.
        limits = ["--max-model-len", "2048", "--max-num-seqs", "16", "--max-num-batched-tokens", "2048"]
        room = ["--block-size", "32", "--kv-tokens", "65504", "--kv-lease-seconds", "6", "--speed", "2"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, *limits, *room], stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        self.url = f"http://127.0.0.1:{port}"

    def weights(self, model: str) -> Path:
        # It checks that the file is there and goes by the version's number.
        file = self.tokens / f"{model}.safetensors"
        file.write_bytes(b"")
        return file


def _pair(kind: type[RealEngine], folder: Path) -> Iterator[list[RealEngine]]:
    (folder / "engine").write_text("engine\n")
    pair = [kind(name, folder / f"{name}.log", folder) for name in ("a", "b")]
    say(f"contract tests: starting two engines ({kind.__name__})")
    try:
        for one in pair:
            one.start()
        for one in pair:
            one.wait()
        yield pair
    finally:
        for one in pair:
            one.kill()


@pytest.fixture(scope="session")
def vllm_engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RealEngine]]:
    yield from _pair(RealEngine, tmp_path_factory.mktemp("vllm"))


@pytest.fixture(scope="session")
def emulated_engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RealEngine]]:
    yield from _pair(EmulatedEngine, tmp_path_factory.mktemp("emulated"))


KINDS = [pytest.param("vllm", marks=pytest.mark.engine), pytest.param("emulated")]


@pytest.fixture(scope="session", params=KINDS)
def engines(request: pytest.FixtureRequest) -> list[RealEngine]:
    """Two engines of one kind: every test runs with both."""
    pair: list[RealEngine] = request.getfixturevalue(f"{request.param}_engines")
    return pair


@dataclass
class RealBench:
    """A gateway as a real HTTP server, with real engines behind it."""

    gateway: Gateway
    client: httpx.AsyncClient
    engines: list[RealEngine]
    numbers: Iterator[int] = field(default_factory=lambda: iter(range(10_000)))

    def place(self, *roles: Role) -> None:
        for engine, role in zip(self.engines, roles, strict=True):
            self.gateway.fleet.upsert(
                WorkerFacts(
                    uid=engine.name,
                    pod=f"pod-{engine.name}",
                    url=engine.url,
                    agent_url=None,
                    role=role,
                    role_epoch=next(self.numbers),
                    activity=Activity.ACTIVE,
                    ready=True,
                )
            )

    async def generate(self, prompt: list[int], count: int, **more: Any) -> httpx.Response:
        sampling = {"max_tokens": count, "temperature": 0.0, "ignore_eos": True}
        headers = {"X-Pearl-Trajectory": f"t{next(self.numbers)}", **more.pop("headers", {})}
        body = {"token_ids": prompt, "sampling_params": sampling, **more}
        response = await self.client.post("/inference/v1/generate", json=body, headers=headers)
        assert response.status_code == 200, response.text
        return response

    async def received(self, trajectory: str, count: int) -> None:
        """Wait until its running turn has more than `count` tokens."""
        async with asyncio.timeout(60):
            while True:
                known = self.gateway.sessions.live.get(trajectory)
                if known is not None and any(len(turn.token_ids) > count for turn in known.turns.values()):
                    return
                await asyncio.sleep(0.005)

    async def counters(self) -> dict[str, int]:
        found: dict[str, int] = (await self.client.get("/v1/stats")).json()["counters"]
        return found


@asynccontextmanager
async def served(gateway: Gateway) -> AsyncIterator[str]:
    port = free_port()
    config = server_config(create_app(gateway), gateway.settings.limits, host="127.0.0.1", port=port)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn tells nobody
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task


@asynccontextmanager
async def bench_of(engines: list[RealEngine]) -> AsyncIterator[RealBench]:
    limits = Limits(max_model_len=2048, queue_seconds=60, kv_lease_seconds=5)
    settings = Settings(
        rollout="r", tokens=Tokens(client="client", engine="engine"), limits=limits, model=MODEL, local_append_tokens=0
    )
    async with aiohttp.ClientSession() as session:
        gateway = Gateway(
            settings=settings, session=session, clock=time.monotonic, wall=time.time, new_id=lambda: uuid.uuid4().hex
        )
        headers = {"Authorization": "Bearer client"}
        async with (
            served(gateway) as url,
            httpx.AsyncClient(base_url=url, headers=headers, timeout=120) as client,
        ):
            bench = RealBench(gateway, client, engines)
            bench.place(*[Role.COLOCATED for _ in engines])
            yield bench
            await gateway.close()


@pytest.fixture
async def real(engines: list[RealEngine]) -> AsyncIterator[RealBench]:
    async with bench_of(engines) as bench:
        yield bench


PARSERS = (
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"),
    *("--logits-processors", "scripted_logits:Scripted"),
)


@pytest.fixture(scope="module")
def parsing_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealEngine]:
    """Real vLLM with a tool parser and a reasoning parser, of a model that says what `vllm_xargs.say` is."""
    folder = tmp_path_factory.mktemp("parsing")
    (folder / "engine").write_text("engine\n")
    python = ensure_engine_environment(ROOT, cache_directory(os.environ)) / "bin" / "python"
    source = ensure_model(MODEL, ROOT, cache_directory(os.environ))
    subprocess.run([python, PLUGINS / "thinking_model.py", source, folder / "model"], check=True)
    engine = RealEngine("a", folder / "a.log", folder, model=folder / "model", arguments=PARSERS)
    say("contract tests: starting an engine with parsers")
    try:
        engine.start()
        engine.wait()
        yield engine
    finally:
        engine.kill()


@pytest.fixture
async def parsed(parsing_engine: RealEngine) -> AsyncIterator[RealBench]:
    """A gateway before the engine with parsers."""
    async with bench_of([parsing_engine]) as bench:
        yield bench
