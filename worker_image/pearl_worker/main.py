"""`pearl-worker-agent`: wires the shells around the worker and runs them in one loop."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import uvicorn

from pearl_worker.api import Tokens, build_api
from pearl_worker.device import FakeDevice, NvmlDevice
from pearl_worker.engine import Engine
from pearl_worker.engine_process import Reaper
from pearl_worker.launch import http_launcher
from pearl_worker.loan import Loan
from pearl_worker.ports import WeightSource
from pearl_worker.settings import Settings, from_env
from pearl_worker.stores import DirectoryStore, DownloadStore, ObjectStore, Remote, Store, WebServer
from pearl_worker.weights import CheckedSource, NoSource
from pearl_worker.worker import Worker

_log = logging.getLogger(__name__)


class _Server(uvicorn.Server):
    """Leaves the signals to `main`: SIGTERM must drain first and close the API last."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def main() -> int:
    """Entry point; exit code 2 = wrong settings."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    try:
        settings = from_env(os.environ)
        accepted = read_tokens(settings)
    except (ValueError, OSError) as error:
        _log.error("%s", error)
        return 2
    asyncio.run(serve(settings, accepted))
    return 0


async def serve(settings: Settings, accepted: Tokens) -> None:
    """Run the worker until SIGTERM, then drain, end the engine and return."""
    loop = asyncio.get_running_loop()
    reaper = Reaper()
    reaper.install(loop)
    settings.state_directory.mkdir(parents=True, exist_ok=True)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        worker = build_worker(settings, reaper, session)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, worker.stop)
        app = build_api(worker, accepted, loop.time)
        config = uvicorn.Config(
            app,
            host="0.0.0.0",  # noqa: S104 - a pod's own address
            port=settings.agent_port,
            log_config=None,
            access_log=False,
            timeout_keep_alive=75,  # gateway, operator and trainers close their idle connections first
        )
        server = _Server(config)
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(server.serve())
            working = tasks.create_task(worker.run())
            await asyncio.wait([serving, working], return_when=asyncio.FIRST_COMPLETED)
            # Either ending alone ends the container; a worker that stopped leaves the API to close in order.
            worker.stop()
            await working
            server.should_exit = True


def build_worker(settings: Settings, reaper: Reaper, session: aiohttp.ClientSession) -> Worker:
    """The worker on real ports."""
    launcher = http_launcher(settings, reaper, session, os.environ)
    return Worker(settings, Engine(settings, launcher), _source(settings, session), _loan(settings))


def read_tokens(settings: Settings) -> Tokens:
    """The tokens of the mounted Secret. Raises OSError or ValueError when one is missing."""
    agent = _token(settings.tokens_directory, "agent")
    _token(settings.tokens_directory, "engine")  # read by the engine; better to fail here than there
    return Tokens(agent=agent, loan=_token(settings.tokens_directory, "loan") if settings.loan else None)


def _token(directory: Path, name: str) -> str:
    text = (directory / name).read_text().strip()
    if not text:
        raise ValueError(f"{directory / name} is empty: mount the Secret <rollout>-pearl-worker at PEARL_TOKENS_DIR")
    return text


def _source(settings: Settings, session: aiohttp.ClientSession) -> WeightSource:
    location = settings.weights_source
    if location is None:
        return NoSource(settings.model)
    return CheckedSource(_store(location, settings, session), settings.model)


def _store(location: str, settings: Settings, session: aiohttp.ClientSession) -> Store:
    if "://" not in location:
        return DirectoryStore(Path(location))
    web = location.startswith(("http://", "https://"))
    remote: Remote = WebServer(session, location) if web else ObjectStore(location)
    return DownloadStore(remote, settings.scratch_directory / f"weights-{settings.engine_port}")


def _loan(settings: Settings) -> Loan | None:
    if settings.loan is None:
        return None
    file, allowance = settings.state_directory / "loan.json", settings.memory_allowance_bytes
    if settings.fake_device:
        return Loan(FakeDevice(settings.fake_device), file, allowance)
    device = NvmlDevice(settings.visible_gpus)
    return Loan(device, file, allowance, device.total_bytes())


if __name__ == "__main__":
    sys.exit(main())
