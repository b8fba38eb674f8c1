"""The processes of the gateway bench: emulated engines, the gateway, vllm-router; and what they use of the machine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp

from pearl_worker.cache import digest, ensure_directory, say
from pearl_worker.engine_command import engine_command
from pearl_worker.engine_env import ensure_engine_environment, find_uv
from pearl_worker.models import ensure_model
from pearl_worker.settings import Device, Settings, cache_directory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parents[2]
READY_SECONDS, REAL_READY_SECONDS = 120.0, 600.0
REAL_MODEL = "tiny"
RIGHTS = {"Authorization": "Bearer bench"}
"""What real workers are guarded by: clients that ask them directly or through the router send it, the gateway too."""
LEASE_SECONDS = 30
"""How long the emulated engines keep KV for others; the gateway must be told."""
SESSION_HEADER = "X-Session-Id"
"""What vllm-router's `consistent_hash` policy keeps a session on one worker by."""
_TOKEN = RIGHTS["Authorization"].removeprefix("Bearer ")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Server:
    """Something that answers `/inference/v1/generate`; `pid` None where its CPU is nobody's concern."""

    name: str
    urls: tuple[str, ...]
    pid: int | None = None

    def url_of(self, number: int) -> str:
        """The address that trajectory `number` talks to."""
        return self.urls[number % len(self.urls)]

    def cpu_seconds(self) -> float | None:
        """Process time of it and its children until now."""
        return None if self.pid is None else sum(map(_cpu_seconds, _family(self.pid)))

    def memory_bytes(self) -> int | None:
        """Resident memory of it and its children."""
        return None if self.pid is None else sum(map(_memory_bytes, _family(self.pid)))


def free_ports(count: int) -> int:
    """The first of `count` neighbouring ports that nobody uses now."""
    while True:
        with ExitStack() as stack:
            first = stack.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                for number in range(1, count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port + number))
            except OSError:
                continue
            return port


@contextmanager
def engines(count: int, table: str | None, speed: float, log: Path) -> Iterator[tuple[str, ...]]:
    """URLs of emulated engines in one process; without a table they answer at once, in events of 16 tokens."""
    port = free_ports(count)
    command = [sys.executable, "-m", "pearl_simulator.emulator", "--port", str(port), "--engines", str(count)]
    command += ["--stream-interval", "16", "--vocabulary", "32000", "--kv-lease-seconds", str(LEASE_SECONDS)]
    if table is None:
        command += ["--max-model-len", "32768", "--max-num-seqs", "512", "--kv-tokens", "4000000"]
    else:
        command += ["--table", table, "--speed", str(speed)]
    with _process(command, log):
        urls = tuple(f"http://127.0.0.1:{port + number}" for number in range(count))
        asyncio.run(until_ready([url + "/health" for url in urls], log))
        yield urls


@contextmanager
def real_engines(count: int, folder: Path) -> Iterator[tuple[str, ...]]:
    """URLs of real vLLM workers on the CPU with the `tiny` model, as they run in pods, and open to everybody."""
    environment = ensure_engine_environment(ROOT, cache_directory(os.environ))
    model = str(ensure_model(REAL_MODEL, ROOT, cache_directory(os.environ)))
    ports, log = free_ports(2 * count), folder / "vllm.log"
    (folder / "engine").write_text(f"{_TOKEN}\n")
    with ExitStack() as stack:
        for number in range(count):
            settings = Settings(
                model=model,
                model_name=REAL_MODEL,
                device=Device.CPU,
                max_model_len=2048,
                lease_seconds=float(LEASE_SECONDS),
                engine_args=("--kv-cache-memory-bytes", str(64 << 20)),
                engine_python=str(environment / "bin" / "python"),
                tokens_directory=folder,
                engine_port=ports + 2 * number,
                nixl_port=ports + 2 * number + 1,
            )
            command = engine_command(settings, os.environ, _TOKEN)
            stack.enter_context(_process(list(command.argv), log, {**command.environment, "PEARL_GATE": "open"}))
        urls = tuple(f"http://127.0.0.1:{ports + 2 * number}" for number in range(count))
        asyncio.run(until_ready([url + "/health" for url in urls], log, REAL_READY_SECONDS))
        yield urls


