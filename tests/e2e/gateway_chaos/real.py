"""Real vLLM on the CPU: what the scene needs to start workers, and one untouched engine per set of weights."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
from ports import free_port

from gateway_chaos.launch import RealLauncher
from gateway_chaos.link import Link
from gateway_chaos.pod import write_tokens
from gateway_chaos.reference import RealReference
from pearl_worker.engine_env import ensure_engine_environment
from pearl_worker.models import ensure_model
from pearl_worker.settings import Device, Settings, cache_directory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway_chaos.scene import Stage

ROOT = Path(__file__).resolve().parents[3]
MODELS = ("tiny", "tiny-b")
"""Version 0 has the weights of the first, and versions take turns with them."""
_READY_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Engines:
    """What is needed to start them."""

    python: str
    models: tuple[Path, ...]

    @property
    def weights(self) -> tuple[Path, ...]:
        return tuple(model / "model.safetensors" for model in self.models)

    def on(self, stage: Stage) -> Stage:
        """The stage with these instead of emulated ones."""
        return replace(stage, engine_python=self.python, model=str(self.models[0]), weights=self.weights)


def prepare() -> Engines:
    """Environment and models, made if they are missing."""
    cache = cache_directory(os.environ)
    python = ensure_engine_environment(ROOT, cache) / "bin" / "python"
    return Engines(str(python), tuple(ensure_model(name, ROOT, cache) for name in MODELS))


@asynccontextmanager
async def references(engines: Engines, folder: Path) -> AsyncIterator[RealReference]:
    """One engine per model that nothing is done to."""
    write_tokens(folder)
    async with aiohttp.ClientSession() as session:
        launchers = [_launcher(engines, model, folder, session) for model in engines.models]
        processes = [await one.launch() for one in launchers]
        urls = [f"http://127.0.0.1:{one.settings.engine_port}" for one in launchers]
        try:
            async with asyncio.timeout(_READY_SECONDS):
                for process in processes:
                    while not await process.client.healthy():  # noqa: ASYNC110 - nobody tells
                        await asyncio.sleep(0.5)
            yield RealReference(session, lambda version: urls[version % len(urls)], "engine")
        finally:
            await asyncio.gather(*(one.kill() for one in processes))


def _launcher(engines: Engines, model: Path, folder: Path, session: aiohttp.ClientSession) -> RealLauncher:
    settings = Settings(
        model=str(model),
        model_name="tiny",
        device=Device.CPU,
        max_model_len=2048,
        engine_python=engines.python,
        engine_args=("--kv-cache-memory-bytes", str(64 << 20)),
        tokens_directory=folder,
        state_directory=folder,
        engine_port=free_port(),
        nixl_port=free_port(),
    )
    return RealLauncher(settings, Link(), session, folder / f"reference-{model.name}.log", {"PEARL_GATE": "open"})
