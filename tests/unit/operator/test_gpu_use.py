"""When DCGM's series are asked for, and that nobody waits for them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from pearl_api.rollout import PrometheusSpec
from pearl_dev.virtual.clock import VirtualClock
from pearl_operator.dcgm import GpuSample, GpuUse
from pearl_operator.errors import Unavailable
from pearl_operator.gpu_use import GpuUseReader
from pearl_operator.ports import EngineSamples, RolloutKey

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.looptime
SPEC = PrometheusSpec(url="http://prometheus:9090")
FOUND = [GpuSample("rl/swe-w0-0", None, GpuUse(busy=0.5))]


@dataclass
class Prometheus:
    """Says when it was asked, and answers late."""

    found: list[GpuSample] = field(default_factory=list)
    late_seconds: float = 0.0
    error: Exception | None = None
    asked: list[float] = field(default_factory=list)

    async def gpus(self, *_: object) -> list[GpuSample]:
        self.asked.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.late_seconds)
        if self.error is not None:
            raise self.error
        return self.found

    async def engines(self, *_: object) -> EngineSamples:
        raise NotImplementedError


@pytest.fixture
def prometheus() -> Prometheus:
    return Prometheus()


@pytest.fixture
async def reader(prometheus: Prometheus) -> AsyncIterator[GpuUseReader]:
    found = GpuUseReader(RolloutKey("rl", "swe"), prometheus, VirtualClock())
    yield found
    found.close()


async def looks(reader: GpuUseReader, seconds: int, spec: PrometheusSpec | None = SPEC) -> list[GpuSample]:
    """What the last of these looks, one a second, knows."""
    known = []
    for _ in range(seconds):
        known = reader.newest(spec)
        await asyncio.sleep(1.0)
    return known


async def test_where_series_exist_they_are_asked_for_every_15_s(reader: GpuUseReader, prometheus: Prometheus) -> None:
    prometheus.found = FOUND
    assert await looks(reader, 61) == FOUND
    assert prometheus.asked == [0, 15, 30, 45, 60]


async def test_where_nobody_exports_any_the_pauses_grow_to_4_minutes(
    reader: GpuUseReader, prometheus: Prometheus
) -> None:
    assert await looks(reader, 3600) == []
    assert prometheus.asked[:6] == [0, 30, 90, 210, 450, 690]
    assert len(prometheus.asked) == 18
    prometheus.found = FOUND
    assert await looks(reader, 300) == FOUND
    assert prometheus.asked[-2] == prometheus.asked[-1] - 15


async def test_no_look_waits_and_the_next_one_has_the_answer(reader: GpuUseReader, prometheus: Prometheus) -> None:
    prometheus.found, prometheus.late_seconds = FOUND, 20.0
    before = asyncio.get_running_loop().time()
    assert reader.newest(SPEC) == []
    assert asyncio.get_running_loop().time() == before
    await looks(reader, 19)
    assert len(prometheus.asked) == 1, "one question at a time"
    assert await looks(reader, 3) == FOUND


async def test_what_is_known_holds_for_a_minute(reader: GpuUseReader, prometheus: Prometheus) -> None:
    prometheus.found = FOUND
    await looks(reader, 2)
    prometheus.error = Unavailable("Prometheus does not answer")
    assert await looks(reader, 57) == FOUND
    assert await looks(reader, 3) == []
    prometheus.error = None
    assert await looks(reader, 20) == FOUND


async def test_another_server_is_asked_at_once_and_the_former_ones_answer_is_dropped(
    reader: GpuUseReader, prometheus: Prometheus
) -> None:
    prometheus.found = FOUND
    await looks(reader, 5)
    prometheus.found = []
    other = PrometheusSpec(url="http://other:9090")
    assert reader.newest(other) == []
    await asyncio.sleep(0)
    assert prometheus.asked == [0, 5]
    assert await looks(reader, 600, None) == []
    assert len(prometheus.asked) == 2


async def test_a_bug_is_seen_by_the_next_look_and_does_not_stay(reader: GpuUseReader, prometheus: Prometheus) -> None:
    prometheus.error = KeyError("bug")
    reader.newest(SPEC)
    await asyncio.sleep(1.0)
    with pytest.raises(KeyError, match="bug"):
        reader.newest(SPEC)
    assert reader.newest(SPEC) == []


async def test_who_ends_asks_nothing_more(reader: GpuUseReader, prometheus: Prometheus) -> None:
    prometheus.late_seconds = 5.0
    reader.newest(SPEC)
    await asyncio.sleep(1.0)
    reader.close()
    await asyncio.sleep(0)
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("GPU use")] == []
