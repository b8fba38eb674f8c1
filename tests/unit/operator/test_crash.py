"""The operator killed between any two of its writes: the next one finishes, with nothing twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fake_cluster import World

pytestmark = pytest.mark.looptime

CHANGES: dict[str, dict[str, Any]] = {
    "flip": {"mode": "Disaggregated", "ratio": {"prefill": 1, "decode": 2}},
    "grow": {"capacity": {"reserved": {"gpus": 4}}},
    "shrink": {"capacity": {"reserved": {"gpus": 2}}},
    "replace": {"engine": {"image": "example/worker:2"}},
}
WORKERS = {"flip": 3, "grow": 4, "shrink": 2, "replace": 3}


async def run_to_end(world: World, workers: int) -> None:
    def there() -> bool:
        alive = [pod for pod in world.pods.values() if "deletionTimestamp" not in pod["metadata"]]
        assert len(world.pods) <= 4, "never more GPUs than the larger budget"
        return world.is_ready() and len(alive) == workers == len(world.pods)

    await world.until(there, seconds=600)


async def test_first_start_survives_a_kill_after_every_write(world: World) -> None:
    world.apply()
    kills = await kill_after_every_write(world, 3)
    assert kills >= 10
    creates = [write for write in world.kube.writes if write.startswith("create Pod")]
    assert creates == ["create Pod swe-w0-0", "create Pod swe-w1-0", "create Pod swe-w2-0"]


@pytest.mark.parametrize("change", sorted(CHANGES))
async def test_a_change_survives_a_kill_after_every_write(world: World, change: str) -> None:
    world.apply()
    await world.start()
    await run_to_end(world, 3)
    await world.stop()
    before, seen = world.uids, len(world.kube.writes)

    world.apply(**CHANGES[change])
    await kill_after_every_write(world, WORKERS[change])

    deletes = [write for write in world.kube.writes[seen:] if write.startswith("delete Pod")]
    creates = [write for write in world.kube.writes[seen:] if write.startswith("create Pod")]
    counts = {"flip": (0, 0), "grow": (0, 1), "shrink": (1, 0), "replace": (3, 3)}
    assert (len(set(deletes)), len(creates)) == counts[change]
    if change == "flip":
        assert world.uids == before
        assert sorted(world.roles.values()) == ["decode", "decode", "prefill"]


async def kill_after_every_write(world: World, workers: int) -> int:
    """Kills the operator after its first write, starts another, kills it after its first write, and so on."""
    kills = 0
    while True:
        world.kube.kill_after = 1
        await world.start()
        try:
            await run_to_end(world, workers)
        except BaseException as death:
            if type(death).__name__ != "Killed":
                raise
            kills += 1
            assert kills < 200, "no progress"
            await world.stop()
            continue
        await world.stop()
        return kills
