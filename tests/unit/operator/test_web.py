"""Health by the age of watches and loops; metrics and recorded decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from fastapi import APIRouter
from httpx import ASGITransport, AsyncClient

from pearl_operator.health import Health
from pearl_operator.lease import Lease
from pearl_operator.resync import Resync
from pearl_operator.settings import Settings
from pearl_operator.web import WebParts, build_app
from pearl_planner.plan import plan
from pearl_planner.serialize import dumps, policy_from_json, snapshot_from_json

if TYPE_CHECKING:
    from fake_cluster import World

pytestmark = pytest.mark.looptime


async def client_of(world: World) -> tuple[AsyncClient, Resync, Lease]:
    assert world.core is not None
    core, clock = world.core, world.kube.clock
    lease = Lease(world.kube, clock, "rl", "pearl-operator", "one", 15.0)
    settings = Settings(namespace="rl", gateway_image="x", cluster_scoped=False)
    resync = Resync(world.kube, core.index, clock, settings)
    health = Health(clock, core.index, core.supervisor, lease, resync)
    app = build_app(WebParts(health, core.metrics, core.ring, "rl", APIRouter()))
    return AsyncClient(transport=ASGITransport(app=app), base_url="http://operator"), resync, lease


async def test_ready_once_it_holds_the_lease_and_has_seen_the_cluster(world: World) -> None:
    await world.start()
    client, resync, lease = await client_of(world)
    assert (await client.get("/readyz")).status_code == 503
    await lease.acquire()
    assert (await client.get("/readyz")).status_code == 503
    await resync.once()
    assert (await client.get("/readyz")).status_code == 200
    await world.stop()


async def test_unhealthy_when_watches_are_silent_or_a_loop_hangs(world: World) -> None:
    world.apply()
    await world.start()
    await world.until(world.is_ready)
    assert world.core is not None
    client, resync, _ = await client_of(world)
    world.core.index.touch()
    assert (await client.get("/healthz")).status_code == 200

    await world.rest(121)
    answer = await client.get("/healthz")
    assert (answer.status_code, answer.text) == (503, "no watch event for 121 s")

    world.core.index.touch()
    resync.repairs = {"pods": 3}
    assert "the watch of pods missed changes" in (await client.get("/healthz")).text
    resync.repairs = {}
    next(iter(world.core.supervisor.loops.values())).turned_at -= 200
    assert "the loop of rl/swe hangs" in (await client.get("/healthz")).text
    await world.stop()


async def test_metrics_and_decisions_can_be_read_and_decisions_repeated(world: World) -> None:
    world.apply()
    await world.start()
    await world.until(world.is_ready)
    client, _, _ = await client_of(world)
    text = (await client.get("/metrics")).text
    assert 'pearl_workers_serving{rollout="swe",rollout_namespace="rl"} 3.0' in text
    assert 'pearl_actions_total{action="CreateWorker",rollout="swe",rollout_namespace="rl"} 3.0' in text
    ready = 'pearl_condition{rollout="swe",rollout_namespace="rl",status="%s",type="Ready"}'
    assert f"{ready % 'True'} 1.0" in text
    assert f"{ready % 'False'} 0.0" in text

    decisions = (await client.get("/debug/snapshot/swe")).json()
    assert len(decisions) > 1
    for each in decisions:
        again = plan(snapshot_from_json(each["snapshot"]), policy_from_json(each["policy"]))
        assert dumps(again) == dumps(each["plan"])
    assert (await client.get("/debug/snapshot/nobody")).status_code == 404

    await world.stop()


async def test_looks_count_from_zero_where_none_ends_well(world: World) -> None:
    world.apply()
    await world.start()
    world.kube.down = True
    await world.rest(60)
    client, _, _ = await client_of(world)
    text = (await client.get("/metrics")).text
    assert 'pearl_look_seconds_count{rollout="swe",rollout_namespace="rl"} 0.0' in text
    assert 'pearl_look_failures_total{error="Unavailable",rollout="swe",rollout_namespace="rl"}' in text
    await world.stop()


async def test_series_of_a_rollout_go_with_it(world: World) -> None:
    world.apply()
    await world.start()
    await world.until(world.is_ready)
    client, _, _ = await client_of(world)
    from pearl_operator import kinds

    world.kube.remove(kinds.ROLLOUT, "swe", "rl")
    await world.until(lambda: world.core is not None and not world.core.supervisor.loops)
    assert "swe" not in (await client.get("/metrics")).text
    await world.stop()
