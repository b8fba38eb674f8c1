"""Starts the cluster's processes, remembers them, and stops exactly those.

A process is remembered by its id *and* start time, so that an id that was used again
after a crash is never mistaken for ours. What a crash left unwritten is found by its
network namespace: nothing but the cluster lives there.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pearl_dev.shell import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

STAT_STATE = 0
STAT_START = 19
"""Fields of /proc/PID/stat, counted after the command's closing parenthesis."""

NETNS = Path("/run/netns")


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()


def boot_id() -> str:
    """A value that changes when the machine starts anew."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None when it does not run."""
    fields = _stat(pid)
    return None if fields is None or fields[STAT_STATE] == "Z" else int(fields[STAT_START])


@dataclass(frozen=True, slots=True)
class Process:
    """A started process."""

    name: str
    pid: int
    started: int
    boot: str

    def alive(self) -> bool:
        """Whether this very process still runs."""
        return self.boot == boot_id() and start_ticks(self.pid) == self.started

    def child(self) -> int | None:
        """Its first child, None when it has none."""
        try:
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return int(children[0]) if children else None


@dataclass(frozen=True, slots=True)
class Ledger:
    """The file that lists a cluster's processes."""

    path: Path

    def processes(self) -> dict[str, Process]:
        """What was started, by name, whether it runs or not."""
        try:
            listed = json.loads(self.path.read_text())
        except FileNotFoundError:
            return {}
        return {item["name"]: Process(**item) for item in listed}

    def start(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        log: Path,
        environment: Mapping[str, str],
    ) -> Process:
        """Start a process that outlives us, and write it down."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            started = subprocess.Popen(
                [str(word) for word in argv],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,
            )
        process = Process(name, started.pid, start_ticks(started.pid) or 0, boot_id())
        # It is not ours to wait for: telling Popen so keeps it from warning about it.
        started.returncode = 0
        self._write({**self.processes(), name: process})
        return process

    def stop(self, names: Iterable[str]) -> None:
        """Kill these and wait until they are gone; those not running are skipped."""
        listed = self.processes()
        doomed = [listed[name] for name in names if name in listed]
        kill({process.pid for process in doomed if process.alive()})
        self._write({name: process for name, process in listed.items() if process not in doomed})

    def _write(self, processes: Mapping[str, Process]) -> None:
        text = json.dumps(
            [{"name": p.name, "pid": p.pid, "started": p.started, "boot": p.boot} for p in processes.values()],
            indent=1,
        )
        fresh = self.path.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self.path)


def kill(pids: set[int]) -> None:
    """Kill these processes and wait until they are gone."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    wait_until(lambda: not any(_runs(pid) for pid in pids), what=f"processes {sorted(pids)} end", timeout_seconds=20)


def _runs(pid: int) -> bool:
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # one of our own children would stay as a zombie
    return start_ticks(pid) is not None


def inside(netns: Iterable[str]) -> set[int]:
    """Processes in these network namespaces, without our own ancestors and ourselves."""
    wanted = set()
    for name in netns:
        try:
            wanted.add((NETNS / name).stat().st_ino)
        except FileNotFoundError:
            continue
    return {pid for pid in _pids() if _netns_of(pid) in wanted} - _ancestors()


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _netns_of(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}/ns/net").stat().st_ino
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def _ancestors() -> set[int]:
    pid, found = os.getpid(), set()
    while pid > 0:
        found.add(pid)
        fields = _stat(pid)
        pid = int(fields[1]) if fields else 0
    return found
