"""Engine processes and the played device, with real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pearl_worker.device import FakeDevice
from pearl_worker.engine_command import EngineCommand
from pearl_worker.engine_process import GroupLauncher, Reaper
from pearl_worker.ports import EngineFaultError

PLUGINS = Path(__file__).parents[3] / "worker_image" / "engine_plugins"
USER = """
import sys, time
from pathlib import Path
from pearl_engine_plugins.fake_device import DeviceUse
use = DeviceUse(Path(sys.argv[1]), 700)
print("up", flush=True)
for line in sys.stdin:
    use.set(int(line))
    print("set", flush=True)
"""


def launcher(tmp_path: Path, *argv: str) -> GroupLauncher:
    reaper = Reaper()
    reaper.install(asyncio.get_running_loop())
    client: Any = None
    return GroupLauncher(reaper, lambda _: EngineCommand(argv, os.environ), lambda _: client, tmp_path)


def alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


async def test_kill_ends_the_whole_group_and_leaves_no_zombie(tmp_path: Path) -> None:
    script = "import subprocess, time; subprocess.Popen(['sleep', '100']); open('up', 'w'); time.sleep(100)"
    process = await launcher(tmp_path, sys.executable, "-c", script).launch()
    async with asyncio.timeout(10):
        while not (tmp_path / "up").exists():  # noqa: ASYNC110 - a real process
            await asyncio.sleep(0.01)
        await process.kill()
    assert await process.wait() == -signal.SIGKILL
    assert not alive(process.pid)


async def test_the_end_of_the_leader_is_noticed_while_its_children_live(tmp_path: Path) -> None:
    process = await launcher(tmp_path, "sh", "-c", "sleep 100 & exit 3").launch()
    async with asyncio.timeout(10):
        assert await process.wait() == 3
        assert alive(process.pid)
        await process.kill()
    assert not alive(process.pid)


async def test_a_missing_interpreter_is_a_fault_of_the_engine(tmp_path: Path) -> None:
    with pytest.raises(EngineFaultError, match="cannot be started"):
        await launcher(tmp_path, str(tmp_path / "absent")).launch()


def test_the_played_device_forgets_a_killed_user(tmp_path: Path) -> None:
    device = FakeDevice(tmp_path)
    assert device.used_bytes() == (0,)
    with subprocess.Popen(
        [sys.executable, "-c", USER, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(PLUGINS)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as user:
        assert user.stdout is not None
        assert user.stdin is not None
        assert user.stdout.readline() == "up\n"
        assert device.used_bytes() == (700,)
        user.stdin.write("42\n")
        user.stdin.flush()
        assert user.stdout.readline() == "set\n"
        assert device.used_bytes() == (42,)
        user.kill()
    assert device.used_bytes() == (0,)
    assert FakeDevice(tmp_path / "absent").used_bytes() is None
