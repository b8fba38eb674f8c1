"""The operator's own loop and planner with the loan service, real worker agents and the SDK: who decides what."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from pearl_operator import kinds

if TYPE_CHECKING:
    from loan_cluster import LoanCluster

pytestmark = pytest.mark.looptime


async def test_the_planner_takes_a_loan_uses_it_and_lets_it_go(cluster: LoanCluster) -> None:
    client = await cluster.begin(planner=True)
    async with await client.register(rollout="swe") as loan:
        await cluster.until(lambda: loan.lent)
        await cluster.until(lambda: cluster.rollout().get("workers", {}).get("borrowed") == 2)
        await cluster.until(lambda: cluster.loan()["phase"] == "Serving")
        async with loan.training():
            await cluster.until(lambda: cluster.rollout()["workers"]["borrowed"] == 0)
            assert cluster.rollout()["ready"] == "1/1"
        await cluster.until(lambda: loan.lent and cluster.loan()["phase"] == "Serving")
    assert [past["free"] for past in cluster.loan()["history"]] == [True, True]
    await client.close()


async def test_a_killed_operator_delays_no_reclaim_and_its_successor_goes_on(
    cluster: LoanCluster,
) -> None:
    client = await cluster.begin(planner=True)
    loan = await client.register(rollout="swe")
    await cluster.until(lambda: cluster.loan().get("phase") == "Serving")
    await cluster.kill()
    await asyncio.sleep(60)
    assert all(pod.worker.ready for pod in cluster.pods.values())
    started = asyncio.get_running_loop().time()
    assert (await loan.reclaim()).via == "agents"
    assert asyncio.get_running_loop().time() - started < 1
    assert not (await loan.lend()).granted
    await cluster.start(planner=True)
    await cluster.until(lambda: loan.lent and cluster.loan()["phase"] == "Serving")
    assert cluster.loan()["history"][0]["epoch"] == 1
    await loan.close()
    await client.close()


async def test_a_deleted_rollout_takes_its_borrowers_along(cluster: LoanCluster) -> None:
    client = await cluster.begin(planner=True)
    loan = await client.register(rollout="swe")
    await cluster.until(lambda: loan.lent)
    cluster.kube.remove(kinds.ROLLOUT, "swe", "pearl")
    await cluster.until(lambda: cluster.loan()["phase"] == "Deregistered")
    await cluster.until(lambda: not [body for body in cluster.kube.of(kinds.POD) if "loan" in str(body["metadata"])])
    await loan.close()
    await client.close()


async def test_an_operator_that_has_not_looked_yet_refuses_no_trainer_for_good(
    cluster: LoanCluster,
) -> None:
    client = await cluster.begin(planner=True)
    cluster._tasks[0].cancel()  # the loan service has not begun
    cluster.service._open = False
    loan = await client.register(rollout="swe")
    assert loan.registration is None
    cluster._tasks.append(asyncio.create_task(cluster.service.run()))
    await cluster.until(lambda: loan.lent)
    await loan.close()
    await client.close()
