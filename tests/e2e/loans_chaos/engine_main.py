"""Takes the place of `vllm serve` in a pod: the emulated engine behind the real guard, with fake device memory.

It starts, sleeps, wakes and loads weights in seconds instead of a minute, so that hundreds of loans can be broken.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from pearl_engine_plugins.fake_device import DeviceUse
from pearl_engine_plugins.guard import EngineGuard

from pearl_simulator.emulator.config import EngineConfig
from pearl_simulator.emulator.serving import EmulatedEngine

START_SECONDS = 1.0
PATH_SECONDS = {"/sleep": 0.3, "/wake_up": 0.4, "/update_weights": 0.6}
"""Long enough that a fault can come in between."""


class Pod(EmulatedEngine):
    """Listens on every address of the pod, and tells peers the pod's own."""

    async def _listen(self) -> None:
        self._config = replace(self._config, host="0.0.0.0")  # noqa: S104 - a pod's
        await super()._listen()


class Memory:
    """ASGI middleware: what sleep and waking do to the device, and how long they and a load last."""

    def __init__(self, app: Any) -> None:
        folder = os.environ.get("PEARL_FAKE_DEVICE_DIR")
        self._bytes = int(os.environ.get("PEARL_FAKE_DEVICE_BYTES", str(1 << 30)))
        self._use = DeviceUse(Path(folder), self._bytes) if folder else None
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope.get("path", "")
        if path == "/wake_up" and self._use:
            self._use.set(self._bytes)
        await asyncio.sleep(PATH_SECONDS.get(path, 0.0))
        if path == "/sleep" and self._use:
            self._use.set(0)
        await self._app(scope, receive, send)


async def serve(port: int, model: str, most: int) -> None:
    """Until killed."""
    table = EngineConfig.of_table("tiny/cpu")
    config = replace(
        table,
        model=model,
        max_model_len=most,
        max_sequences=16,
        host=os.environ["VLLM_NIXL_SIDE_CHANNEL_HOST"],
        side_port=int(os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"]),
        lease_seconds=float(os.environ["PEARL_KV_LEASE_SECONDS"]),
    )
    await asyncio.sleep(START_SECONDS)
    async with Pod(config, port=port, wrap=lambda app: EngineGuard(Memory(app))) as engine:
        await engine.died.wait()


def main() -> None:
    """The options of `vllm serve` that matter here; the others are for engines that compute."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--max-model-len", type=int, default=2048)
    options, _ = parser.parse_known_args()
    asyncio.run(serve(options.port, options.served_model_name, options.max_model_len))


if __name__ == "__main__":
    main()
