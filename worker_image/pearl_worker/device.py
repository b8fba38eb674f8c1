"""Device memory: NVML where there is a GPU, a directory that plays one where there is none."""

import fcntl
import importlib
import json
from pathlib import Path
from typing import Any

_SUFFIX = "*.use"


class FakeDevice:
    """Sums what living processes hold in a directory (`pearl_engine_plugins.fake_device` writes it)."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def used_bytes(self) -> int | None:
        """Bytes held by processes that are alive; None = the directory is gone."""
        if not self._directory.is_dir():
            return None
        return sum(_live_bytes(path) for path in self._directory.glob(_SUFFIX))


def _live_bytes(path: Path) -> int:
    # The owner holds an exclusive lock as long as it lives; the kernel drops it with the process.
    try:
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(json.loads(file.read())["bytes"])
            path.unlink(missing_ok=True)
    except FileNotFoundError:
        pass  # its owner just closed it
    return 0


class NvmlDevice:
    """The GPUs that this container sees, read through NVML (package `nvidia-ml-py`)."""

    def __init__(self) -> None:
        try:
            self._nvml: Any = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
        except Exception as error:  # noqa: BLE001 - no package, no driver: unknown memory, never a crash
            self._nvml = None
            self.problem = str(error)

    def used_bytes(self) -> int | None:
        """Bytes in use on all visible GPUs; None = NVML is not there or failed."""
        if self._nvml is None:
            return None
        try:
            handles = [self._nvml.nvmlDeviceGetHandleByIndex(i) for i in range(self._nvml.nvmlDeviceGetCount())]
            return sum(int(self._nvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in handles)
        except self._nvml.NVMLError:
            return None
