"""The Lease on virtual time: one holder, fenced writes, takeover of a silent one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from pearl_operator import kinds
from pearl_operator.errors import Unavailable
from pearl_operator.fence import FencedKube
from pearl_operator.lease import Lease, LeaseLost

if TYPE_CHECKING:
    from fake_cluster import World

pytestmark = pytest.mark.looptime

SECONDS = 12.0


def lease_of(world: World, identity: str) -> Lease:
    return Lease(world.kube, world.kube.clock, "rl", "pearl-operator", identity, SECONDS)


async def test_a_second_one_waits_for_a_silent_holder_and_not_for_its_clock(world: World) -> None:
    first, second = lease_of(world, "one"), lease_of(world, "two")
    await first.acquire()
    holding = asyncio.create_task(first.hold())
    waiting = asyncio.create_task(second.acquire())
    await asyncio.sleep(100)
    assert not waiting.done(), "the first renews"

    holding.cancel()
    silent_at = world.kube.clock.monotonic()
    await waiting
    waited = world.kube.clock.monotonic() - silent_at
    assert SECONDS * 3 / 4 <= waited <= 2 * SECONDS, "counted from the last renewal"
    assert first.remaining_seconds() <= 0, "the first one knows that it may not write any more"
    assert second.remaining_seconds() > 0


async def test_a_released_lease_is_taken_at_once(world: World) -> None:
    first, second = lease_of(world, "one"), lease_of(world, "two")
    await first.acquire()
    await first.release()
    before = world.kube.clock.monotonic()
    await second.acquire()
    assert world.kube.clock.monotonic() == before


async def test_who_lost_the_lease_ends(world: World) -> None:
    first = lease_of(world, "one")
    await first.acquire()
    world.kube.patch(kinds.LEASE, "pearl-operator", "rl", {"spec": {"holderIdentity": "two"}})
    with pytest.raises(LeaseLost, match="held by 'two'"):
        await first.hold()


async def test_who_cannot_renew_in_time_ends(world: World) -> None:
    first = lease_of(world, "one")
    await first.acquire()
    world.kube.down = True
    before = world.kube.clock.monotonic()
    with pytest.raises(LeaseLost):
        await first.hold()
    assert world.kube.clock.monotonic() - before == pytest.approx(SECONDS)


async def test_a_write_that_the_lease_would_not_outlast_is_not_sent(world: World) -> None:
    lease = lease_of(world, "one")
    await lease.acquire()
    fenced = FencedKube(world.kube, lease, call_seconds=5.0)
    body = {"metadata": {"name": "x", "namespace": "rl"}}
    await asyncio.sleep(SECONDS - 6)
    await fenced.create(kinds.SERVICE, body)
    await asyncio.sleep(2)
    for write in (
        fenced.create(kinds.SERVICE, body),
        fenced.apply(kinds.SERVICE, body, manager="pearl"),
        fenced.apply_status(kinds.ROLLOUT, body, manager="pearl"),
        fenced.delete(kinds.SERVICE, "x", "rl"),
    ):
        with pytest.raises(Unavailable, match="not sent"):
            await write
    assert await fenced.get(kinds.SERVICE, "x", "rl") is not None
