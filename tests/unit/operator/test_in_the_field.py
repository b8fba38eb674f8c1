"""Situations in which users of other operators got hurt (docs/field-issues.md), played on the in-memory cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pearl_operator import kinds

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_cluster import Object, World

    from pearl_operator.kinds import Kind

pytestmark = pytest.mark.looptime

NO_NODE: Object = {
    "phase": "Pending",
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}],
}
PULLING: Object = {
    "phase": "Pending",
    "containerStatuses": [{"name": "worker", "restartCount": 0, "state": {"waiting": {"reason": "ImagePullBackOff"}}}],
    "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "False"}],
}


def give_new_pods(world: World, status_of: Callable[[Object], Object | None]) -> None:
    """New pods get this status and keep it; where there is none, they start as usual."""
    usual = world.kubelet._seen

    def seen(event: str, kind: Kind, body: Object) -> None:
        status = status_of(body) if kind is kinds.POD and event == "ADDED" else None
        if status is None:
            usual(event, kind, body)
        else:
            world.kube.patch(kinds.POD, body["metadata"]["name"], "rl", {"status": status})

    world.kube.watchers[world.kube.watchers.index(usual)] = seen


def count(world: World, verb: str, kind: str) -> int:
    return sum(1 for write in world.kube.writes if write.startswith(f"{verb} {kind} "))


async def test_pods_that_fail_at_once_are_made_again_ever_more_rarely(world: World) -> None:
    give_new_pods(world, lambda _: {"phase": "Failed", "reason": "UnexpectedAdmissionError"})
    world.apply(capacity={"reserved": {"gpus": 1}})
    await world.start()
    await world.until(lambda: world.condition("Degraded") == ("True", "WorkerFailed"), seconds=60)
    await world.rest(90)
    assert 4 <= count(world, "create", "Pod") <= 8, "two at once, then after 5, 10, 20, 40 s"
    assert count(world, "create", "Event") <= 10
    await world.stop()


async def test_pods_without_a_node_wait_and_go_first(world: World) -> None:
    world.apply()
    await world.start()
    await world.until(world.is_ready)
    before = world.uids
    give_new_pods(world, lambda _: NO_NODE)
    world.apply(capacity={"reserved": {"gpus": 5}})
    await world.until(lambda: world.condition("CapacityAvailable") == ("False", "PendingPods"))
    await world.rest(30)
    assert count(world, "create", "Pod") == 5, "each once"

    world.apply(capacity={"reserved": {"gpus": 3}})
    await world.until(world.is_ready)
    assert world.uids == before
    await world.stop()


async def test_a_wrong_image_stops_at_one_worker_and_taking_it_back_touches_no_other(world: World) -> None:
    give_new_pods(world, lambda pod: PULLING if pod["spec"]["containers"][0]["image"].endswith(":2") else None)
    world.apply()
    await world.start()
    await world.until(world.is_ready)
    before = world.uids
    world.apply(engine={"image": "example/worker:2"})
    await world.until(lambda: world.condition("Degraded") == ("True", "WorkerFailed"))
    await world.rest(30)
    kept = {name: uid for name, uid in world.uids.items() if before.get(name) == uid}
    assert len(kept) == 2

    world.apply(engine={"image": "example/worker:1"})
    await world.until(world.is_ready)
    assert kept.items() <= world.uids.items()
    assert count(world, "delete", "Pod") == 2, "the first that was replaced, and the one that could not start"
    await world.stop()


async def test_edits_in_quick_succession_take_one_worker_at_a_time(world: World) -> None:
    world.apply()
    await world.start()
    await world.until(world.is_ready)
    for number in range(2, 5):
        world.apply(engine={"image": f"example/worker:{number}"})
        for _ in range(10):
            await world.rest(0.2)
            assert world.serving >= 2
    await world.until(lambda: world.serving >= 2 and world.is_ready())
    assert {pod["spec"]["containers"][0]["image"] for pod in world.pods.values()} == {"example/worker:4"}
    await world.stop()


async def test_what_admission_adds_to_a_pod_is_no_difference(world: World) -> None:
    world.apply()
    await world.start()
    await world.until(world.is_ready)
    seen = len(world.kube.writes)
    added = {"metadata": {"labels": {"mesh": "on"}}, "spec": {"tolerations": [{"operator": "Exists"}]}}
    for name in world.pods:
        world.kube.patch(kinds.POD, name, "rl", added)
    await world.rest(30)
    assert [write for write in world.kube.writes[seen:] if " Pod " in write] == []
    await world.stop()


async def test_a_spec_that_cannot_be_read_changes_nothing_and_is_told(world: World) -> None:
    world.apply()
    await world.start()
    await world.until(world.is_ready)
    seen, target = len(world.kube.writes), world.status["target"]
    world.kube.patch(kinds.ROLLOUT, "swe", "rl", {"spec": {"capacity": {"reserved": {"gpus": "all"}}}})
    await world.until(lambda: world.condition("Degraded") == ("True", "Unsupported"))
    await world.rest(30)
    assert [write for write in world.kube.writes[seen:] if not write.startswith("status")] == []
    assert world.status["target"] == target
    await world.stop()


async def test_a_restart_without_any_measurement_changes_nothing(world: World) -> None:
    world.apply()
    await world.start()
    await world.until(world.is_ready)
    await world.stop()
    seen, target = len(world.kube.writes), world.status["target"]
    world.gateway.down = True
    await world.start()
    await world.until(lambda: world.condition("MetricsAvailable") == ("False", "GatewayUnreachable"))
    await world.rest(30)
    assert [write for write in world.kube.writes[seen:] if " Pod " in write] == []
    assert world.status["target"] == target
    await world.stop()


GATED = {
    "phase": "Pending",
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
        }
    ],
}


async def test_a_worker_that_a_queue_evicts_waits_in_it_and_the_others_serve_on(world: World) -> None:
    world.apply()
    await world.start()
    await world.until(world.is_ready)
    admitted: list[str] = []
    give_new_pods(world, lambda pod: None if pod["metadata"]["name"] in admitted else GATED)
    made = count(world, "create", "Pod")
    world.kube.remove(kinds.POD, "swe-w1-0", "rl")
    await world.until(lambda: world.condition("CapacityAvailable") == ("False", "SchedulingGated"))
    await world.rest(3600)
    assert count(world, "create", "Pod") == made + 1, "made again once, however long it waits"
    assert world.condition("CapacityAvailable") == ("False", "SchedulingGated")
    assert set(world.pods) == {"swe-w0-0", "swe-w1-1", "swe-w2-0"}

    admitted.append("swe-w1-2")
    world.kube.remove(kinds.POD, "swe-w1-1", "rl")  # evicted once more, and admitted
    await world.until(world.is_ready)
    await world.stop()
