"""Device memory: NVML where there is a GPU, a directory that plays one where there is none."""

import fcntl
import importlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

_SUFFIX: Final = "*.use"


class FakeDevice:
    """One GPU: sums what living processes hold in a directory (`pearl_engine_plugins.fake_device` writes it)."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.problem = ""

    def used_bytes(self) -> tuple[int, ...] | None:
        """Bytes held by processes that are alive; None = the directory is gone."""
        if not self._directory.is_dir():
            self.problem = f"{self._directory} is no directory: mount the one that plays the GPU"
            return None
        return (sum(_live_bytes(path) for path in self._directory.glob(_SUFFIX)),)


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
    """GPUs read through NVML (package `nvidia-ml-py`).

    NVML tells of every process on a device, in whatever container, which is what a loan is about. It may also show
    devices that are not lent: in a privileged container it shows all of the node. So only the named ones are read.
    """

    def __init__(self, gpus: Sequence[str] | None = None, nvml: Any = None) -> None:
        """`gpus` are UUIDs (of GPUs or MIG instances) or indices; None = all that NVML shows. `nvml`: for tests."""
        self._gpus = gpus
        self._nvml = nvml
        self._started = False
        self.problem = ""

    def used_bytes(self) -> tuple[int, ...] | None:
        """Bytes in use on each GPU; None = one of them cannot be read, `problem` says why."""
        return self._read(lambda memory: int(memory.used))

    def total_bytes(self) -> tuple[int, ...] | None:
        """The size of each; None as above."""
        return self._read(lambda memory: int(memory.total))

    def _read(self, number: Callable[[Any], int]) -> tuple[int, ...] | None:
        try:
            return tuple(number(self._memory(handle)) for handle in self._handles())
        except Exception as error:  # noqa: BLE001 - no package, no driver, a lost GPU: unknown memory, never a crash
            self.problem = f"NVML: {error}"
            self._started = False  # the driver may have been restarted; the next reading begins anew
            return None

    def names(self) -> tuple[str, ...]:
        """What the GPUs are called, for reports; empty = unknown."""
        try:
            return tuple(_text(self._nvml.nvmlDeviceGetName(handle)) for handle in self._handles())
        except Exception as error:  # noqa: BLE001 - see above
            self.problem = f"NVML: {error}"
            return ()

    def _handles(self) -> list[Any]:
        if self._nvml is None:
            self._nvml = importlib.import_module("pynvml")
        if not self._started:
            self._nvml.nvmlInit()
            self._started = True
        if self._gpus is not None:
            return [self._handle(gpu) for gpu in self._gpus]
        count = self._nvml.nvmlDeviceGetCount()
        if count == 0:
            raise LookupError("no GPU is visible in this container")
        return [self._nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]

    def _handle(self, gpu: str) -> Any:
        if gpu.isdigit():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(gpu))
        if not gpu.startswith(("GPU-", "MIG-")):
            raise LookupError(f"NVIDIA_VISIBLE_DEVICES names {gpu!r}, which is no UUID and no index")
        try:
            return self._nvml.nvmlDeviceGetHandleByUUID(gpu)
        except Exception as error:
            raise LookupError(f"{gpu} is not visible in this container: {error}") from error

    def _memory(self, handle: Any) -> Any:
        # Of a whole GPU in MIG mode NVML tells an unprivileged reader nothing: an error, and so unknown.
        memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
        used, total = int(memory.used), int(memory.total)
        if not 0 <= used <= total:  # NVML's "not available" is the largest number there is
            raise LookupError(f"a GPU tells {used} bytes in use of {total}")
        return memory


def visible_gpus(variable: str) -> tuple[str, ...] | None:
    """The GPUs that `NVIDIA_VISIBLE_DEVICES` names; None = whatever the container was given.

    `all` and `void` name none: `void` is what the container gets whose devices come by CDI (a ResourceClaim).
    """
    names = tuple(name.strip() for name in variable.split(",") if name.strip())
    return None if not names or names[0] in ("all", "void", "none") else names


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
