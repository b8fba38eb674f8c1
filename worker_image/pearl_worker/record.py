"""Records the steps and turns of real vLLM on this machine's CPU, for checks of the engine model.

    python -m pearl_worker.record --output DIRECTORY smollm2 tiny

Two engines run at once. First one of them alone meets a sweep of batch sizes, contexts, chunks and prefixes; then
agents of several turns run on it alone (colocated) and on both (one prefills, the other decodes). Per model the
directory gets `NAME-steps.jsonl.gz`, the recorder's lines with `phase` and `engine` added, and `NAME-turns.json`, every
turn with what was asked and when. `docs/results/engine-model.md` shows what is made of them.
"""

import argparse
import asyncio
import gzip
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp

from pearl_worker.cache import say
from pearl_worker.engine import Engine
from pearl_worker.engine_command import EngineCommand, engine_command
from pearl_worker.engine_env import ensure_engine_environment
from pearl_worker.engine_http import HttpEngineClient
from pearl_worker.engine_process import GroupLauncher, Reaper
from pearl_worker.models import NAMES, ensure_model
from pearl_worker.ports import EngineClient
from pearl_worker.settings import Device, Settings, cache_directory

_PORT: Final = 18100
_TOKEN: Final = "record"  # noqa: S105 - of engines on the loopback that live for this run
_BLOCK: Final = 32
_CHUNK: Final = 512
_TURNS: Final = 3
_AGENTS: Final = (1, 2, 4, 8)
_DECODES: Final = [(n, length) for length in (32, 256) for n in (1, 2, 3, 4, 6, 8, 12, 16)] + [(2, 900), (6, 900)]
_PREFILLS: Final = [(c, 0) for c in (32, 64, 128, 256, 512, 900)] + [(40, 512), (160, 1024), (400, 256), (400, 1024)]
_MIXED: Final = [(n, c, prefix) for n in (1, 4, 8) for c, prefix in ((64, 0), (300, 0), (120, 768), (700, 0))]


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of an agent and how it went; times are of the wall clock."""

    appended: int
    generated: int
    context: int
    """Prompt tokens."""
    started: float
    handed_over: float | None
    """Prefill done on the other worker; None = there was none."""
    ended: float
    environment: float
    """Waited before the next turn."""


class Client:
    """Sends token-id prompts to the engine on one port."""

    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self._session = session
        self._url = f"http://127.0.0.1:{port}/inference/v1/generate"

    async def generate(self, prompt: Sequence[int], tokens: int, **extra: Any) -> dict[str, Any]:
        """The engine's answer."""
        sampling = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        body = {"model": "recorded", "token_ids": list(prompt), "sampling_params": sampling, **extra}
        headers = {"Authorization": f"Bearer {_TOKEN}"}
        async with self._session.post(self._url, json=body, headers=headers) as answer:
            answer.raise_for_status()
            result: dict[str, Any] = await answer.json()
            return result


class Recording:
    """One model: the sweep and the turns."""

    def __init__(self, clients: Sequence[Client], seed: int) -> None:
        self._clients = clients
        self._random = random.Random(seed)  # noqa: S311 - prompts, not secrets
        self.phases: list[dict[str, Any]] = []

    def prompt(self, tokens: int) -> list[int]:
        """A prompt nobody sent before."""
        return [self._random.randrange(250) for _ in range(tokens)]

    async def sweep(self) -> None:
        """Batch sizes × contexts, chunks × prefixes, and chunks that meet decoding sequences."""
        began = time.time()
        work = [
            *(partial(self._decode, *point) for point in _DECODES),
            *(partial(self._prefill, *point) for point in _PREFILLS * 3),
            *(partial(self._mixed, *point) for point in _MIXED * 2),
        ]
        self._random.shuffle(work)  # what else the machine does must not look like an effect of the sizes
        for one in work:
            await one()
        self._close_phase("sweep", began)

    async def _decode(self, sequences: int, length: int) -> None:
        await asyncio.gather(*(self._clients[0].generate(self.prompt(length), 14) for _ in range(sequences)))

    async def _prefill(self, new: int, prefix: int) -> None:
        await self._clients[0].generate(await self._after_cached(self._clients[0], new, prefix), 1)

    async def _mixed(self, sequences: int, new: int, prefix: int) -> None:
        engine = self._clients[0]
        prompt = await self._after_cached(engine, new, prefix)
        decoding = [asyncio.create_task(engine.generate(self.prompt(48), 24)) for _ in range(sequences)]
        await asyncio.sleep(0.2)
        await asyncio.gather(engine.generate(prompt, 1), *decoding)

    async def _after_cached(self, engine: Client, new: int, prefix: int) -> list[int]:
        head = self.prompt(prefix)
        if prefix:
            await engine.generate([*head, *self.prompt(_BLOCK)], 1)
        return [*head, *self.prompt(new)]

    async def agents(self, mode: str, count: int) -> None:
        """`count` agents at once; `mode` is colocated or disaggregated."""
        began = time.time()
        plans = [
            [(self._random.randint(100, 300) if turn == 0 else self._random.randint(20, 120)) for turn in range(_TURNS)]
            for _ in range(count)
        ]
        done = await asyncio.gather(*(self._agent(mode, plan) for plan in plans))
        turns = [[_turn_dict(turn) for turn in turns] for turns in done]
        self._close_phase(f"{mode}-{count}", began, mode=mode, agents=turns)

    async def _agent(self, mode: str, appends: Sequence[int]) -> list[Turn]:
        history: list[int] = []
        turns = []
        for appended in appends:
            history += self.prompt(appended)
            generated, environment = self._random.randint(12, 40), self._random.uniform(0.0, 0.5)
            started, handed = time.time(), None
            extra = {}
            if mode == "disaggregated":
                give = {"do_remote_decode": True, "do_remote_prefill": False}
                first = await self._clients[0].generate(history, 1, kv_transfer_params=give)
                extra, handed = {"kv_transfer_params": first["kv_transfer_params"]}, time.time()
            decoder = self._clients[1 if mode == "disaggregated" else 0]
            answer = await decoder.generate(history, generated, **extra)
            turns.append(Turn(appended, generated, len(history), started, handed, time.time(), environment))
            history += answer["choices"][0]["token_ids"]
            await asyncio.sleep(environment)
        return turns

    def _close_phase(self, name: str, began: float, **extra: Any) -> None:
        load = round(os.getloadavg()[0], 2)
        self.phases.append({"phase": name, "began": began, "ended": time.time(), "load_average": load, **extra})
        say(f"  {name}: {time.time() - began:.0f} s, load {load}")


