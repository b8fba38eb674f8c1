"""Two real engines with an open gate, and a gateway before them, all on loopback."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
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

from pearl_api.names import Activity, Role
from pearl_gateway.app import create_app
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
MODEL = "tiny"
START_SECONDS = 300.0


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@dataclass
class RealEngine:
    """One `vllm serve` in a process group of its own."""

    name: str
    log: Path
    tokens: Path
    url: str = ""
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = ensure_engine_environment(ROOT, cache_directory(os.environ))
        settings = WorkerSettings(
            model=str(ensure_model(MODEL, ROOT, cache_directory(os.environ))),
            model_name=MODEL,
            device=Device.CPU,
            max_model_len=2048,
            engine_args=("--kv-cache-memory-bytes", str(64 << 20)),
            engine_python=str(environment / "bin" / "python"),
            tokens_directory=self.tokens,
            engine_port=free_port(),
            nixl_port=free_port(),
        )
        command = engine_command(settings, os.environ, "admin")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command.argv,
                env={**command.environment, "PEARL_GATE": "open"},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.url = f"http://127.0.0.1:{settings.engine_port}"

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
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def ask(self, path: str, body: dict[str, Any] | None = None, token: str = "engine") -> httpx.Response:  # noqa: S107
        """The engine itself, past the gateway."""
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.post(self.url + path, json=body, headers=headers, timeout=60)

    async def load(self, model: str, version: int) -> None:
        """New weights, as the worker agent brings them in: abort, load, label, go on."""
        folder = ensure_model(model, ROOT, cache_directory(os.environ))
        async with aiohttp.ClientSession() as session:
            engine = HttpEngineClient(session, self.url, MODEL, "admin")
            await engine.prepare_weight_updates()
            await engine.pause("abort")
            await engine.start_weight_update()
            await engine.load_weight_files([folder / "model.safetensors"])
            await engine.finish_weight_update(version)
            assert await engine.reset_prefix_cache()
            await engine.resume()

    def answer(self, prompt: list[int], count: int) -> list[int]:
        """Its own greedy answer, undisturbed."""
        sampling = {"max_tokens": count, "temperature": 0.0, "ignore_eos": True}
        response = self.ask("/inference/v1/generate", {"token_ids": prompt, "sampling_params": sampling})
        found: list[int] = response.json()["choices"][0]["token_ids"]
        return found


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RealEngine]]:
    folder = tmp_path_factory.mktemp("engines")
    (folder / "engine").write_text("engine\n")
    pair = [RealEngine(name, folder / f"{name}.log", folder) for name in ("a", "b")]
    say("contract tests: starting two engines")
    try:
        for one in pair:
            one.start()
        for one in pair:
            one.wait()
        yield pair
    finally:
        for one in pair:
            one.kill()


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
    server = uvicorn.Server(uvicorn.Config(create_app(gateway), host="127.0.0.1", port=port, log_level="warning"))
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn tells nobody
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task


@pytest.fixture
async def real(engines: list[RealEngine]) -> AsyncIterator[RealBench]:
    limits = Limits(max_model_len=2048, queue_seconds=60)
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
            bench.place(Role.COLOCATED, Role.COLOCATED)
            yield bench
            await gateway.close()
