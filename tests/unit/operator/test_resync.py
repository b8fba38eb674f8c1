"""What a round of resync takes from the API server while all watches are silent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from pearl_api import names
from pearl_operator import kinds
from pearl_operator.index import Index
from pearl_operator.ports import RolloutKey
from pearl_operator.resync import Resync
from pearl_operator.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_cluster import World

    from pearl_operator.kinds import Kind

pytestmark = pytest.mark.looptime

KEY = RolloutKey("rl", "swe")
POD = ("rl", "swe-w0-0")


class Scene:
    """A rollout with a pod on a node; the index hears of changes by resync alone."""

    def __init__(self, world: World) -> None:
        self.kube = world.kube
        self.woken: list[RolloutKey] = []
        self.index = Index(world.kube.clock, wake=self.woken.append)
        self.resync = Resync(world.kube, self.index, world.kube.clock, Settings(namespace="rl", gateway_image="x"))
        world.apply()
        self.pod()
        self.kube.store(kinds.NODE, {"metadata": {"name": "n1"}})

    def pod(self, role: str = "colocated") -> dict[str, Any]:
        labels = {names.LABEL_ROLLOUT: "swe", names.LABEL_COMPONENT: "worker", names.LABEL_ROLE: role}
        meta = {"name": POD[1], "namespace": POD[0], "labels": labels}
        return self.kube.store(kinds.POD, {"metadata": meta, "spec": {"nodeName": "n1"}})

    async def round(self) -> dict[str, int]:
        """Rounds in a row that found something, by plural; `woken` begins anew."""
        self.woken.clear()
        await self.resync.once()
        return self.resync.repairs


@pytest.fixture
async def scene(world: World) -> Scene:
    found = Scene(world)
    assert await found.round() == {}
    return found


async def test_what_did_not_change_stays_as_it_is_and_wakes_nobody(scene: Scene) -> None:
    pod, rollout = scene.index.pods[POD], scene.index.rollouts[KEY]
    assert await scene.round() == {}
    assert scene.woken == []
    assert scene.index.pods[POD] is pod, "a fleet of thousands is not read again every minute"
    assert scene.index.rollouts[KEY] is rollout


async def test_a_change_that_no_watch_told_is_taken_wakes_its_rollout_and_is_counted(scene: Scene) -> None:
    scene.pod(role="prefill")
    assert await scene.round() == {"pods": 1}
    assert scene.index.pods[POD].role == "prefill"
    assert scene.woken == [KEY]
    assert await scene.round() == {}


async def test_a_pod_made_anew_under_its_name_is_another_one(scene: Scene) -> None:
    before = scene.index.pods[POD].address.uid
    scene.index.mark_deleting(*POD, before)
    scene.kube.vanish(kinds.POD, POD[1], POD[0])
    uid = scene.pod()["metadata"]["uid"]
    assert uid != before
    assert await scene.round() == {"pods": 1}
    assert scene.index.pods[POD].address.uid == uid
    assert not scene.index.pods[POD].deleting


async def test_a_pod_that_lost_its_labels_is_nobodys(scene: Scene) -> None:
    scene.kube.store(kinds.POD, {"metadata": {"name": POD[1], "namespace": POD[0], "labels": {}}})
    assert await scene.round() == {"pods": 1}
    assert scene.index.pods == {}


async def test_a_nodes_end_that_no_watch_told_wakes_whose_pods_are_on_it(scene: Scene) -> None:
    scene.kube.patch(kinds.NODE, "n1", None, {"spec": {"taints": [{"key": "karpenter.sh/disrupted"}]}})
    await scene.round()
    assert [taint.key for taint in scene.index.nodes["n1"].taints] == ["karpenter.sh/disrupted"]
    assert scene.woken == [KEY]


async def during_the_list(scene: Scene, monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """A round whose lists of pods are on the way while something changes."""
    listed = type(scene.kube).list

    async def late(*words: Any, **more: Any) -> list[dict[str, Any]]:
        answer = await listed(*words, **more)
        await asyncio.sleep(1.0)
        return answer

    monkeypatch.setattr(type(scene.kube), "list", late)
    running = asyncio.create_task(scene.round())
    await asyncio.sleep(0.5)
    change()
    assert await running == {}


async def test_a_list_that_is_older_than_what_we_wrote_changes_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await during_the_list(scene, monkeypatch, lambda: scene.index.put_pod(scene.pod(role="decode")))
    assert scene.index.pods[POD].role == "decode"


async def test_a_pod_that_goes_while_the_list_is_on_its_way_does_not_come_back(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await during_the_list(scene, monkeypatch, lambda: scene.index.forget(kinds.POD, POD))
    assert scene.index.pods == {}


async def test_a_pod_that_was_made_anew_since_the_list_is_not_forgotten(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.kube.vanish(kinds.POD, POD[1], POD[0])
    await during_the_list(scene, monkeypatch, lambda: scene.index.put_pod(scene.pod()))
    assert scene.index.pods[POD].address.uid == scene.kube.of(kinds.POD)[0]["metadata"]["uid"]


class Asked:
    """What a round asks of the API server for pods."""

    def __init__(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.before_get: Callable[[str], None] = lambda _name: None
        kube, listed, got = scene.kube, scene.kube.list, scene.kube.get

        async def lists(kind: Kind, *more: Any, heads: bool = False) -> list[dict[str, Any]]:
            if kind is kinds.POD:
                self.calls.append("heads" if heads else "list")
            return await listed(kind, *more, heads=heads)

        async def gets(kind: Kind, name: str, namespace: str | None = None) -> dict[str, Any] | None:
            self.calls.append(f"get {name}")
            self.before_get(name)
            return await got(kind, name, namespace)

        monkeypatch.setattr(kube, "list", lists)
        monkeypatch.setattr(kube, "get", gets)


async def test_of_pods_that_did_not_change_only_the_heads_are_listed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(scene, monkeypatch)
    assert await scene.round() == {}
    assert asked.calls == ["heads"]
    assert [pod.role for pod in scene.index.workers_of(KEY)] == ["colocated"]
    scene.pod(role="prefill")
    assert await scene.round() == {"pods": 1}
    assert asked.calls[1:] == ["heads", "get swe-w0-0"]
    assert [pod.role for pod in scene.index.workers_of(KEY)] == ["prefill"]
    scene.index.mark_deleting(*POD, scene.index.pods[POD].address.uid)
    assert [pod.deleting for pod in scene.index.workers_of(KEY)] == [True]


async def test_where_many_pods_changed_all_are_listed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = {names.LABEL_ROLLOUT: "swe", names.LABEL_COMPONENT: "worker"}
    for slot in range(1, 40):
        meta = {"name": f"swe-w{slot}-0", "namespace": "rl", "labels": labels}
        scene.kube.store(kinds.POD, {"metadata": meta, "spec": {}})
    asked = Asked(scene, monkeypatch)
    assert await scene.round() == {"pods": 1}
    assert asked.calls == ["heads", "list"]
    assert len(scene.index.workers_of(KEY)) == 40


async def test_a_pod_that_goes_between_its_head_and_its_body_is_gone(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(scene, monkeypatch)
    asked.before_get = lambda name: scene.kube.vanish(kinds.POD, name, "rl")
    assert scene.index.workers_of(KEY) == [scene.index.pods[POD]]
    scene.pod(role="prefill")
    assert await scene.round() == {"pods": 1}
    assert POD not in scene.index.pods
    assert scene.index.workers_of(KEY) == []


async def test_what_the_watch_told_while_the_round_went_on_was_not_missed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = scene.kube.list

    async def changing(*words: Any, **more: Any) -> list[dict[str, Any]]:
        scene.index.put_pod(scene.pod(role="decode"))
        return await listed(*words, **more)

    monkeypatch.setattr(scene.kube, "list", changing)
    for _ in range(3):
        assert await scene.round() == {}
