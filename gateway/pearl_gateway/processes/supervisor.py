"""The parent of a gateway's processes: starts them, starts one again that died or hangs, ends them all.

Clients connect to the processes themselves, which share the port; the supervisor keeps it for them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pearl_gateway.processes.backoff import Backoff
from pearl_gateway.processes.homes import OWNER
from pearl_gateway.processes.status import Status, socket_of

if TYPE_CHECKING:
    import socket
    from collections.abc import Coroutine, Sequence

_LOOK_SECONDS = 5.0
_ANSWER_SECONDS = 5.0
_MOST_SILENT_LOOKS = 3
"""A process that has answered before and is silent for so many looks in a row hangs."""
_STOP_SECONDS = 11.0
"""Until a process that was told to stop is killed; twice that is less than the pod's grace."""
_STOPPED_BY = (signal.SIGTERM, signal.SIGINT)
_LOG = logging.getLogger(__name__)


class GivenUpError(Exception):
    """A process cannot be kept."""


class Supervisor:
    """`command`: the command line of a process, to which what makes it one of several is added."""

    def __init__(self, *, command: Sequence[str], reserved: socket.socket, processes: int) -> None:
        self._command = list(command)
        self._reserved = reserved
        self._count = processes
        self.folder = Path(tempfile.mkdtemp(prefix="pearl-gateway-"))
        self._life, self._kept_open = os.pipe()
        """Its other end closes when the supervisor is gone, however it ends: then the processes end too."""
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._restarts = [0] * processes
        self._started, self._started_wall = time.monotonic(), time.time()
        self._stop = asyncio.Event()
        self._write_status()

    async def run(self) -> int:
        """Until a signal (0), or until a process cannot be kept (1)."""
        loop = asyncio.get_running_loop()
        for number in _STOPPED_BY:
            loop.add_signal_handler(number, self._stop.set)
        keepers = [asyncio.ensure_future(self._keep(number)) for number in range(self._count)]
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            done, _ = await asyncio.wait({stopped, *keepers}, return_when=asyncio.FIRST_COMPLETED)
            failed = [error for one in done if one is not stopped and (error := one.exception()) is not None]
            for error in failed:
                _LOG.error("%s", error)
        finally:
            self._stop.set()
            await self._end_all()
            for one in (stopped, *keepers):
                one.cancel()
            await asyncio.gather(stopped, *keepers, return_exceptions=True)
            for number in _STOPPED_BY:
                loop.remove_signal_handler(number)
            self._reserved.close()
            os.close(self._life)
            os.close(self._kept_open)
            shutil.rmtree(self.folder, ignore_errors=True)
        return 1 if failed else 0

    async def _keep(self, number: int) -> None:
        backoff = Backoff()
        while not self._stop.is_set():
            began = time.monotonic()
            process = await self._start(number)
            watch = asyncio.ensure_future(self._watch(number, process))
            code = await process.wait()
            watch.cancel()
            self._running.pop(number, None)
            if self._stop.is_set():
                return
            pause = backoff.died(time.monotonic() - began)
            if pause is None:
                raise GivenUpError(f"process {number} ends with {code} again and again: its log says why")
            _LOG.warning("process %d ended with %s; started again in %.1f s", number, code, pause)
            self._restarts[number] += 1
            self._write_status()
            await asyncio.sleep(pause)

    async def _start(self, number: int) -> asyncio.subprocess.Process:
        what = ["--process", str(number), "--folder", str(self.folder), "--life", str(self._life)]
        process = await asyncio.create_subprocess_exec(*self._command, *what, pass_fds=(self._life,))
        self._running[number] = process
        self._write_status()
        return process

    async def _watch(self, number: int, process: asyncio.subprocess.Process) -> None:
        """Kill the process when it does not answer any more; nobody else would notice."""
        answered, silent = False, 0
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if await _answers(socket_of(self.folder, number)):
                answered, silent = True, 0
                continue
            silent += answered
            if silent >= _MOST_SILENT_LOOKS:
                _LOG.error("process %d does not answer any more: killed", number)
                process.kill()
                return

    async def _end_all(self) -> None:
        """All at once. The owner is told twice: until then the others can tell it what they have done."""
        owner = self._running.get(OWNER)
        if owner is not None:
            _terminate(owner)
        await asyncio.gather(*(_end(one) for number, one in self._running.items() if number != OWNER))
        if owner is not None:
            await _end(owner)

    def _write_status(self) -> None:
        running = [self._running.get(number) for number in range(self._count)]
        pids = tuple(None if one is None else one.pid for one in running)
        Status(self._started, self._started_wall, pids, tuple(self._restarts)).write(self.folder)


def supervise(*, command: Sequence[str], reserved: socket.socket, processes: int) -> Coroutine[None, None, int]:
    """Run a gateway of several processes; the exit status.

    Args:
        command: The module of a process, and its arguments.
        reserved: Bound to the port that the processes listen at.
        processes: How many.
    """
    return Supervisor(command=[sys.executable, "-m", *command], reserved=reserved, processes=processes).run()


async def _end(process: asyncio.subprocess.Process) -> None:
    _terminate(process)
    try:
        async with asyncio.timeout(_STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _terminate(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.terminate()


async def _answers(path: Path) -> bool:
    """Whether a process answers its health check in time."""
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            reader, writer = await asyncio.open_unix_connection(str(path))
            try:
                writer.write(b"GET /_/health HTTP/1.1\r\nHost: process\r\nConnection: close\r\n\r\n")
                status = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
    return b" 200 " in status
