from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pearl_trainer import ConfigurationError
from pearl_trainer.gpus import TOLERANCE_BYTES, MemoryProbe, check_uuids, gpu_uuids


def test_uuids_of_the_device_plugin_are_taken_as_they_are() -> None:
    assert gpu_uuids("GPU-1, GPU-2") == ("GPU-1", "GPU-2")


@pytest.mark.parametrize("visible", [None, "all", "void", "0,1"])
def test_without_uuids_the_error_says_what_to_pass(visible: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigurationError, match=r'pass gpus=\["GPU-'):
        gpu_uuids(visible)


def test_torch_is_asked_only_where_the_trainer_has_started_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    cuda: Any = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 2,
        get_device_properties=lambda index: SimpleNamespace(uuid=f"aaaa-{index}"),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert gpu_uuids("all") == ("GPU-aaaa-0", "GPU-aaaa-1")
    cuda.is_initialized = lambda: False
    with pytest.raises(ConfigurationError):
        gpu_uuids("all")


@pytest.mark.parametrize("bad", [[], ["0"], ["GPU-1", "GPU-1"], ["MIG-1"]])
def test_given_uuids_are_checked(bad: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="gpus is"):
        check_uuids(bad)


def test_memory_is_free_near_its_baseline_and_unknown_without_one() -> None:
    used: list[tuple[int, ...] | None] = [None]
    probe = MemoryProbe(lambda: used[0])
    probe.remember()
    used[0] = (5, 5)
    assert probe.free() is None
    probe.remember()
    used[0] = (5, 5 + TOLERANCE_BYTES)
    assert probe.free() is True
    used[0] = (5, 6 + TOLERANCE_BYTES)
    assert probe.free() is False
    used[0] = (5,)  # one of them cannot be read any more
    assert probe.free() is None
    used[0] = None
    assert probe.free() is None
