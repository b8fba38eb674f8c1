"""Virtual time jumps to what happens next, and keeps a pace where one is wanted."""

from __future__ import annotations

import asyncio
import time

import pytest

from pearl_dev.virtual.clock import VirtualClock, VirtualLoop


def run(loop: VirtualLoop, seconds: float) -> float:
    """Virtual time after so many seconds of it."""

    async def wait() -> float:
        await asyncio.sleep(seconds)
        return VirtualClock().monotonic()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(wait())


def test_a_day_passes_at_once() -> None:
    began = time.monotonic()
    assert run(VirtualLoop(), 86_400.0) == pytest.approx(86_400.0)
    assert time.monotonic() - began < 5.0


def test_at_60_times_the_pace_an_hour_takes_a_minute() -> None:
    slept: list[float] = []
    assert run(VirtualLoop(60.0, slept.append), 3600.0) == pytest.approx(3600.0)
    assert sum(slept) == pytest.approx(60.0, abs=1.0)


def test_what_would_wait_for_ever_fails() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner, pytest.raises(RuntimeError, match="nothing will ever"):
        runner.run(wait())
