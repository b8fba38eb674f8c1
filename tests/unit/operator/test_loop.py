"""The whole loop on virtual time: what it does to a cluster, and what it leaves alone."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from pearl_api import names
from pearl_api.wire.gateway import LiveStates
from pearl_dev.virtual.kube import FakeKube
from pearl_operator import kinds
from pearl_operator.errors import Conflict, Refused
from pearl_operator.ports import RolloutKey

if TYPE_CHECKING:
    from fake_cluster import Object, World

    from pearl_operator.kinds import Kind

pytestmark = pytest.mark.looptime


async def test_three_workers_from_nothing(world: World) -> None:
    world.apply()
    await world.start()
    await world.until(world.is_ready)

    assert set(world.pods) == {"swe-w0-0", "swe-w1-0", "swe-w2-0"}
    assert world.status["workers"]["ready"] == 3
    assert world.status["mode"] == "Colocated"
    kinds_made = {write.split()[1] for write in world.kube.writes if write.startswith(("create", "apply"))}
    assert kinds_made >= {"Secret", "Service", "Deployment", "PodDisruptionBudget", "Pod"}
    first_pod = world.kube.writes.index("create Pod swe-w0-0")
    assert "status PearlRollout swe" in world.kube.writes[:first_pod], "the target is written before the first action"
    await world.stop()


async def test_flips_roles_of_living_pods(world: World) -> None:
    world.apply()
    await world.start()
    await world.until(world.is_ready)
    before = world.uids

    world.apply(mode="Disaggregated", ratio={"prefill": 1, "decode": 2})
    await world.until(lambda: world.is_ready() and world.status["mode"] == "Disaggregated")

    assert world.uids == before
    assert sorted(world.roles.values()) == ["decode", "decode", "prefill"]
    assert all(int(epoch) > 0 for epoch in world.labels(names.LABEL_ROLE_EPOCH))
    await world.stop()


async def test_growing_by_one_creates_exactly_one_pod(world: World) -> None:
    world.apply()
    await world.start()
    await world.until(world.is_ready)
    before, seen = world.uids, len(world.kube.writes)

    world.apply(capacity={"reserved": {"gpus": 4}})
    await world.until(lambda: world.is_ready() and len(world.pods) == 4)

    pod_writes = [write for write in world.kube.writes[seen:] if write.split()[1] == "Pod"]
    assert pod_writes == ["create Pod swe-w3-0"]
    assert {name: uid for name, uid in world.uids.items() if name in before} == before
    await world.stop()


async def test_shrinking_drains_the_idle_worker_and_deletes_only_it(world: World) -> None:
    world.apply()
    await world.start()
    await world.until(world.is_ready)
    world.gateway.in_flight = {"swe-w0-0": 5, "swe-w1-0": 1, "swe-w2-0": 7}

    world.apply(capacity={"reserved": {"gpus": 2}})
    await world.until(lambda: world.labels(names.LABEL_ACTIVITY) == ["active", "draining", "active"])
    await world.rest(5)
    assert "swe-w1-0" in world.pods, "a request is still in flight"

    world.gateway.in_flight["swe-w1-0"] = 0
    await world.until(lambda: world.is_ready() and len(world.pods) == 2)
    assert set(world.pods) == {"swe-w0-0", "swe-w2-0"}
    assert [write for write in world.kube.writes if write.startswith("delete")] == ["delete Pod swe-w1-0"]
    await world.stop()


async def test_a_worker_that_never_drains_is_deleted_at_its_deadline(world: World) -> None:
    world.apply()
    await world.start()
    await world.until(world.is_ready)
    world.gateway.in_flight = {"swe-w0-0": 1, "swe-w1-0": 1, "swe-w2-0": 1}

    world.apply(capacity={"reserved": {"gpus": 2}})
    await world.until(
        lambda: any(pod["metadata"]["labels"][names.LABEL_ACTIVITY] == "draining" for pod in world.pods.values())
    )
    await world.rest(18)
    assert len(world.pods) == 3
    await world.until(lambda: len(world.pods) == 2, seconds=10)
    await world.stop()


async def test_an_unrelated_field_touches_no_pod(world: World) -> None:
    world.apply()
    await world.start()
    await world.until(world.is_ready)
    before, seen = world.pods, len(world.kube.writes)

    world.apply(policy={"deadlines": {"drainSeconds": 30}}, workload={"groups": 8})
    await world.until(world.is_ready)
    await world.rest(30)

    assert [write for write in world.kube.writes[seen:] if " Pod " in write] == []
    assert world.pods == before
    await world.stop()


async def test_a_new_image_replaces_pods_one_for_one_within_the_budget(world: World) -> None:
    world.apply()
    await world.start()
    await world.until(world.is_ready)
    before, most = world.uids, 0

    world.apply(engine={"image": "example/worker:2"})

    def replaced() -> bool:
        nonlocal most
        most = max(most, len(world.pods))
        ready = sum(1 for pod in world.pods.values() if "deletionTimestamp" not in pod["metadata"])
        assert ready >= 2, "one for one"
        return world.is_ready() and not set(before.values()) & set(world.uids.values())

    await world.until(replaced)
    assert most == 3, "never more GPUs than the budget"
    assert set(world.pods) == {"swe-w0-1", "swe-w1-1", "swe-w2-1"}
    await world.stop()


async def test_an_invalid_template_is_told_and_touches_nothing(world: World) -> None:
    world.apply()
    await world.start()
    await world.until(world.is_ready)
    before, seen = world.uids, len(world.kube.writes)

    def refuse(kind: object, body: dict[str, object]) -> str | None:
        return 'spec.containers[0].name: Invalid value: "A_B"' if kind is kinds.POD and "A_B" in str(body) else None

    world.kube.refuse = refuse
    world.apply(podTemplate={"spec": {"containers": [{"name": "A_B", "image": "x"}]}})
    await world.until(lambda: world.condition("Degraded") == ("True", "InvalidPodTemplate"))
    await world.rest(60)

    assert world.uids == before
    assert [write for write in world.kube.writes[seen:] if " Pod " in write] == []
    message = next(each["message"] for each in world.status["conditions"] if each["type"] == "Degraded")
    assert 'Invalid value: "A_B"' in message
    await world.stop()


async def test_suspend_removes_all_workers_and_keeps_the_gateway(world: World) -> None:
    world.apply()
    await world.start()
    await world.until(world.is_ready)

    world.apply(suspend=True)
    await world.until(lambda: not world.pods)
    assert len(world.kube.of(kinds.DEPLOYMENT)) == 1
    await world.until(lambda: world.condition("Ready") == ("False", "Suspended"))

    world.apply(suspend=False)
    await world.until(lambda: world.is_ready() and len(world.pods) == 3)
    await world.stop()


async def test_a_fleet_that_nobody_asks_goes_and_comes_back_with_the_first_turn(world: World) -> None:
    world.gateway.asked_at = world.kube.clock.monotonic()
    world.apply(idle={"afterSeconds": 120, "action": "ScaleToZero"})
    await world.start()
    await world.until(world.is_ready)

    await world.until(lambda: not world.pods, 400)
    assert len(world.kube.of(kinds.DEPLOYMENT)) == 1
    await world.until(lambda: world.condition("Ready") == ("False", "Idle"))
    seen = len(world.kube.writes)
    await world.rest(600)
    assert [write for write in world.kube.writes[seen:] if " Pod " in write] == []

    world.gateway.asked_at = world.kube.clock.monotonic()
    await world.until(lambda: world.is_ready() and len(world.pods) == 3)
    await world.stop()


async def test_a_lost_pod_is_replaced_by_one_of_the_same_slot(world: World) -> None:
    world.apply()
    await world.start()
    await world.until(world.is_ready)

    world.kube.remove(kinds.POD, "swe-w1-0", "rl")
    await world.until(lambda: world.is_ready() and "swe-w1-0" not in world.pods)
    assert set(world.pods) == {"swe-w0-0", "swe-w1-1", "swe-w2-0"}
    await world.stop()


async def test_many_lost_pods_are_made_again_at_once_however_long_a_create_takes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.apply(capacity={"reserved": {"gpus": 8}})
    await world.start()
    await world.until(lambda: world.is_ready() and len(world.pods) == 8)
    create = FakeKube.create

    async def slowly(self: FakeKube, kind: Kind, body: Object) -> Object:
        await asyncio.sleep(2)
        return await create(self, kind, body)

    monkeypatch.setattr(FakeKube, "create", slowly)
    for slot in range(8):
        world.kube.remove(kinds.POD, f"swe-w{slot}-0", "rl")
    began = asyncio.get_running_loop().time()
    await world.until(lambda: len(world.pods) == 8)
    assert asyncio.get_running_loop().time() - began < 5
    await world.stop()


async def test_many_workers_change_their_role_at_once_however_long_a_label_takes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.apply(capacity={"reserved": {"gpus": 8}}, mode="Colocated")
    await world.start()
    await world.until(lambda: world.is_ready() and len(world.pods) == 8)
    apply, under_way, most = FakeKube.apply, 0, 0

    async def slowly(self: FakeKube, kind: Kind, body: Object, **more: Any) -> Object:
        nonlocal under_way, most
        if kind is kinds.POD:
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(2)
            under_way -= 1
        return await apply(self, kind, body, **more)

    monkeypatch.setattr(FakeKube, "apply", slowly)
    world.apply(capacity={"reserved": {"gpus": 8}}, mode="Disaggregated")
    await world.until(
        lambda: {each["metadata"]["labels"]["pearl.dev/role"] for each in world.pods.values()} == {"prefill", "decode"}
    )
    assert most > 4, "all but those that serve until the others do"
    await world.stop()


async def test_a_conflict_about_one_pod_holds_up_no_other_and_is_looked_at_again_soon(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.apply(capacity={"reserved": {"gpus": 20}})
    await world.start()
    await world.until(lambda: world.is_ready() and len(world.pods) == 20)
    create, tries = FakeKube.create, list[float]()

    async def in_the_way(self: FakeKube, kind: Kind, body: Object) -> Object:
        if body["metadata"]["labels"]["pearl.dev/slot"] == "0":
            tries.append(asyncio.get_running_loop().time())
            raise Conflict("a pod of that name is going away", seconds=0.1)
        return await create(self, kind, body)

    monkeypatch.setattr(FakeKube, "create", in_the_way)
    for slot in range(20):
        world.kube.remove(kinds.POD, f"swe-w{slot}-0", "rl")
    await world.until(lambda: len(world.pods) == 19)
    assert len(tries) <= 2
    await world.rest(60)
    assert max(after - before for before, after in pairwise(tries)) < 4
    await world.stop()


async def test_pods_that_a_quota_refuses_are_not_all_asked_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def refused(_: FakeKube, kind: Kind, body: Object) -> Object:
        assert kind is kinds.POD
        asked.append(body["metadata"]["name"])
        raise Refused("exceeded quota: no more pods")

    world.apply(capacity={"reserved": {"gpus": 40}})
    await world.start()
    await world.until(lambda: len(world.pods) == 40)
    monkeypatch.setattr(FakeKube, "create", refused)
    for slot in range(40):
        world.kube.remove(kinds.POD, f"swe-w{slot}-0", "rl")
    await world.until(lambda: world.condition("CapacityAvailable")[0] == "False")
    assert 1 <= len(set(asked)) <= 8
    await world.stop()


async def test_a_fleet_that_nobody_asks_is_looked_at_less_often(world: World) -> None:
    world.apply()
    await world.start()
    await world.until(world.is_ready)
    await world.rest(10)
    before = world.gateway.reads
    await world.rest(60)
    assert world.gateway.reads - before == pytest.approx(6, abs=1)

    world.gateway.live = LiveStates(decoding=1)
    await world.rest(6)
    before = world.gateway.reads
    await world.rest(60)
    assert world.gateway.reads - before == pytest.approx(30, abs=4)
    await world.stop()


async def test_a_large_fleet_that_changes_all_the_time_is_looked_at_twice_a_second(world: World) -> None:
    world.apply(capacity={"reserved": {"gpus": 100}})
    await world.start()
    await world.until(lambda: world.is_ready() and len(world.pods) == 100)
    assert world.core is not None
    key = RolloutKey("rl", "swe")
    await world.rest(12)
    before = world.gateway.reads
    await world.until(lambda: world.gateway.reads > before)
    await world.rest(1)

    before = world.gateway.reads
    world.core.index.wake(key)
    await world.rest(0.1)
    assert world.gateway.reads == before + 1, "the first change after a rest is answered at once"

    for _ in range(100):
        world.core.index.wake(key)
        await world.rest(0.05)
    assert 8 <= world.gateway.reads - before <= 14
    await world.stop()


async def test_stale_sources_change_nothing_and_say_so(world: World) -> None:
    world.apply(metrics={"prometheus": {"url": "http://prometheus:9090"}})
    await world.start()
    await world.until(lambda: len(world.pods) == 3 and world.status["workers"]["ready"] == 3)
    seen = len(world.kube.writes)

    world.gateway.down = world.prometheus.down = True
    await world.until(lambda: world.condition("MetricsAvailable") == ("False", "GatewayUnreachable"))
    await world.rest(300)
    assert [write for write in world.kube.writes[seen:] if " Pod " in write] == []
    assert world.condition("Ready") == ("False", "GatewayUnavailable")

    world.gateway.down = False
    await world.until(lambda: world.condition("MetricsAvailable") == ("False", "PrometheusUnreachable"))
    await world.stop()


async def test_a_rollout_that_is_being_deleted_gets_nothing_new(world: World) -> None:
    world.apply()
    await world.start()
    await world.until(world.is_ready)

    world.kube.patch(kinds.ROLLOUT, "swe", "rl", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
    await world.rest(1)
    world.kube.remove(kinds.POD, "swe-w1-0", "rl")
    await world.rest(60)
    assert set(world.pods) == {"swe-w0-0", "swe-w2-0"}

    world.kube.remove(kinds.ROLLOUT, "swe", "rl")
    await world.until(lambda: not world.pods)
    assert world.core is not None
    await world.until(lambda: world.core is not None and not world.core.supervisor.loops)
    await world.stop()


async def test_a_rollout_made_anew_under_the_same_name_does_not_adopt_the_old_ones_pods(world: World) -> None:
    world.apply()
    await world.start()
    await world.until(world.is_ready)
    old = set(world.uids.values())

    world.kube.remove(kinds.ROLLOUT, "swe", "rl")
    world.apply()
    await world.until(lambda: world.is_ready() and not old & set(world.uids.values()))
    assert set(world.pods) == {"swe-w0-0", "swe-w1-0", "swe-w2-0"}, "its own first incarnations"
    await world.stop()


async def test_an_api_outage_is_waited_out(world: World) -> None:
    world.apply()
    await world.start()
    await world.until(world.is_ready)

    world.kube.down = True
    world.apply(capacity={"reserved": {"gpus": 4}})
    await world.rest(120)
    world.kube.down = False
    await world.until(lambda: world.is_ready() and len(world.pods) == 4)
    await world.stop()


async def test_hold_freezes_optional_changes(world: World) -> None:
    world.apply()
    await world.start()
    await world.until(world.is_ready)

    world.kube.patch(kinds.ROLLOUT, "swe", "rl", {"metadata": {"annotations": {names.ANNOTATION_HOLD: "true"}}})
    await world.until(lambda: world.status["lastDecision"]["reason"] == "Held")
    await world.stop()


async def test_the_status_is_not_written_without_news(world: World) -> None:
    world.apply()
    await world.start()
    await world.until(world.is_ready)
    await world.rest(10)
    seen = len(world.kube.writes)
    await world.rest(300)
    status_writes = [write for write in world.kube.writes[seen:] if write.startswith("status")]
    assert len(status_writes) <= 5, "at most once a minute"
    await world.stop()


async def test_a_bug_in_one_look_is_told_and_the_next_look_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.apply()
    await world.start()
    await world.until(world.is_ready)

    with monkeypatch.context() as broken:
        broken.setattr("pearl_operator.loop.plan", lambda *_: 1 / 0)
        await world.until(lambda: world.condition("Degraded") == ("True", "InternalError"))
        assert len(world.status["conditions"]) == 7
    await world.until(lambda: world.condition("Degraded") == ("False", "Healthy"))
    assert len(world.pods) == 3
    await world.stop()


async def test_a_target_past_its_deadline_is_dropped_and_told_until_one_is_reached(world: World) -> None:
    world.kube.refuse = lambda kind, _: "pods is forbidden: exceeded quota: gpus" if kind is kinds.POD else None
    world.apply(policy={"deadlines": {"drainSeconds": 20, "startSeconds": 60}})
    await world.start()
    await world.until(lambda: world.condition("CapacityAvailable") == ("False", "QuotaOrAdmission"))
    first = world.status["target"]["id"]
    await world.until(lambda: world.condition("Degraded") == ("True", "PlanAbandoned"), seconds=200)
    assert world.status["target"]["id"] > first

    world.kube.refuse = lambda *_: None
    await world.until(lambda: world.is_ready() and world.condition("Degraded") == ("False", "Healthy"), seconds=200)
    assert set(world.pods) == {"swe-w0-0", "swe-w1-0", "swe-w2-0"}
    await world.stop()


async def test_advisory_decides_and_explains_and_changes_nothing(world: World) -> None:
    world.apply(policy={"advisory": True})
    await world.start()
    await world.until(lambda: world.condition("Advisory") == ("True", "AdvisoryOnly"))
    await world.rest(60)
    assert world.pods == {}
    assert world.status["lastDecision"]["reason"] == "AdvisoryOnly"
    assert "colocated:3" in world.status["lastDecision"]["shape"]
    await world.stop()


async def test_a_gateway_that_is_refused_is_told_and_stops_no_worker(world: World) -> None:
    world.kube.refuse_apply = lambda kind, _: "spec.template: Invalid value" if kind is kinds.DEPLOYMENT else None
    world.apply()
    await world.start()
    await world.until(lambda: world.condition("Degraded") == ("True", "InvalidPodTemplate"))
    await world.until(lambda: world.status["workers"]["ready"] == 3)

    world.kube.refuse_apply = lambda *_: None
    await world.until(lambda: world.is_ready() and world.condition("Degraded") == ("False", "Healthy"))
    await world.stop()


async def test_a_decision_that_could_not_be_written_leaves_no_trace(world: World) -> None:
    world.apply(policy={"hysteresis": {"minDwellSeconds": 600}})
    await world.start()
    await world.until(world.is_ready)
    target = world.status["target"]

    world.kube.status_conflicts = 3
    world.apply(mode="Disaggregated", ratio={"prefill": 1, "decode": 2})
    await world.until(lambda: world.is_ready() and world.status["mode"] == "Disaggregated", seconds=30)
    assert world.status["target"]["id"] == target["id"] + 1
    await world.stop()


async def test_a_worker_whose_node_got_notice_is_drained_and_replaced_and_the_others_stay(world: World) -> None:
    world.apply()
    await world.start()
    await world.until(world.is_ready)
    before = world.uids

    taint = {"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule"}
    world.kube.store(kinds.NODE, {"metadata": {"name": "node-1"}, "spec": {"taints": [taint]}})
    await world.until(lambda: world.labels(names.LABEL_ACTIVITY) == ["active", "draining", "active"], seconds=10)
    assert world.status["target"]["reason"] == "SpotNotice"
    world.kube.remove(kinds.NODE, "node-1", None)
    await world.until(lambda: world.is_ready() and set(world.pods) == {"swe-w0-0", "swe-w1-1", "swe-w2-0"})
    assert world.uids["swe-w0-0"] == before["swe-w0-0"]
    await world.stop()


async def test_what_an_earlier_rollout_of_the_name_left_behind_is_waited_out(world: World) -> None:
    earlier = {"ownerReferences": [{"kind": "PearlRollout", "name": "swe", "uid": "earlier"}]}
    left = {"metadata": {"name": "swe-gateway", "namespace": "rl", **earlier}, "spec": {"replicas": 1}}
    world.kube.store(kinds.DEPLOYMENT, left)
    world.apply()
    await world.start()
    await world.rest(20)
    assert world.kube.writes == []
    world.kube.remove(kinds.DEPLOYMENT, "swe-gateway", "rl")
    await world.until(world.is_ready)
    await world.stop()
