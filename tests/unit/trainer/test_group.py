"""A trainer of several pods: each enrols its own GPUs, one driver lends and reclaims them all or none."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pearl_trainer import ConfigurationError, NotReturned
from pearl_trainer.async_client import AsyncPearlClient

if TYPE_CHECKING:
    from conftest import Group
    from pearl_trainer.settings import Settings

pytestmark = pytest.mark.looptime


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_driver_without_gpus_lends_and_reclaims_the_pods_of_its_group(group: Group, settings: Settings) -> None:
    driver = AsyncPearlClient(replace(settings, visible_devices=None), transport=group, clock=now)
    pods = [AsyncPearlClient(settings, transport=group, clock=now) for _ in range(2)]
    first = await pods[0].register(rollout="swe", gpus=["GPU-a"], group="job-7", lend=False)
    async with await driver.register_group(rollout="swe", group="job-7", members=2) as loan:
        assert not loan.lent  # one pod has not enrolled yet
        second = await pods[1].register(rollout="swe", gpus=["GPU-b"], group="job-7", lend=False)
        await asyncio.sleep(4)
        assert loan.lent
        await asyncio.sleep(60)
        assert [agent.now_fence().granted for agent in group.agents] == [True, True]
        free = await loan.reclaim()
        assert (free.epoch, free.via) == (1, "agents")
        assert not any(agent.now_fence().granted for agent in group.agents)
        with pytest.raises(ConfigurationError, match="this pod is one of group job-7, whose driver lends"):
            await second.lend()
    await first.close()
    await second.close()
    assert group.left == ["/v1/groups/ml/job-7", "/v1/loans/ml/pod-1", "/v1/loans/ml/pod-2"]


async def test_one_gpu_that_is_kept_keeps_the_whole_group_from_training(group: Group, settings: Settings) -> None:
    group.enrol("GPU-a")
    group.enrol("GPU-b").memory_comes_back = False
    driver = AsyncPearlClient(settings, transport=group, clock=now)
    loan = await driver.register_group(rollout="swe", group="job-7", members=2)
    with pytest.raises(NotReturned, match="trainer-0-borrower-1") as caught:
        async with loan.training(within=5):
            pytest.fail("trained on a GPU that is not known to be free")
    assert list(caught.value.agents) == ["trainer-0-borrower-1"]
    await asyncio.sleep(0.1)
    assert (group.notices[-1]["free"], group.notices[-1]["kept"]) == (False, ["trainer-0-borrower-1"])
    await driver.close()


async def test_under_torchrun_every_rank_makes_the_same_call(group: Group, settings: Settings) -> None:
    barrier = asyncio.Barrier(4)
    order: list[tuple[str, bool]] = []

    async def rank(number: int) -> None:
        mine = replace(settings, rank=number, world_size=4, local_rank=number % 2, local_world_size=2)
        client = AsyncPearlClient(mine, transport=group, clock=now)

        async def offload() -> None:
            await asyncio.sleep(number)
            order.append(("offload", any(agent.now_fence().granted for agent in group.agents)))

        loan = await client.register(
            rollout="swe", gpus=[f"GPU-{number}"], group="job-7", members=2, offload=offload, barrier=barrier.wait
        )
        await barrier.wait()
        assert loan.lent is (number == 0)
        async with loan.training():
            order.append(("train", any(agent.now_fence().granted for agent in group.agents)))
        await barrier.wait()
        await loan.close()

    await asyncio.gather(*map(rank, range(4)))
    assert order == 4 * [("offload", False)] + 4 * [("train", False)] + 4 * [("offload", False)]
    assert sorted(group.registered) == ["GPU-0", "GPU-2"]  # local rank 0 of each pod
    assert group.epoch == 2


async def test_members_without_torchrun_are_told_whom_to_call(group: Group, settings: Settings) -> None:
    client = AsyncPearlClient(settings, transport=group, clock=now)
    with pytest.raises(ConfigurationError, match=r"call register_group\(\) in the driver"):
        await client.register(rollout="swe", group="job-7", members=2)
    with pytest.raises(ConfigurationError, match="members 0"):
        await client.register_group(rollout="swe", group="job-7", members=0)
    await client.close()