@contextmanager
def gateway(urls: Sequence[str], *, split: bool, local_append: int, folder: Path) -> Iterator[Server]:
    """The gateway before these workers, with storage as in a cluster; split: the first half prefills."""
    port, half = free_ports(1), len(urls) // 2
    roles = [("prefill" if at < half else "decode") if split else "colocated" for at in range(len(urls))]
    workers = folder / "workers.json"
    workers.write_text(json.dumps([{"url": url, "role": role} for url, role in zip(urls, roles, strict=True)]))
    storage = folder / "storage"
    storage.mkdir(exist_ok=True)
    (folder / "engine").write_text(f"{_TOKEN}\n")
    environment = {
        "PEARL_ROLLOUT": "bench",
        "PEARL_AUTH": "None",
        "PEARL_TOKENS": str(folder),
        "PEARL_STORAGE": str(storage),
        "PEARL_KV_LEASE_SECONDS": str(LEASE_SECONDS),
        "PEARL_LOCAL_APPEND_TOKENS": str(local_append),
    }
    command = [sys.executable, "-m", "pearl_gateway.main", "--workers", str(workers), "--host", "127.0.0.1"]
    log = folder / "gateway.log"
    with _process([*command, "--port", str(port)], log, environment) as pid:
        asyncio.run(until_ready([f"http://127.0.0.1:{port}/ready"], log))
        yield Server("gateway", (f"http://127.0.0.1:{port}",), pid)


@contextmanager
def router(urls: Sequence[str], *, split: bool, policy: str, folder: Path) -> Iterator[Server]:
    """vllm-router before the same workers."""
    port, metrics, half = free_ports(1), free_ports(1), len(urls) // 2
    command = [str(router_environment() / "bin" / "python"), "-m", "vllm_router.launch_router"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics)]
    command += ["--policy", policy, "--log-level", "error", "--worker-startup-check-interval", "1"]
    if split:
        command += ["--vllm-pd-disaggregation", "--kv-connector", "nixl"]
        for at, url in enumerate(urls):
            command += ["--prefill" if at < half else "--decode", url]
    else:
        command += ["--worker-urls", *urls]
    log = folder / f"router-{policy}.log"
    # Where prefill is apart it sends this key to the workers, and not what the client sent.
    with _process(command, log, {"OPENAI_API_KEY": _TOKEN}) as pid:
        asyncio.run(until_ready([f"http://127.0.0.1:{port}/health"], log))
        yield Server(f"vllm-router ({policy})", (f"http://127.0.0.1:{port}",), pid)


def router_environment() -> Path:
    """vllm-router from its hash-pinned requirements, made once."""
    requirements = ROOT / "requirements" / "vllm-router.txt"
    key = digest([sys.version.encode(), requirements.read_bytes()])
    return ensure_directory(cache_directory(os.environ) / "vllm-router" / key, lambda one: _install(one, requirements))


def _install(draft: Path, requirements: Path) -> None:
    say("vllm-router: installing it into an environment of its own")
    uv, python = find_uv(), str(draft / "bin" / "python")
    subprocess.run([uv, "venv", "--quiet", "--allow-existing", "--relocatable", str(draft)], check=True)
    install = [uv, "pip", "install", "--quiet", "--python", python, "--require-hashes", "-r", str(requirements)]
    subprocess.run(install, check=True)


async def until_ready(urls: Sequence[str], log: Path, seconds: float = READY_SECONDS) -> None:
    """All of them answer 200 within so many seconds.

    Raises:
        RuntimeError: one does not; the message ends with the log.
    """
    async with aiohttp.ClientSession() as session:
        try:
            async with asyncio.timeout(seconds):
                for url in urls:
                    while not await _answers(session, url):  # noqa: ASYNC110 - nobody tells when a process is ready
                        await asyncio.sleep(0.2)
        except TimeoutError:
            tail = log.read_text()[-2000:]  # noqa: ASYNC240 - it is over anyway
            raise RuntimeError(f"not ready after {seconds:.0f} s; {log.name} ends with:\n{tail}") from None


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=5)) as response:
            return response.ok
    except (aiohttp.ClientError, OSError, TimeoutError):
        return False


@contextmanager
def _process(command: list[str], log: Path, environment: dict[str, str] | None = None) -> Iterator[int]:
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})}
        )
    try:
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _family(pid: int) -> Iterator[int]:
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            yield from _family(int(child))


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _memory_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
