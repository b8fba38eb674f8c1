"""What the programs share that measure real engines on this machine: settings, running engines, the command line."""

import argparse
import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from pearl_worker.cache import say
from pearl_worker.engine import Engine
from pearl_worker.engine_env import ensure_engine_environment
from pearl_worker.engine_process import Reaper
from pearl_worker.launch import http_launcher
from pearl_worker.models import NAMES, ensure_model
from pearl_worker.settings import Device, Settings, cache_directory

ROOT: Final = Path(__file__).resolve().parents[2]
_TOKEN: Final = "bench"  # noqa: S105 - of engines on the loopback that live for one run


@dataclass(frozen=True, slots=True)
class Job:
    """One model to measure."""

    name: str
    model: Path
    environment: Path
    """Of the engine."""
    scratch: Path
    output: Path

    def settings(self, served_name: str, port: int, kv_bytes: int, *arguments: str) -> Settings:
        """An engine on the loopback; `port` + 1 is for its KV transfers."""
        (self.scratch / "engine").write_text(_TOKEN)
        return Settings(
            model=str(self.model),
            model_name=served_name,
            device=Device.CPU,
            max_model_len=2048,
            engine_args=("--kv-cache-memory-bytes", str(kv_bytes), *arguments),
            engine_python=str(self.environment / "bin" / "python"),
            engine_environment=self.environment,
            tokens_directory=self.scratch,
            scratch_directory=self.scratch,
            engine_port=port,
            nixl_port=port + 1,
        )


class Client:
    """Sends token-id prompts to one engine."""

    def __init__(self, session: aiohttp.ClientSession, settings: Settings) -> None:
        self._session = session
        self._model = settings.model_name
        self._url = f"http://127.0.0.1:{settings.engine_port}/inference/v1/generate"

    async def generate(self, prompt: Sequence[int], tokens: int, **extra: Any) -> dict[str, Any]:
        """The engine's answer of exactly `tokens` tokens."""
        sampling = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        body = {"model": self._model, "token_ids": list(prompt), "sampling_params": sampling, **extra}
        async with self._session.post(self._url, json=body, headers={"Authorization": f"Bearer {_TOKEN}"}) as answer:
            answer.raise_for_status()
            result: dict[str, Any] = await answer.json()
            return result


@asynccontextmanager
async def engines(*settings: Settings) -> AsyncIterator[list[Client]]:
    """Engines with open gates that live as long as the block, and a client of each."""
    reaper = Reaper()
    reaper.install(asyncio.get_running_loop())
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        running = [Engine(one, http_launcher(one, reaper, session, os.environ)) for one in settings]
        try:
            for engine in running:
                await engine.start()
                await engine.open()
            yield [Client(session, one) for one in settings]
        finally:
            for engine in running:
                await engine.kill()


def for_each_model(description: str, output: Path, work: Callable[[Job], None]) -> int:
    """The command line: `work` on every model that it names; `output` is the default of `--output`."""
    parser = argparse.ArgumentParser(description=description.split("\n", maxsplit=1)[0])
    parser.add_argument("names", nargs="*", default=["tiny", "smollm2"], metavar="MODEL", help=", ".join(NAMES))
    parser.add_argument("--output", type=Path, default=output)
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(NAMES):
        parser.error(f"no recipe for {', '.join(sorted(unknown))}: choose from {', '.join(NAMES)}")
    cache = cache_directory(os.environ)
    environment = ensure_engine_environment(ROOT, cache)
    for name in arguments.names:
        say(f"{name}: some minutes")
        with tempfile.TemporaryDirectory() as scratch:
            work(Job(name, ensure_model(name, ROOT, cache), environment, Path(scratch), arguments.output))
    say(f"written: {arguments.output}")
    return 0
