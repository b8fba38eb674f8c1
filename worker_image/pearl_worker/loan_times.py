"""Measures how fast a real engine is lent and given back: start, wake, sleep, kill, and what the protocol adds.

    python -m pearl_worker.loan_times --model /models/qwen3-8b --gpus GPU-2f1e... --output loan-times.json
    python -m pearl_worker.loan_times --fake          # no GPU: vLLM on the CPU, and a directory that plays the device

Needs vLLM and PEARL's engine plugins in `--engine-python` (the worker image has both). It starts a worker agent as in a
borrower pod and does what operator and trainer do: grant, wait until ready, reclaim in the middle of generations. The
trainer's own memory is whatever else is on the GPU. With `--fake` everything is the same but the device, whose memory
is a number in a file; times of sleep and wake mean nothing then, and the report says so.
"""

import argparse
import asyncio
import contextlib
import json
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import aiohttp

from pearl_worker.bench import ROOT
from pearl_worker.cache import say
from pearl_worker.device import FakeDevice, NvmlDevice, visible_gpus
from pearl_worker.engine_env import ensure_engine_environment
from pearl_worker.loan_cycles import Agent, Bench, Cycle, summary
from pearl_worker.models import ensure_model
from pearl_worker.settings import cache_directory

_TOKENS: Final = {name: f"{name}-of-this-run" for name in ("agent", "engine", "loan")}
_UP_SECONDS: Final = 60.0
_KILL_WITHIN_SECONDS: Final = 2.0
"""A deadline with no room for a sleep: the agent kills at once."""


def table(report: Mapping[str, Any]) -> str:
    """The report for people."""
    lines = [f"device: {report['device']}", f"engine: {report['engine']}", ""]
    lines.append(f"{'':24}{'count':>7}{'median s':>11}{'worst s':>11}")
    for name, value in report["summary"].items():
        if isinstance(value, dict):
            lines.append(f"{name:24}{value['count']:>7}{value['median']:>11.3f}{value['worst']:>11.3f}")
    cut, late = report["summary"]["aborted_requests"], report["summary"]["not_free"]
    return "\n".join([*lines, "", f"generations cut short: {cut}", f"not free at the deadline: {late}"])


@asynccontextmanager
async def agent_process(environment: Mapping[str, str]) -> AsyncIterator[None]:
    """The agent, ended with its engine by SIGTERM."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pearl_worker.main", env={**os.environ, **environment}
    )
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def measure(options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """All cycles and their summary."""
    environment, device, label = _fake(scratch) if options.fake else _real(options)
    ports = [_free_port() for _ in range(3)]
    for name, token in _TOKENS.items():
        (scratch / name).write_text(token)
    environment |= {
        "PEARL_MODEL_NAME": "measured",
        "PEARL_TENSOR_PARALLEL": str(options.tensor_parallel),
        "PEARL_TOKENS_DIR": str(scratch),
        "PEARL_STATE_DIR": str(scratch / "state"),
        "PEARL_SCRATCH_DIR": str(scratch),
        "PEARL_LOAN_NAME": "measured",
        "PEARL_LOAN_NAMESPACE": "default",
        "PEARL_START_SECONDS": f"{options.start_seconds:g}",
        **dict(zip(("PEARL_AGENT_PORT", "PEARL_ENGINE_PORT", "PEARL_NIXL_PORT"), map(str, ports), strict=True)),
    }
    cycles: list[Cycle] = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session, agent_process(environment):
        agent = Agent(session, ports[0], ports[1], _TOKENS)
        await agent.until_up(_UP_SECONDS)
        bench = Bench(agent, device, options.start_seconds)
        for epoch in range(1, options.cycles + options.kills + 1):
            within = options.within if epoch <= options.cycles else _KILL_WITHIN_SECONDS
            cycles.append(await bench.cycle(epoch, options.requests, within))
            say(f"loan {epoch}: {cycles[-1]}")
    engine = f"{environment['PEARL_MODEL_URI']}, tensor parallel {options.tensor_parallel}"
    return {"device": label, "engine": engine, "cycles": [asdict(one) for one in cycles], "summary": summary(cycles)}


def _real(options: argparse.Namespace) -> tuple[dict[str, str], NvmlDevice, str]:
    gpus = options.gpus or os.environ.get("NVIDIA_VISIBLE_DEVICES", "")
    device = NvmlDevice(visible_gpus(gpus))
    if device.used_bytes() is None:
        raise ValueError(f"GPU memory cannot be read ({device.problem}): run this on a host with a GPU, or with --fake")
    environment = {
        "PEARL_MODEL_URI": options.model,
        "PEARL_ENGINE_DEVICE": "gpu",
        "PEARL_ENGINE_PYTHON": options.engine_python,
        "PEARL_ENGINE_ARGS": json.dumps(options.engine_args),
        "NVIDIA_VISIBLE_DEVICES": gpus,
    }
    if visible_gpus(gpus):
        environment["CUDA_VISIBLE_DEVICES"] = gpus  # outside a container nothing else hides the others
    return environment, device, ", ".join(device.names()) or "unknown GPU"


def _fake(scratch: Path) -> tuple[dict[str, str], FakeDevice, str]:
    cache = cache_directory(os.environ)
    engine = ensure_engine_environment(ROOT, cache)
    folder = scratch / "device"
    folder.mkdir()
    environment = {
        "PEARL_MODEL_URI": str(ensure_model("tiny", ROOT, cache)),
        "PEARL_MAX_MODEL_LEN": "2048",
        "PEARL_ENGINE_DEVICE": "cpu",
        "PEARL_ENGINE_ENVIRONMENT": str(engine),
        "PEARL_ENGINE_PYTHON": str(engine / "bin" / "python"),
        "PEARL_FAKE_DEVICE_DIR": str(folder),
    }
    return (
        environment,
        FakeDevice(folder),
        "FAKE (no GPU: the engine computes on the CPU, sleep and wake move no memory)",
    )


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def main() -> int:
    """The command line; exit code 2 = wrong arguments, 1 = a loan was not given back in time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--fake", action="store_true", help="vLLM on this machine's CPU with a played device")
    parser.add_argument("--model", help="directory of the model; its weights are read at every wake-up")
    parser.add_argument("--gpus", default="", help="UUIDs of the GPUs, comma separated; default: all visible ones")
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--engine-python", default="python3", help="interpreter that has vLLM and the plugins")
    parser.add_argument("--engine-args", nargs=argparse.REMAINDER, default=[], help="last: arguments of vllm serve")
    parser.add_argument("--cycles", type=int, default=10, help="loans that end in a sleep; the first begins cold")
    parser.add_argument("--kills", type=int, default=2, help="loans after them that end in a kill")
    parser.add_argument("--requests", type=int, default=8, help="generations inside when a loan is called back")
    parser.add_argument("--within", type=float, default=10.0, help="hard deadline of a reclaim, seconds")
    parser.add_argument("--start-seconds", type=float, default=600.0, help="longest start of an engine")
    parser.add_argument("--output", type=Path, help="JSON file; default: only the table")
    options = parser.parse_args()
    if not options.fake and not options.model:
        parser.error("--model is missing: name the model's directory, or use --fake")
    try:
        with tempfile.TemporaryDirectory() as scratch:
            report = asyncio.run(measure(options, Path(scratch)))
    except ValueError as error:
        parser.error(str(error))
    if options.output:
        options.output.write_text(json.dumps(report, indent=2) + "\n")
    sys.stdout.write(table(report) + "\n")
    return 1 if report["summary"]["not_free"] else 0


if __name__ == "__main__":
    sys.exit(main())
