"""Prefill and decode workers of different sizes, and edits of sizes, image and arguments at any moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from pearl_api import names
from pearl_operator import kinds

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_cluster import World

pytestmark = pytest.mark.looptime

GPUS = 8
SPLIT = {"mode": "Disaggregated", "capacity": {"reserved": {"gpus": GPUS}}}


def engine(prefill: int = 1, decode: int = 2, whole: int = 2, **more: Any) -> dict[str, Any]:
    return {"tensorParallel": whole, "parallelism": {"prefill": prefill, "decode": decode}, **more}


def size(pod: dict[str, Any]) -> int:
    return int(pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])


@dataclass
class Watched:
    """A world in which every moment is looked at: GPUs in use, and whether somebody makes tokens."""

    world: World
    most: int = 0
    idle: int = 0

    def see(self) -> None:
        pods = self.world.pods.values()
        self.most = max(self.most, sum(size(pod) for pod in pods))
        self.idle += not any(map(makes_tokens, pods))

    async def until(self, done: Callable[[], bool], seconds: float = 300.0) -> None:
        def seen() -> bool:
            self.see()
            return done()

        await self.world.until(seen, seconds)

    async def settled(self) -> None:
        """In the present generation."""
        await self.until(self.world.is_ready)

    def fleet(self) -> list[tuple[str, int]]:
        """Role and GPUs of every worker."""
        return sorted((pod["metadata"]["labels"][names.LABEL_ROLE], size(pod)) for pod in self.world.pods.values())


def makes_tokens(pod: dict[str, Any]) -> bool:
    """In its own role: a decode worker prefills too where it must, a prefill worker decodes only as a last resort."""
    labels = pod["metadata"]["labels"]
    conditions = pod.get("status", {}).get("conditions", [])
    ready = any((one["type"], one["status"]) == ("Ready", "True") for one in conditions)
    active = labels[names.LABEL_ACTIVITY] == "active" and labels[names.LABEL_ROLE] != "prefill"
    return ready and active and "deletionTimestamp" not in pod["metadata"]


async def started(world: World, **spec: Any) -> Watched:
    world.apply(**spec)
    await world.start()
    await world.until(world.is_ready)
    return Watched(world)


async def test_each_stage_has_workers_of_its_size_and_the_status_says_so(world: World) -> None:
    seen = await started(world, **SPLIT, engine=engine(), ratio={"prefill": 2, "decode": 1})
    assert seen.fleet() == [("decode", 2)] * 2 + [("prefill", 1)] * 4
    told = world.status["workers"]
    assert (told["prefill"], told["decode"], told["prefillGpus"], told["decodeGpus"]) == (4, 2, 4, 4)
    assert world.status["gpus"] == GPUS
    await world.stop()


async def test_another_ratio_of_unequal_workers_replaces_pods_within_the_budget(world: World) -> None:
    seen = await started(world, **SPLIT, engine=engine(), ratio={"prefill": 2, "decode": 1})
    before, wrote = world.uids, len(world.kube.writes)

    world.apply(ratio={"prefill": 1, "decode": 3})
    await seen.settled()

    assert seen.fleet() == [("decode", 2)] * 3 + [("prefill", 1)] * 2
    assert (seen.most, seen.idle) == (GPUS, 0)
    assert len(set(before.values()) & set(world.uids.values())) == 4, (
        "two prefill workers made room for one that decodes"
    )
    verbs = [write.split()[0] for write in world.kube.writes[wrote:] if write.split()[1:2] == ["Pod"]]
    assert (verbs.count("delete"), verbs.count("create")) == (2, 1)
    await world.stop()


async def test_a_turn_in_flight_keeps_its_worker_until_it_is_done(world: World) -> None:
    seen = await started(world, **SPLIT, engine=engine(), ratio={"prefill": 1, "decode": 3})
    decoders = [name for name, role in world.roles.items() if role == "decode"]
    world.gateway.in_flight = dict.fromkeys(decoders, 1)

    world.apply(ratio={"prefill": 2, "decode": 1})
    await seen.until(lambda: "draining" in world.labels(names.LABEL_ACTIVITY))
    await world.rest(10)
    assert set(decoders) <= set(world.pods), "each still answers"

    world.gateway.in_flight = {}
    await seen.settled()
    assert seen.fleet() == [("decode", 2)] * 2 + [("prefill", 1)] * 4
    assert (seen.most, seen.idle) == (GPUS, 0)
    await world.stop()


async def test_from_colocated_to_stages_the_workers_of_the_right_size_only_change_their_role(world: World) -> None:
    seen = await started(world, mode="Colocated", capacity=SPLIT["capacity"], engine=engine())
    assert seen.fleet() == [("colocated", 2)] * 4
    before = world.uids

    world.apply(mode="Disaggregated", ratio={"prefill": 2, "decode": 1})
    await seen.settled()

    assert seen.fleet() == [("decode", 2)] * 2 + [("prefill", 1)] * 4
    assert len(set(before.values()) & set(world.uids.values())) == 2
    assert (seen.most, seen.idle) == (GPUS, 0)
    await world.stop()


async def test_an_edited_size_replaces_the_workers_of_its_stage_alone(world: World) -> None:
    seen = await started(world, **SPLIT, engine=engine(), ratio={"prefill": 2, "decode": 1})
    prefillers = {world.uids[name] for name, role in world.roles.items() if role == "prefill"}

    world.apply(engine=engine(decode=4))
    await seen.settled()

    assert seen.fleet() == [("decode", 4)] + [("prefill", 1)] * 4
    assert prefillers <= set(world.uids.values())
    assert (seen.most, seen.idle) == (GPUS, 0)
    await world.stop()


@pytest.mark.parametrize("after", [0.5, 2.0, 4.0, 8.0])
@pytest.mark.parametrize(
    ("edit", "back"),
    [
        (engine(decode=4), engine()),
        (engine(prefill=2, decode=4), engine()),
        (engine(image="example/worker:2"), engine(image="example/worker:1")),
        (engine(args=["--max-num-seqs", "8"]), engine(args=[])),
    ],
    ids=["decode", "both", "image", "args"],
)
async def test_an_edit_that_is_taken_back_in_the_middle_leaves_nothing_behind(
    world: World, edit: dict[str, Any], back: dict[str, Any], after: float
) -> None:
    seen = await started(world, **SPLIT, engine=engine(), ratio={"prefill": 2, "decode": 1})
    world.apply(engine=edit)
    await world.until(lambda: any(write.startswith("delete Pod") for write in world.kube.writes))
    await world.rest(after)

    world.apply(engine=back)
    await seen.settled()

    assert seen.fleet() == [("decode", 2)] * 2 + [("prefill", 1)] * 4
    assert {pod["spec"]["containers"][0]["image"] for pod in world.pods.values()} == {"example/worker:1"}
    assert {slot["slot"] for slot in world.status["target"]["slots"]} == {
        int(number) for number in world.labels(names.LABEL_SLOT)
    }
    assert (seen.most <= GPUS, seen.idle) == (True, 0)
    await world.stop()


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 4), (4, 2), (2, 1)])
async def test_another_tensor_parallel_size_replaces_a_colocated_fleet_and_somebody_always_serves(
    world: World, before: int, after: int
) -> None:
    seen = await started(world, capacity=SPLIT["capacity"], engine={"tensorParallel": before})
    assert seen.fleet() == [("colocated", before)] * (GPUS // before)
    world.apply(engine={"tensorParallel": after})
    await seen.settled()
    assert seen.fleet() == [("colocated", after)] * (GPUS // after)
    assert (seen.most, seen.idle) == (GPUS, 0)
    await world.stop()


async def test_a_killed_operator_goes_on_with_a_change_of_sizes(world: World) -> None:
    seen = await started(world, **SPLIT, engine=engine(), ratio={"prefill": 2, "decode": 1})
    world.apply(engine=engine(prefill=2, decode=4))
    await world.until(lambda: any(write.startswith("delete Pod") for write in world.kube.writes))
    await world.stop()
    await world.rest(5)
    await world.start()
    await seen.settled()
    assert seen.fleet() == [("decode", 4)] + [("prefill", 2)] * 2
    assert (seen.most <= GPUS, seen.idle) == (True, 0)
    await world.stop()


async def test_each_size_is_tried_before_anything_is_touched(world: World) -> None:
    seen = await started(world, **SPLIT, engine=engine(), ratio={"prefill": 2, "decode": 1})
    before = world.uids

    def refuse(kind: object, body: dict[str, Any]) -> str | None:
        return (
            "maximum nvidia.com/gpu usage per Pod is 2, but limit is 4"
            if kind is kinds.POD and size(body) > 2
            else None
        )

    world.kube.refuse = refuse  # type: ignore[assignment]
    world.apply(engine=engine(decode=4))
    await seen.until(lambda: world.condition("Degraded") == ("True", "InvalidPodTemplate"))
    await world.rest(60)
    assert world.uids == before
    await world.stop()
