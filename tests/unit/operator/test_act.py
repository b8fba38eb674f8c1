"""Single actions against a cluster that is not what the index says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pearl_api import names
from pearl_operator import kinds
from pearl_operator.errors import Conflict
from pearl_planner.types import Activity, CreateWorker, Role, SetActivity, SetRole, Slot, Zone

if TYPE_CHECKING:
    from fake_cluster import World

    from pearl_operator.act import Actor
    from pearl_operator.look import Look

pytestmark = pytest.mark.looptime


async def scene(world: World) -> tuple[Actor, Look]:
    """Three ready workers; the loop is stopped, its actor still works on its (now stale) index."""
    loop, look = await world.decided()
    return loop.parts.actor, look


async def test_sleep_is_labelled_first_and_then_asked_of_the_agent(world: World) -> None:
    actor, look = await scene(world)
    uid = world.uids["swe-w0-0"]
    await actor.carry_out(SetActivity(uid, "swe-w0-0", Activity.ASLEEP), look)
    assert world.pods["swe-w0-0"]["metadata"]["labels"][names.LABEL_ACTIVITY] == "asleep"
    assert world.pods["swe-w0-0"]["metadata"]["labels"][names.LABEL_ROLE] == "colocated"
    assert world.agents.asked == [("swe-w0-0", "asleep")]


async def test_draining_is_routing_and_no_call_to_the_agent(world: World) -> None:
    actor, look = await scene(world)
    await actor.carry_out(SetActivity(world.uids["swe-w0-0"], "swe-w0-0", Activity.DRAINING), look)
    assert world.pods["swe-w0-0"]["metadata"]["labels"][names.LABEL_ACTIVITY] == "draining"
    assert world.agents.asked == []


async def test_a_role_for_a_pod_that_was_replaced_goes_to_nobody(world: World) -> None:
    actor, look = await scene(world)
    old, body = world.uids["swe-w0-0"], world.pods["swe-w0-0"]
    world.kube.vanish(kinds.POD, "swe-w0-0", "rl")
    world.kube.store(kinds.POD, body)
    with pytest.raises(Conflict):
        await actor.carry_out(SetRole(old, "swe-w0-0", Role.PREFILL, 9), look)
    assert world.roles["swe-w0-0"] == "colocated"
    assert old not in {pod.address.uid for pod in actor.index.pods.values()}, "and the index has learned it"


async def test_a_pod_that_exists_already_is_taken_over_and_not_made_twice(world: World) -> None:
    actor, look = await scene(world)
    before = world.uids
    actor.index.forget(kinds.POD, ("rl", "swe-w1-0"))
    await actor.carry_out(CreateWorker(Slot(1, Zone.RESERVED, Role.COLOCATED, 0)), look)
    assert world.uids == before
    assert ("rl", "swe-w1-0") in actor.index.pods


async def test_a_strangers_pod_of_that_name_is_not_taken_over(world: World) -> None:
    actor, look = await scene(world)
    world.kube.store(kinds.POD, {"metadata": {"name": "swe-w3-0", "namespace": "rl", "labels": {}}})
    with pytest.raises(Conflict, match="belongs to something else"):
        await actor.carry_out(CreateWorker(Slot(3, Zone.RESERVED, Role.COLOCATED, 0)), look)
