"""The gateway: the process that users run, with storage, so that it can be killed and started again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_END_SECONDS = 15.0


class GatewayProcess:
    """`incarnation` counts its starts: what was running in an earlier one is run again."""

    def __init__(self, folder: Path, port: int, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._port = port
        self._environment = {**os.environ, **environment, "PEARL_STORAGE": str(folder / "storage")}
        self._environment["PYTHONFAULTHANDLER"] = "1"
        self._process: subprocess.Popen[bytes] | None = None
        self._busy = asyncio.Lock()
        self.incarnation = 0
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / "gateway.log"

    def start(self) -> None:
        self.incarnation += 1
        command = [sys.executable, "-m", "pearl_gateway.main", "--workers", str(self._folder / "workers.json")]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--port", str(self._port)],
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # an interrupt at the terminal is for the run, not for the gateway
            )

    @property
    def busy(self) -> bool:
        """Something is being done to it."""
        return self._busy.locked()

    def ended_by_itself(self) -> bool:
        """Nobody told it to."""
        return not self.busy and self._process is not None and self._process.poll() is not None

    def state(self) -> str:
        """What the kernel says of it: R runs, S waits, T stands still, Z has ended."""
        pid = self._process.pid if self._process is not None else 0
        stat = Path(f"/proc/{pid}/stat")
        return stat.read_text().rpartition(")")[2].split()[0] if stat.exists() else "gone"

    async def dump(self) -> None:
        """It answers nothing: its threads' stacks go to its log, and a new one is started."""
        self._signal(signal.SIGCONT, all_parts=True)
        await self._again(signal.SIGABRT)

    async def kill(self, chance: float) -> None:
        """`kill -9`, and a new one; of several processes mostly only one is hit, which the gateway starts again."""
        parts = self._parts()
        victim = int(chance * (len(parts) + 1))
        if victim >= len(parts):
            await self._again(signal.SIGKILL, all_parts=True)
            return
        self.incarnation += 1
        with contextlib.suppress(ProcessLookupError):
            os.kill(parts[victim], signal.SIGKILL)

    def _parts(self) -> list[int]:
        """The processes of a gateway that has several; none where it is one."""
        pid = self._process.pid if self._process is not None else 0
        path = Path(f"/proc/{pid}/task/{pid}/children")
        return [int(child) for child in path.read_text().split()] if path.exists() else []

    async def restart(self) -> None:
        """SIGTERM, and a new one when it is gone."""
        await self._again(signal.SIGTERM)

    async def _again(self, number: signal.Signals, *, all_parts: bool = False) -> None:
        async with self._busy:
            self._signal(number, all_parts=all_parts)
            await self._ended()
            self.start()

    async def stand_still(self, seconds: float) -> None:
        """It gets no CPU for so long."""
        async with self._busy:
            self._signal(signal.SIGSTOP, all_parts=True)
            try:
                await asyncio.sleep(seconds)
            finally:
                self._signal(signal.SIGCONT, all_parts=True)

    async def stop(self) -> None:
        async with self._busy:
            self._signal(signal.SIGTERM)
            await self._ended()

    async def _ended(self) -> None:
        assert self._process is not None
        try:
            await asyncio.to_thread(self._process.wait, _END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _signal(self, number: signal.Signals, *, all_parts: bool = False) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        for pid in [*(self._parts() if all_parts else ()), self._process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
