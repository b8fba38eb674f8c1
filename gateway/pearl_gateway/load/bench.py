"""What the gateway itself costs: added latency per turn and CPU per turn, against an engine that answers at once.

    python -m pearl_gateway.load.bench --concurrency 64

Three processes: this one asks, the gateway routes, the instant engine answers. Each trajectory grows turn by turn, so
that the token log works as it does in earnest. The same requests go to the engine directly, for the difference.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import socket
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

from pearl_gateway.load.report import percentile

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_FIRST_TOKEN = 100


class InstantEngine(asyncio.Protocol):
    """Answers `/inference/v1/generate` in the moment it is asked, in chunks of 16 tokens."""

    chunk_tokens = 16

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        self._transport: Any = transport
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        """Answer whole requests; the client sends one at a time."""
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found or len(body) < _content_length(head):
            return
        self._buffer = b""
        if head.startswith(b"GET"):
            self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            return
        count = json.loads(body)["sampling_params"]["max_tokens"]
        self._transport.write(_HEAD + b"".join(self._events(count)) + b"0\r\n\r\n")

    def _events(self, count: int) -> Iterator[bytes]:
        for start in range(0, count, self.chunk_tokens):
            ids = list(range(_FIRST_TOKEN + start, _FIRST_TOKEN + min(start + self.chunk_tokens, count)))
            last = start + self.chunk_tokens >= count
            entries = [{"token_id": one, "logprob": -0.5, "rank": 1, "top_logprobs": []} for one in ids]
            choice: dict[str, Any] = {"index": 0, "token_ids": ids, "logprobs": {"content": entries}}
            choice["finish_reason"] = "length" if last else None
            choice["weight_versions"] = [{"version": "0", "start": 0, "end": count}] if last else None
            event = b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"
            yield b"%x\r\n%s\r\n" % (len(event), event)


def _content_length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.split(b":")[1])
    return 0


def _serve_instant(port: int) -> None:
    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(InstantEngine, "127.0.0.1", port)
        await server.serve_forever()

    asyncio.run(serve())


def _serve_gateway(port: int, workers: str) -> None:
    from pearl_gateway import main as gateway_main  # noqa: PLC0415 - only in the gateway's own process

    os.environ.update(PEARL_ROLLOUT="bench", PEARL_AUTH="None", PEARL_MAX_MODEL_LEN="131072")
    sys.argv = ["pearl-gateway", "--workers", workers, "--host", "127.0.0.1", "--port", str(port)]
    gateway_main.main()


@contextmanager
def _processes(folder: Path) -> Iterator[tuple[str, str, int]]:
    """(gateway URL, engine URL, gateway's process id)."""
    ports = [_free_port(), _free_port()]
    workers = folder / "workers.json"
    workers.write_text(json.dumps([{"url": f"http://127.0.0.1:{ports[1]}"}]))
    context = multiprocessing.get_context("spawn")
    engine = context.Process(target=_serve_instant, args=(ports[1],), daemon=True)
    gateway = context.Process(target=_serve_gateway, args=(ports[0], str(workers)), daemon=True)
    for process in (engine, gateway):
        process.start()
    try:
        yield f"http://127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}", gateway.pid or 0
    finally:
        for process in (gateway, engine):
            process.terminate()
            process.join(10)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@dataclass(frozen=True, slots=True)
class Shape:
    """The work: trajectories at once, their turns, and the tokens of a turn."""

    concurrency: int
    turns: int
    prompt_tokens: int
    tool_tokens: int
    answer_tokens: int


async def measure(url: str, shape: Shape, run: str) -> tuple[list[float], float]:
    """Seconds of every turn in ascending order, and of the whole run."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        started = time.monotonic()
        tasks = [_trajectory(session, url, shape, f"{run}-{number}") for number in range(shape.concurrency)]
        found = await asyncio.gather(*tasks)
        return sorted(one for part in found for one in part), time.monotonic() - started


async def _trajectory(session: aiohttp.ClientSession, url: str, shape: Shape, name: str) -> list[float]:
    draw = random.Random(name)  # noqa: S311 - only spreads the starts
    context = list(range(shape.prompt_tokens))
    seconds = []
    for turn in range(shape.turns):
        await asyncio.sleep(draw.random() * 0.5)
        sampling = {"max_tokens": shape.answer_tokens, "logprobs": 0}
        body = {"token_ids": context, "sampling_params": sampling, "stream": True}
        headers = {"X-Pearl-Trajectory": name, "X-Pearl-Turn": str(turn)}
        started = time.monotonic()
        async with session.post(url + "/inference/v1/generate", json=body, headers=headers) as response:
            response.raise_for_status()
            await response.read()
        seconds.append(time.monotonic() - started)
        context += [*range(_FIRST_TOKEN, _FIRST_TOKEN + shape.answer_tokens), *range(shape.tool_tokens)]
    return seconds


async def _bench(gateway: str, engine: str, pid: int, shape: Shape) -> dict[str, Any]:
    await _until_ready(gateway)
    await measure(gateway, Shape(8, 2, 64, 8, 16), "warm")
    direct, _ = await measure(engine, shape, "direct")
    before = _cpu_seconds(pid)
    through, duration = await measure(gateway, shape, "through")
    used = _cpu_seconds(pid) - before
    result: dict[str, Any] = {"turns": len(through), "turns_per_second": len(through) / duration}
    for percent in (50, 99):
        left, right = percentile(through, percent) or 0.0, percentile(direct, percent) or 0.0
        result |= {f"through_ms_p{percent}": 1e3 * left, f"direct_ms_p{percent}": 1e3 * right}
        result[f"added_ms_p{percent}"] = 1e3 * (left - right)
    result["cpu_us_per_turn"] = 1e6 * used / len(through)
    result["cpu_share"] = used / duration
    return result


async def _until_ready(url: str) -> None:
    async with aiohttp.ClientSession() as session, asyncio.timeout(60):
        while True:
            try:
                async with session.get(url + "/ready") as response:
                    if response.ok:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description="Added latency and CPU of the gateway against an instant engine.")
    parser.add_argument("--concurrency", type=int, default=64, help="trajectories at once")
    parser.add_argument("--turns", type=int, default=12, help="turns of each")
    parser.add_argument("--answer-tokens", type=int, default=64, help="tokens of an answer")
    options = parser.parse_args()
    shape = Shape(options.concurrency, options.turns, 512, 64, options.answer_tokens)
    with tempfile.TemporaryDirectory() as folder, _processes(Path(folder)) as (gateway, engine, pid):
        result = asyncio.run(_bench(gateway, engine, pid, shape))
    sys.stdout.write(json.dumps({name: round(value, 3) for name, value in result.items()}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
