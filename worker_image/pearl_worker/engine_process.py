"""Starts and ends engines as process groups, and reaps whatever ends in this container (the agent is PID 1)."""

import asyncio
import ctypes
import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from pearl_worker.engine_command import EngineCommand
from pearl_worker.ports import EngineClient, EngineFaultError

_PR_SET_CHILD_SUBREAPER = 36
_GONE_POLL_SECONDS = 0.02


class Reaper:
    """Collects every ended child, so that none stays a zombie, and tells who waits for it.

    It owns `waitpid(-1)`: nothing else in the process may wait for children.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[int]] = {}
        # Outside a container (tests) orphans of the engine come to us as they would come to PID 1.
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        """Reap on every SIGCHLD."""
        loop.add_signal_handler(signal.SIGCHLD, self.reap)

    def watch(self, pid: int) -> asyncio.Future[int]:
        """A future with the exit code of child `pid`; must be called before control goes back to the loop."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting[pid] = future
        return future

    def reap(self) -> None:
        """Collect all that ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            future = self._waiting.pop(pid, None)
            if future is not None and not future.done():
                future.set_result(os.waitstatus_to_exitcode(status))


class EngineGroup:
    """A `ports.EngineProcess`: the leader and everything it started."""

    def __init__(self, process: "subprocess.Popen[bytes]", ended: asyncio.Future[int], client: EngineClient) -> None:
        self._process = process
        self._ended = ended
        self.client = client

    @property
    def pid(self) -> int:
        """Process id of the leader, which is the id of the group too."""
        return self._process.pid

    async def wait(self) -> int:
        """Until the leader ended; its exit code."""
        code = await asyncio.shield(self._ended)
        self._process.returncode = code  # the reaper took the status; Popen must not look for it
        return code

    def terminate(self) -> None:
        """SIGTERM to the leader, which stops the rest in order."""
        if not self._ended.done():
            os.kill(self.pid, signal.SIGTERM)

    async def kill(self) -> None:
        """SIGKILL to all; returns when the group is empty, because only then its device memory is free."""
        while self._signal_group(signal.SIGKILL):  # noqa: ASYNC110 - the kernel tells of no empty group
            await asyncio.sleep(_GONE_POLL_SECONDS)
        await self.wait()

    def _signal_group(self, number: int) -> bool:
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return False
        return True


class GroupLauncher:
    """A `ports.EngineLauncher`: every start gets a new admin token."""

    def __init__(
        self,
        reaper: Reaper,
        command: Callable[[str], EngineCommand],
        client: Callable[[str], EngineClient],
        directory: Path,
    ) -> None:
        """`command` and `client` take the admin token; `directory` is where the engine may write."""
        self._reaper = reaper
        self._command = command
        self._client = client
        self._directory = directory

    async def launch(self) -> EngineGroup:
        """Start an engine in a process group of its own; its output is the container's."""
        token = secrets.token_hex(32)
        command = self._command(token)
        process = _spawn(command.argv, command.environment, self._directory)
        return EngineGroup(process, self._reaper.watch(process.pid), self._client(token))


def _spawn(argv: tuple[str, ...], environment: Mapping[str, str], directory: Path) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(
            argv, env=dict(environment), cwd=directory, stdin=subprocess.DEVNULL, start_new_session=True
        )
    except OSError as error:
        raise EngineFaultError(f"the engine cannot be started: {error}") from error
