"""Records the steps and turns of real vLLM on this machine's CPU, for checks of the engine model.

    python -m pearl_worker.record --output DIRECTORY smollm2 tiny

Two engines run at once. First one of them alone meets a sweep of batch sizes, contexts, chunks and prefixes; then
agents of several turns run on it alone (colocated) and on both (one prefills, the other decodes). Per model the
directory gets `NAME-steps.jsonl.gz`, the recorder's lines with `phase` and `engine` added, and `NAME-turns.json`, every
turn with what was asked and when. `docs/results/engine-model.md` shows what is made of them.
"""

import asyncio
import gzip
import json
import os
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from pearl_worker.bench import ROOT, Client, Job, engines, for_each_model
from pearl_worker.cache import say

_PORT: Final = 18100
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


async def record(job: Job) -> None:
    """Record one model into the job's output directory."""
    # Chunks smaller than the longest prompts, so that there are chunks behind chunks.
    settings = job.settings("recorded", _PORT, 1 << 30, "--max-num-batched-tokens", str(_CHUNK))
    first = replace(settings, steps_directory=job.scratch / "steps-0", lease_seconds=120.0)
    second = replace(first, engine_port=_PORT + 2, nixl_port=_PORT + 3, steps_directory=job.scratch / "steps-1")
    async with engines(first, second) as clients:
        recording = Recording(clients, seed=1)
        await recording.sweep()
        for count in _AGENTS:
            await recording.agents("colocated", count)
            await recording.agents("disaggregated", count)
    _write(job.name, recording.phases, [job.scratch / "steps-0", job.scratch / "steps-1"], job.output)


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


def main() -> int:
    """Record the named models."""
    return for_each_model(__doc__ or "", ROOT / "docs/results/data", lambda job: asyncio.run(record(job)))


if __name__ == "__main__":
    sys.exit(main())
