"""The index: never ahead of the API server, never behind what this process wrote itself, healed by resync."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pearl_api import names
from pearl_operator import kinds
from pearl_operator.index import Index, is_older
from pearl_operator.ports import RolloutKey
from pearl_operator.resync import Resync
from pearl_operator.settings import Settings

if TYPE_CHECKING:
    from fake_cluster import World

pytestmark = pytest.mark.looptime

KEY = RolloutKey("rl", "swe")


def pod(version: str, role: str = "colocated", uid: str = "uid-1") -> dict[str, Any]:
    labels = {names.LABEL_ROLLOUT: "swe", names.LABEL_COMPONENT: "worker", names.LABEL_ROLE: role}
    meta = {"name": "swe-w0-0", "namespace": "rl", "uid": uid, "resourceVersion": version, "labels": labels}
    return {"metadata": meta}


@pytest.fixture
def woken() -> list[RolloutKey]:
    return []


@pytest.fixture
def index(world: World, woken: list[RolloutKey]) -> Index:
    return Index(world.kube.clock, wake=woken.append)


def test_versions_are_compared_as_numbers_or_not_at_all() -> None:
    assert is_older("9", "10")
    assert not is_older("10", "9")
    assert not is_older("abc", "10")


async def test_an_event_older_than_our_own_write_is_ignored(index: Index) -> None:
    index.put(kinds.POD, pod("5", "prefill"))
    index.put(kinds.POD, pod("4", "colocated"))
    assert index.workers_of(KEY)[0].role == "prefill"


async def test_the_gpu_products_are_those_of_the_nodes_that_are_there(index: Index) -> None:
    def node(name: str, product: str) -> dict[str, Any]:
        return {"metadata": {"name": name, "labels": {"nvidia.com/gpu.product": product}}}

    assert index.gpu_products() == ()
    index.put(kinds.NODE, node("a", "H100"))
    assert index.gpu_products() == ("H100",)
    index.put(kinds.NODE, node("b", "A100"))
    index.put(kinds.NODE, node("a", "H200"))
    assert index.gpu_products() == ("A100", "H200")
    index.forget(kinds.NODE, "b")
    assert index.gpu_products() == ("H200",)


async def test_a_late_deletion_of_an_earlier_pod_does_not_remove_the_new_one(index: Index) -> None:
    index.put(kinds.POD, pod("7", uid="uid-2"))
    index.forget(kinds.POD, ("rl", "swe-w0-0"), "uid-1")
    assert [each.address.uid for each in index.workers_of(KEY)] == ["uid-2"]


async def test_a_pod_that_we_deleted_stays_deleting_until_the_event_says_so(index: Index) -> None:
    index.put(kinds.POD, pod("5"))
    index.mark_deleting("rl", "swe-w0-0", "uid-1")
    index.put(kinds.POD, pod("6"))
    assert index.workers_of(KEY)[0].deleting


async def test_only_news_wake_the_loop(world: World, index: Index, woken: list[RolloutKey]) -> None:
    world.apply()
    body = world.kube.objects["pearlrollouts", "rl", "swe"]
    index.put_rollout(body)
    assert woken == [KEY]
    own_status = {**body, "status": {"ready": "1/3"}, "metadata": {**body["metadata"], "resourceVersion": "900"}}
    index.put_rollout(own_status)
    assert woken == [KEY], "the operator's own status is no news"
    index.put(kinds.POD, pod("5"))
    index.put(kinds.POD, pod("6"))
    assert woken == [KEY, KEY], "the same pod again is no news"


async def test_resync_heals_what_a_silent_watch_missed_and_counts_it(world: World, index: Index) -> None:
    settings = Settings(namespace="rl", gateway_image="x", cluster_scoped=False)
    resync = Resync(world.kube, index, world.kube.clock, settings)
    labels = pod("1")["metadata"]["labels"]
    for name in ("swe-w0-0", "swe-w1-0"):
        world.kube.store(kinds.POD, {"metadata": {"name": name, "namespace": "rl", "labels": labels}})
    await resync.once()
    assert (len(index.pods), resync.repairs) == (2, {})

    for rounds in (1, 2):
        world.kube.vanish(kinds.POD, f"swe-w{rounds - 1}-0", "rl")
        await resync.once()
        assert (len(index.pods), resync.repairs) == (2 - rounds, {"pods": rounds})
    await resync.once()
    assert resync.repairs == {}
