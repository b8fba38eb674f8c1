"""Which GPUs this pod holds, and whether their memory is free, without ever starting a CUDA context by itself."""

from __future__ import annotations

import importlib
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pearl_trainer.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

TOLERANCE_BYTES = 2 << 30
"""A sleeping engine keeps its CUDA context and some workspace; more than this above the baseline is in use."""


@dataclass(frozen=True)
class FoundGpus:
    """UUIDs of whole GPUs and who told them."""

    uuids: tuple[str, ...]
    source: str

    def __str__(self) -> str:
        return f"{', '.join(self.uuids)} (from {self.source})"


def find_gpus(visible_devices: str | None) -> FoundGpus:
    """The pod's GPUs: from the device plugin's variable, else from NVML, else from torch.

    Args:
        visible_devices: Value of `NVIDIA_VISIBLE_DEVICES`.

    Raises:
        ConfigurationError: none of them tells.
    """
    listed = tuple(part.strip() for part in (visible_devices or "").split(",") if part.strip())
    if listed and all(part.startswith("GPU-") for part in listed):
        return FoundGpus(listed, "NVIDIA_VISIBLE_DEVICES")
    for source, look in (("NVML", _from_nvml), ("torch", _from_torch)):
        found = look()
        if found:
            return FoundGpus(found, source)
    raise ConfigurationError(
        f"cannot tell which GPUs this pod holds: NVIDIA_VISIBLE_DEVICES is {visible_devices or 'not set'}, and neither "
        'NVML (package nvidia-ml-py) nor torch reports one; pass gpus=["GPU-…", …] to register()'
    )


def gpu_uuids(visible_devices: str | None) -> tuple[str, ...]:
    """As `find_gpus`, without who told."""
    return find_gpus(visible_devices).uuids


def check_uuids(gpus: Sequence[str]) -> tuple[str, ...]:
    """The given UUIDs; raises ConfigurationError where one is no UUID or comes twice."""
    wrong = [gpu for gpu in gpus if not (isinstance(gpu, str) and gpu.startswith("GPU-"))]
    if not gpus or wrong:
        raise ConfigurationError(
            f"gpus is {list(gpus)!r}: pass the UUIDs of whole GPUs, as `nvidia-smi -L` prints them (GPU-…)"
        )
    if len(set(gpus)) != len(gpus):
        raise ConfigurationError(f"gpus is {list(gpus)!r}: name each GPU once")
    return tuple(gpus)


def driver_version() -> str | None:
    """Version of the NVIDIA driver; None where NVML cannot tell."""
    with _nvml() as nvml:
        return None if nvml is None else _text(nvml.nvmlSystemGetDriverVersion())


def _from_nvml() -> tuple[str, ...]:
    with _nvml() as nvml:
        if nvml is None:
            return ()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        return tuple(_text(nvml.nvmlDeviceGetUUID(handle)) for handle in handles)


@contextmanager
def _nvml() -> Iterator[Any]:
    """NVML, started; None without the package or a driver."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        yield None
        return
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        yield None
        return
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _from_torch() -> tuple[str, ...]:
    cuda = _loaded_cuda()
    if cuda is None:
        return ()
    properties = [cuda.get_device_properties(index) for index in range(cuda.device_count())]
    return tuple(f"GPU-{item.uuid}" for item in properties if hasattr(item, "uuid"))


def _loaded_cuda() -> Any:
    """`torch.cuda` where the trainer has already started it; this module never does."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return torch.cuda


def used_bytes() -> tuple[int, ...] | None:
    """Device-wide used memory of each visible GPU, by every process; None where it cannot be read."""
    cuda = _loaded_cuda()
    if cuda is None:
        return None
    readings = (cuda.mem_get_info(index) for index in range(cuda.device_count()))
    return tuple(total - free for free, total in readings)


class MemoryProbe:
    """Compares the devices' used memory with what it was when the loan was offered."""

    def __init__(self, read: Callable[[], tuple[int, ...] | None] = used_bytes) -> None:
        self._read = read
        self._baseline: tuple[int, ...] | None = None

    def remember(self) -> None:
        """Take the present reading as the baseline: the trainer is offloaded, no borrower is awake."""
        self._baseline = self._read()

    def free(self) -> bool | None:
        """Whether memory is back near the baseline; None = cannot tell."""
        now = self._read()
        if now is None or self._baseline is None or len(now) != len(self._baseline):
            return None
        return all(used <= before + TOLERANCE_BYTES for used, before in zip(now, self._baseline))
