"""`pearl_reaction_seconds`: what the operator itself takes from a change to the writes that answer it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import generate_latest

from pearl_dev.virtual.clock import VirtualClock
from pearl_operator import kinds
from pearl_operator.ports import RolloutKey
from pearl_operator.reaction import Reaction, TimedKube

if TYPE_CHECKING:
    from fake_cluster import World

    from pearl_operator.kinds import Kind
    from pearl_operator.metrics import Metrics

pytestmark = pytest.mark.looptime
POD = {"metadata": {"name": "a", "namespace": "rl"}}


class SlowKube:
    """Every call takes 4 s."""

    async def create(self, _: Kind, body: Any) -> Any:
        await asyncio.sleep(4)
        return body

    async def get(self, *_: object) -> None:
        await asyncio.sleep(4)


class Loop:
    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.reaction = Reaction(VirtualClock(), self.seconds.append)
        self.kube = TimedKube(SlowKube(), self.reaction)  # type: ignore[arg-type]


@pytest.fixture
def loop() -> Loop:
    return Loop()


async def test_each_write_counts_without_what_the_api_server_was_waited_for(loop: Loop) -> None:
    loop.reaction.woken()
    await asyncio.sleep(1)
    loop.reaction.begins()
    await loop.kube.get(kinds.POD, "a", "rl")
    assert loop.seconds == [], "a read is no answer"
    await loop.kube.create(kinds.POD, POD)
    await asyncio.sleep(0.5)
    await loop.kube.create(kinds.POD, POD)
    loop.reaction.ends()
    assert loop.seconds == [1.0, 1.5]


async def test_calls_at_the_same_time_are_waited_for_once(loop: Loop) -> None:
    loop.reaction.woken()
    loop.reaction.begins()
    first = asyncio.create_task(loop.kube.create(kinds.POD, POD))
    await asyncio.sleep(3)
    await asyncio.gather(first, loop.kube.create(kinds.POD, POD))
    await asyncio.sleep(1)
    await loop.kube.create(kinds.POD, POD)
    loop.reaction.ends()
    assert loop.seconds == [0.0, 0.0, 1.0]


async def test_a_change_during_a_look_is_answered_by_the_next_one(loop: Loop) -> None:
    loop.reaction.begins()
    call = asyncio.create_task(loop.kube.get(kinds.POD, "a", "rl"))
    await asyncio.sleep(3)
    loop.reaction.woken()
    await call
    await asyncio.sleep(2)
    await loop.kube.create(kinds.POD, POD)
    loop.reaction.ends()
    assert loop.seconds == [], "this look knew nothing of it"

    loop.reaction.begins()
    await loop.kube.create(kinds.POD, POD)
    assert loop.seconds == [2.0], "neither the rest of the read nor the write of the look before is its own"


async def test_a_look_that_fails_leaves_the_change_to_the_next_one(loop: Loop) -> None:
    loop.reaction.woken()
    loop.reaction.begins()
    await asyncio.sleep(1)
    loop.reaction.woken()
    loop.reaction.begins()
    await loop.kube.create(kinds.POD, POD)
    loop.reaction.ends()
    assert loop.seconds == [1.0]


async def test_a_write_that_no_change_led_to_is_no_reaction(loop: Loop) -> None:
    loop.reaction.begins()
    await loop.kube.create(kinds.POD, POD)
    loop.reaction.woken()
    loop.reaction.ends()
    loop.reaction.begins()
    loop.reaction.ends()
    loop.reaction.begins()
    await loop.kube.create(kinds.POD, POD)
    assert loop.seconds == []


async def test_a_lost_pod_is_reacted_to_at_once_and_a_rollout_that_goes_takes_its_series_along(world: World) -> None:
    world.apply()
    await world.start()
    await world.until(world.is_ready)
    assert world.core is not None
    metrics = world.core.metrics
    before = reactions(metrics)
    world.kube.remove(kinds.POD, "swe-w1-0", "rl")
    await world.until(lambda: "swe-w1-1" in world.pods)
    after = reactions(metrics)
    assert after["+Inf"] > before["+Inf"]
    assert after["0.05"] - before["0.05"] == after["+Inf"] - before["+Inf"]
    metrics.forget(RolloutKey("rl", "swe"))
    assert reactions(metrics) == {}
    await world.stop()


def reactions(metrics: Metrics) -> dict[str, float]:
    """Observations by bound."""
    lines = [line for line in generate_latest(metrics.registry).decode().splitlines() if "reaction_seconds_b" in line]
    return {line.split('le="')[1].split('"')[0]: float(line.rsplit(" ", 1)[1]) for line in lines}
