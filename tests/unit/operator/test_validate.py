"""The last look before a deletion: what changed since the decision stops it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pearl_api import names
from pearl_operator import kinds, validate
from pearl_operator.errors import Conflict
from pearl_planner.types import Activity, DeleteWorker

if TYPE_CHECKING:
    from fake_cluster import World

    from pearl_operator.look import Look
    from pearl_operator.sources import Sources

pytestmark = pytest.mark.looptime


async def a_drained_worker(world: World) -> tuple[DeleteWorker, Look, Sources]:
    """A look at three workers, `swe-w1-0` of which is drained and to be deleted; the operator is stopped."""
    loop, look = await world.decided()
    label = {"metadata": {"labels": {names.LABEL_ACTIVITY: "draining"}}}
    world.kube.patch(kinds.POD, "swe-w1-0", "rl", label)
    workers = tuple(
        replace(worker, activity=Activity.DRAINING, draining_seconds=5.0) if worker.slot == 1 else worker
        for worker in look.snapshot.workers
    )
    look = replace(look, snapshot=replace(look.snapshot, workers=workers))
    return DeleteWorker(world.uids["swe-w1-0"], "swe-w1-0", 1), look, loop.parts.sources


async def test_a_drained_worker_may_go(world: World) -> None:
    action, look, sources = await a_drained_worker(world)
    pod = await validate.deletion(action, look, world.kube, sources)
    assert pod is not None
    assert pod.address.uid == action.uid


async def test_not_with_a_request_that_came_after_the_decision(world: World) -> None:
    action, look, sources = await a_drained_worker(world)
    world.gateway.in_flight["swe-w1-0"] = 1
    with pytest.raises(Conflict, match="not drained"):
        await validate.deletion(action, look, world.kube, sources)


async def test_not_while_nobody_can_count_its_requests(world: World) -> None:
    action, look, sources = await a_drained_worker(world)
    world.gateway.down = True
    with pytest.raises(Conflict, match="not drained"):
        await validate.deletion(action, look, world.kube, sources)


async def test_past_the_drain_deadline_it_goes_all_the_same(world: World) -> None:
    action, look, sources = await a_drained_worker(world)
    world.gateway.in_flight["swe-w1-0"] = 1
    workers = tuple(replace(worker, draining_seconds=20.0) for worker in look.snapshot.workers)
    overdue = replace(look, snapshot=replace(look.snapshot, workers=workers))
    assert await validate.deletion(action, overdue, world.kube, sources) is not None


async def test_not_when_it_was_made_active_again(world: World) -> None:
    action, look, sources = await a_drained_worker(world)
    label = {"metadata": {"labels": {names.LABEL_ACTIVITY: "active"}}}
    world.kube.patch(kinds.POD, "swe-w1-0", "rl", label)
    with pytest.raises(Conflict, match="not drained"):
        await validate.deletion(action, look, world.kube, sources)


async def test_not_for_a_spec_that_changed(world: World) -> None:
    action, look, sources = await a_drained_worker(world)
    world.apply(capacity={"reserved": {"gpus": 4}})
    with pytest.raises(Conflict, match="changed since the decision"):
        await validate.deletion(action, look, world.kube, sources)


async def test_another_pod_of_the_same_name_is_not_meant(world: World) -> None:
    action, look, sources = await a_drained_worker(world)
    body = world.pods["swe-w1-0"]
    world.kube.vanish(kinds.POD, "swe-w1-0", "rl")
    await asyncio.sleep(1)
    world.kube.store(kinds.POD, body)
    assert await validate.deletion(action, look, world.kube, sources) is None