def _turn_dict(turn: Turn) -> dict[str, Any]:
    return {name: getattr(turn, name) for name in Turn.__slots__}


@asynccontextmanager
async def engines(settings: Sequence[Settings], session: aiohttp.ClientSession) -> AsyncIterator[None]:
    """Engines that live as long as the block."""
    reaper = Reaper()
    reaper.install(asyncio.get_running_loop())
    running = [Engine(one, _launcher(one, reaper, session)) for one in settings]
    try:
        for engine in running:
            await engine.start()
            await engine.open()
        yield
    finally:
        for engine in running:
            await engine.kill()


def _launcher(settings: Settings, reaper: Reaper, session: aiohttp.ClientSession) -> GroupLauncher:
    def command(admin_token: str) -> EngineCommand:
        return engine_command(settings, os.environ, admin_token)

    def client(admin_token: str) -> EngineClient:
        url = f"http://127.0.0.1:{settings.engine_port}"
        return HttpEngineClient(session, url, settings.model_name, admin_token)

    return GroupLauncher(reaper, command, client, settings.scratch_directory)


async def record(name: str, model: Path, environment: Path, scratch: Path, output: Path) -> None:
    """Record one model into `output`."""
    first = _settings(model, environment, scratch)
    second = replace(first, engine_port=_PORT + 2, nixl_port=_PORT + 3, steps_directory=scratch / "steps-1")
    timeout = aiohttp.ClientTimeout(total=600)
    async with (
        aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session,
        engines((first, second), session),
    ):
        recording = Recording([Client(session, one.engine_port) for one in (first, second)], seed=1)
        await recording.sweep()
        for count in _AGENTS:
            await recording.agents("colocated", count)
            await recording.agents("disaggregated", count)
    _write(name, recording.phases, [scratch / "steps-0", scratch / "steps-1"], output)


def _write(name: str, phases: Sequence[dict[str, Any]], directories: Sequence[Path], output: Path) -> None:
    lines = []
    for engine, directory in enumerate(directories):
        for file in sorted(directory.glob("*.jsonl")):
            for line in file.read_text().splitlines():
                step = json.loads(line)
                inside = [phase for phase in phases if phase["began"] <= step["at"] <= phase["ended"]]
                if inside:
                    lines.append(json.dumps({"phase": inside[0]["phase"], "engine": engine, **step}))
    output.mkdir(parents=True, exist_ok=True)
    packed = gzip.compress("\n".join(lines).encode() + b"\n", mtime=0)
    (output / f"{name}-steps.jsonl.gz").write_bytes(packed)
    (output / f"{name}-turns.json").write_text(json.dumps({"phases": phases}, separators=(",", ":")) + "\n")
    say(f"{name}: {len(lines)} steps, {len(packed)} bytes")


def _settings(model: Path, environment: Path, scratch: Path) -> Settings:
    (scratch / "engine").write_text(_TOKEN)
    return Settings(
        model=str(model),
        model_name="recorded",
        device=Device.CPU,
        max_model_len=2048,
        # Chunks smaller than the longest prompts, so that there are chunks behind chunks.
        engine_args=("--kv-cache-memory-bytes", str(1 << 30), "--max-num-batched-tokens", str(_CHUNK)),
        engine_python=str(environment / "bin" / "python"),
        engine_environment=environment,
        tokens_directory=scratch,
        scratch_directory=scratch,
        steps_directory=scratch / "steps-0",
        lease_seconds=120.0,
        engine_port=_PORT,
        nixl_port=_PORT + 1,
    )


def main() -> int:
    """Record the named models."""
    root = Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("names", nargs="*", default=["tiny", "smollm2"], metavar="MODEL", help=", ".join(NAMES))
    parser.add_argument("--output", type=Path, default=root / "docs/results/data")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(NAMES):
        parser.error(f"no recipe for {', '.join(sorted(unknown))}: choose from {', '.join(NAMES)}")
    cache = cache_directory(os.environ)
    environment = ensure_engine_environment(root, cache)
    for name in arguments.names:
        say(f"{name}: recording (some minutes)")
        model = ensure_model(name, root, cache)
        with tempfile.TemporaryDirectory() as scratch:
            asyncio.run(record(name, model, environment, Path(scratch), arguments.output))
    return 0


if __name__ == "__main__":
    sys.exit(main())
