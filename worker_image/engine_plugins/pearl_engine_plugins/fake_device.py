"""Plays the memory of a GPU on a machine that has none (vLLM's sleep frees nothing on a CPU).

The device is a directory. Each user of memory keeps one file in it, `{"bytes": n}`, and holds an exclusive `flock`
on it for as long as it lives. The kernel drops the lock when the process dies, however it dies, just as a driver
frees a dead process's memory; a reader sums the files that are still locked. Locks work across pods on one node.

`--worker-cls pearl_engine_plugins.fake_device.FakeDeviceWorker` makes a CPU engine such a user.
"""

import fcntl
import os
import uuid
from pathlib import Path
from typing import Any

DIRECTORY_VARIABLE = "PEARL_FAKE_DEVICE_DIR"
BYTES_VARIABLE = "PEARL_FAKE_DEVICE_BYTES"
SUFFIX = ".use"


class DeviceUse:
    """One user's share of the device; lives as long as its process or until `close`."""

    def __init__(self, directory: Path, used_bytes: int) -> None:
        """Create the share. Raises OSError when the directory cannot be written."""
        # The lock is taken before the file gets its name, so a reader never sees it unlocked.
        hidden = directory / f".{uuid.uuid4().hex}"
        self._file = hidden.open("w")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._path = hidden.with_name(hidden.name.removeprefix(".") + SUFFIX)
        self.set(used_bytes)
        hidden.rename(self._path)

    def set(self, used_bytes: int) -> None:
        """Change what this user holds."""
        # One write of a fixed length, so that a reader sees the old number or the new one.
        os.pwrite(self._file.fileno(), f'{{"bytes": {used_bytes:>20}}}\n'.encode(), 0)

    def close(self) -> None:
        """Give the share back."""
        self._path.unlink(missing_ok=True)
        self._file.close()


def _worker_class() -> type[Any]:
    from vllm.v1.worker.cpu_worker import CPUWorker  # noqa: PLC0415 - see __getattr__

    class FakeDeviceWorker(CPUWorker):
        """A CPU worker that holds fake device memory from load to exit, and none while asleep."""

        def load_model(self, *args: Any, **kwargs: Any) -> None:
            self._held_bytes = int(os.environ.get(BYTES_VARIABLE, str(1 << 30)))
            self._device_use = DeviceUse(Path(os.environ[DIRECTORY_VARIABLE]), self._held_bytes)
            super().load_model(*args, **kwargs)

        def sleep(self, level: int = 1) -> None:  # noqa: ARG002 - vLLM's signature
            self._device_use.set(0)

        def wake_up(self, tags: list[str] | None = None) -> None:  # noqa: ARG002 - vLLM's signature
            self._device_use.set(self._held_bytes)

    return FakeDeviceWorker


def __getattr__(name: str) -> Any:
    # vLLM is imported only in the process that asks for its worker class.
    if name == "FakeDeviceWorker":
        return _worker_class()
    raise AttributeError(name)
