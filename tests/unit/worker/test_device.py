"""Only the GPUs of the loan are read, and what cannot be read is unknown, never 0."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from pearl_worker.device import NvmlDevice, visible_gpus
from pearl_worker.settings import from_env

GIB = 1 << 30
NOT_AVAILABLE = (1 << 64) - 1


class NVMLError(Exception):
    pass


@dataclass
class PlayedNvml:
    """The calls of `pynvml` that are used, over a dict of UUID → bytes in use (an exception: it cannot be read)."""

    gpus: dict[str, Any]
    driver: str = ""
    starts: int = 0
    read: list[str] = field(default_factory=list)

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's names
        if self.driver:
            raise NVMLError(self.driver)
        self.starts += 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return list(self.gpus)[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid not in self.gpus:
            raise NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:  # noqa: N802
        self.read.append(handle)
        used = self.gpus[handle]
        if isinstance(used, Exception):
            raise used
        return SimpleNamespace(used=used, total=80 * GIB, free=0)


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("GPU-b,GPU-d", (2 * GIB, 4 * GIB)),
        (" GPU-d , GPU-b ", (4 * GIB, 2 * GIB)),
        ("MIG-x", (5,)),
        ("1", (2 * GIB,)),
        ("all", (1 * GIB, 2 * GIB, 3 * GIB, 4 * GIB, 5)),
        ("void", (1 * GIB, 2 * GIB, 3 * GIB, 4 * GIB, 5)),
        ("", (1 * GIB, 2 * GIB, 3 * GIB, 4 * GIB, 5)),
    ],
)
def test_reads_the_gpus_that_the_container_was_given(variable: str, expected: tuple[int, ...]) -> None:
    nvml = PlayedNvml({f"GPU-{name}": (number + 1) * GIB for number, name in enumerate("abcd")} | {"MIG-x": 5})
    settings = from_env({"PEARL_MODEL_URI": "/m", "PEARL_MODEL_NAME": "m", "NVIDIA_VISIBLE_DEVICES": variable})
    assert NvmlDevice(settings.visible_gpus, nvml).used_bytes() == expected
    assert len(nvml.read) == len(expected)  # what is not lent is not even looked at


@pytest.mark.parametrize(
    ("gpus", "named", "problem"),
    [
        ({"GPU-a": 1}, "GPU-z", "GPU-z is not visible in this container: Not Found"),
        ({"GPU-a": 1, "GPU-b": NVMLError("GPU is lost")}, "GPU-a,GPU-b", "GPU is lost"),
        ({"GPU-a": NVMLError("Not Supported")}, "GPU-a", "Not Supported"),  # a whole GPU in MIG mode
        ({"GPU-a": NOT_AVAILABLE}, "GPU-a", "bytes in use of"),
        ({"GPU-a": 1}, "0:1", "'0:1', which is no UUID and no index"),
        ({}, "", "no GPU is visible"),
    ],
)
def test_memory_that_cannot_be_read_is_unknown_and_says_why(gpus: dict[str, Any], named: str, problem: str) -> None:
    device = NvmlDevice(visible_gpus(named), PlayedNvml(gpus))
    assert device.used_bytes() is None
    assert problem in device.problem


def test_a_driver_that_comes_back_is_asked_anew() -> None:
    nvml = PlayedNvml({"GPU-a": 7}, driver="Driver Not Loaded")
    device = NvmlDevice(("GPU-a",), nvml)
    assert device.used_bytes() is None
    nvml.driver = ""
    assert device.used_bytes() == (7,)
    nvml.gpus["GPU-a"] = NVMLError("Uninitialized")
    assert device.used_bytes() is None
    nvml.gpus["GPU-a"] = 8
    assert (device.used_bytes(), nvml.starts) == ((8,), 2)
