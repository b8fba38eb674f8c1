"""The manifest is believed only where it can follow the one before."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from pearl_api.wire.weights import WeightsManifest
from pearl_api.wire.worker import WorkerPhase
from pearl_worker.ports import WeightsError
from pearl_worker.wanted import refusal

pytestmark = pytest.mark.looptime


def manifest(version: int, digit: str = "0") -> WeightsManifest:
    return WeightsManifest(version=version, uri=f"v{version}", sha256=digit * 64)


@pytest.mark.parametrize(
    ("known", "found", "sentence"),
    [
        (None, None, ""),
        (None, manifest(4), ""),
        (manifest(4), manifest(4), ""),
        (manifest(4), manifest(9), ""),
        (manifest(4), manifest(3), "went back from version 4 to 3: publish 5 or more"),
        (manifest(4), manifest(4, "1"), "names other files for version 4: publish them as 5"),
        (manifest(4), None, "is gone; version 4 stays in service"),
    ],
)
def test_a_manifest_can_follow_only_lower_versions(
    known: WeightsManifest | None, found: WeightsManifest | None, sentence: str
) -> None:
    assert sentence in refusal(known, found)
    assert bool(refusal(known, found)) is bool(sentence)


async def test_a_version_that_goes_back_is_refused_with_a_sentence_and_what_is_loaded_stays(
    make_world: Any, run: Any
) -> None:
    world = make_world()
    run(world.worker)
    world.publish(5)
    await world.until(WorkerPhase.READY)
    for wrong in (manifest(4), manifest(5, "1"), None):
        world.manifest_now = wrong
        await asyncio.sleep(3)
        state = world.worker.state()
        assert (state.phase, state.weight_version, state.wanted_version) == (WorkerPhase.READY, 5, 5)
        assert state.message.startswith("weights: manifest.json ")
    world.publish(6)
    await world.wait_for(lambda: world.engine.version == "6")
    await world.until(WorkerPhase.READY)
    assert world.worker.state().message == ""


async def test_a_manifest_that_cannot_be_read_changes_nothing_and_is_told(make_world: Any, run: Any) -> None:
    world = make_world()
    run(world.worker)
    world.publish(5)
    await world.until(WorkerPhase.READY)

    async def torn() -> WeightsManifest:
        raise WeightsError("manifest.json is wrong: Invalid JSON")

    whole, world.manifest = world.manifest, torn
    await asyncio.sleep(3)
    state = world.worker.state()
    assert (state.phase, state.wanted_version) == (WorkerPhase.READY, 5)
    assert state.message == "weights: manifest.json is wrong: Invalid JSON"
    world.manifest = whole
    await asyncio.sleep(3)
    assert world.worker.state().message == ""


async def test_weights_that_load_and_compute_nonsense_are_never_served(make_world: Any, run: Any) -> None:
    world = make_world()
    run(world.worker)
    await world.until(WorkerPhase.READY)
    world.poisoned = {"v1"}
    world.publish(1)
    await world.wait_for(lambda: world.engine.weights == "v1")
    await asyncio.sleep(120)
    assert world.phase() is WorkerPhase.WEIGHTS_FAILED
    assert {engine.served for engine in world.engines} <= {0, None}
    world.publish(2)
    await world.until(WorkerPhase.READY)
    assert world.engine.served == 2


async def test_files_that_fail_their_check_are_read_again_ever_more_rarely(make_world: Any, run: Any) -> None:
    world = make_world()
    run(world.worker)
    await world.until(WorkerPhase.READY)
    fetches: list[float] = []

    async def fetch(_: WeightsManifest) -> list[Any]:
        fetches.append(world.now())
        raise WeightsError("version 1: a.safetensors does not have the hash that index.json names")

    world.fetch = fetch
    world.publish(1)
    await asyncio.sleep(100)
    gaps = [later - earlier for earlier, later in itertools.pairwise(fetches)]
    assert gaps[:5] == pytest.approx([2, 4, 8, 15, 30], abs=0.2)
    assert world.worker.ready


async def test_a_model_that_is_no_local_file_wakes_by_a_new_engine(make_world: Any, run: Any) -> None:
    from pearl_api.names import Activity

    world = make_world()
    world.base_is_local = False
    run(world.worker)
    await world.until(WorkerPhase.READY)
    world.worker.set_activity(Activity.ASLEEP, 5.0)
    await world.until(WorkerPhase.ASLEEP)
    world.worker.set_activity(Activity.ACTIVE, 5.0)
    await world.until(WorkerPhase.READY)
    assert (len(world.engines), world.engine.version) == (2, "0")
