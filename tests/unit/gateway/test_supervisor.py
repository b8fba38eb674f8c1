"""The supervisor with processes that do what a test wants: they fail, hang, or end as they are told."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

import pytest
from several_processes import until

from pearl_gateway.processes import backoff, supervisor
from pearl_gateway.processes.status import Status, read_status
from pearl_gateway.processes.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FAILS = "raise SystemExit(3)"
HANGS = """
import os, socket, sys, time
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
listening = socket.socket(socket.AF_UNIX)
path = f"{options['--folder']}/{options['--process']}.sock"
if os.path.exists(path):
    os.unlink(path)
listening.bind(path)
listening.listen()
first, _ = listening.accept()
first.recv(100)
first.sendall(b"HTTP/1.1 200 OK\\r\\n\\r\\n")
time.sleep(600)
"""
NOTES = """
import signal, sys, time
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
told = 0
def end(*_):
    global told
    told += 1
    if options["--process"] == "0" and told == 1:
        return
    open(OUT, "a").write(options["--process"])
    raise SystemExit(0)
signal.signal(signal.SIGTERM, end)
open(f"{OUT}.{options['--process']}", "w").close()
while True:
    time.sleep(600)
"""


@pytest.fixture
def supervise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str, int], Supervisor]:
    monkeypatch.setattr(backoff, "_FIRST_SECONDS", 0.001)
    monkeypatch.setattr(backoff, "_LONGEST_SECONDS", 0.01)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def make(script: str, processes: int) -> Supervisor:
        command = [sys.executable, "-S", "-c", script]
        return Supervisor(command=command, reserved=socket.socket(), processes=processes)

    return make


async def test_a_process_that_cannot_be_kept_ends_the_gateway_with_an_error(
    supervise: Callable[[str, int], Supervisor],
) -> None:
    supervised = supervise(FAILS, 2)
    async with asyncio.timeout(600):
        assert await supervised.run() == 1
    assert not supervised.folder.exists()


async def test_a_process_that_hangs_is_killed_and_started_again(
    supervise: Callable[[str, int], Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(supervisor, "_ANSWER_SECONDS", 0.3)
    supervised = supervise(HANGS, 1)
    running = asyncio.ensure_future(supervised.run())

    def status() -> Status:
        return read_status(supervised.folder)

    await until(lambda: status().pids[0] is not None)
    first = status().pids[0]
    await until(lambda: status().restarts == (1,) and status().pids[0] is not None)
    assert status().pids[0] != first
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(600):
        assert await running == 0


async def test_all_end_with_it_and_the_owner_last(supervise: Callable[[str, int], Supervisor], tmp_path: Path) -> None:
    out = tmp_path / "out"
    supervised = supervise(f"OUT = {str(out)!r}\n{NOTES}", 3)
    running = asyncio.ensure_future(supervised.run())
    await until(lambda: all((tmp_path / f"out.{at}").exists() for at in range(3)))
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(600):
        assert await running == 0
    assert sorted(out.read_text()) == ["0", "1", "2"]
    assert out.read_text()[-1] == "0"
