"""The processes of pods as this machine sees them: found by pod UID, stopped, killed, cut off from addresses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from pearl_dev.shell import run, succeeds

if TYPE_CHECKING:
    import signal


def of_pod(uid: str) -> dict[int, int]:
    """Process id here → process id in its container, of all processes of a pod but its sandbox's."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and uid in _read(entry / "cgroup") and _read(entry / "comm").strip() != "pause":
            inside = _field(entry / "status", "NSpid")
            if inside:
                found[int(entry.name)] = int(inside[-1])
    return found


def first_of(uid: str) -> int | None:
    """The container's first process; None while there is none."""
    return next((pid for pid, inside in of_pod(uid).items() if inside == 1), None)


def with_arguments(uid: str, *words: str) -> list[int]:
    """Processes of a pod whose arguments hold these words, one after the other."""
    wanted = "".join(f"{word}\0" for word in words)
    return [pid for pid in of_pod(uid) if wanted in _read(Path(f"/proc/{pid}/cmdline"))]


def sandbox_of(uid: str) -> int | None:
    """The pod's sandbox, which lives as long as its network namespace."""
    mine = (e for e in Path("/proc").iterdir() if e.name.isdigit() and uid in _read(e / "cgroup"))
    return next((int(e.name) for e in mine if _read(e / "comm").strip() == "pause"), None)


def group_of(uid: str, leader_inside: int) -> list[int]:
    """Processes here of the group that this process leads in its container."""
    pids = of_pod(uid)
    leader = next((pid for pid, inside in pids.items() if inside == leader_inside), None)
    if leader is None:
        return []
    return [pid for pid in pids if os.getsid(pid) == os.getsid(leader)]


def send(pids: list[int], number: signal.Signals) -> None:
    """A signal to each that still runs."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def cut(pid: int, address: str) -> bool:
    """Drop what the network namespace of `pid` sends to an address; answers get lost, so nothing arrives."""
    return succeeds([*_network_of(pid), "route", "add", "blackhole", f"{address}/32"])


def mend(pid: int, address: str) -> bool:
    """Undo `cut`; False where the namespace is gone, and the cut with it."""
    return succeeds([*_network_of(pid), "route", "del", "blackhole", f"{address}/32"])


def build_clock(target: Path) -> Path:
    """Compile `clock.c`."""
    run(["gcc", "-shared", "-fPIC", "-O2", "-o", target, Path(__file__).with_name("clock.c")])
    target.chmod(0o755)
    return target


def _network_of(pid: int) -> list[str]:
    return ["nsenter", "--target", str(pid), "--net", "ip"]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it just ended
        return ""


def _field(path: Path, name: str) -> list[str]:
    line = next((line for line in _read(path).splitlines() if line.startswith(f"{name}:")), "")
    return line.split()[1:]
