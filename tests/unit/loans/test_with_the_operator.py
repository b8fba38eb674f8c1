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


async def test_borrowers_deleted_by_hand_give_the_gpus_back_and_the_next_operator_lends_nothing_by_itself(
    cluster: LoanCluster,
) -> None:
    client = await cluster.begin(planner=True)
    loan = await client.register(rollout="swe")
    await cluster.until(lambda: cluster.loan().get("phase") == "Serving")
    await cluster.kill()
    lent = dict(cluster.pods)
    for name in lent:
        cluster.kube.remove(kinds.POD, name, "ml")  # kubectl delete pod
    await cluster.until(lambda: cluster.pods == {})
    await asyncio.sleep(1)
    assert [(pod.device.used, pod.engine.running) for pod in lent.values()] == [(0, False)] * 2
    await cluster.start(planner=True)
    await cluster.until(lambda: cluster.loan()["phase"] == "Idle")
    assert (cluster.loan()["reason"], cluster.loan()["epoch"]) == ("BorrowersGone", 1)
    assert "free" not in cluster.loan()["history"][-1]  # nobody read the device
    await cluster.until(lambda: len(cluster.pods) == 2)
    await asyncio.sleep(60)
    assert [pod.engine.launches for pod in cluster.pods.values()] == [0, 0]
    assert cluster.loan()["phase"] == "Idle"
    assert (await loan.reclaim()).via == "agents"  # the operator says that those pods are gone
    await loan.lend()
    await cluster.until(lambda: loan.lent and cluster.loan()["phase"] == "Serving")
    assert (cluster.loan()["reason"], cluster.loan()["epoch"]) == ("Granted", 2)
    await loan.close()
    await client.close()


async def test_one_borrower_deleted_by_hand_leaves_the_other_one_serving(cluster: LoanCluster) -> None:
    client = await cluster.begin(planner=True)
    loan = await client.register(rollout="swe")
    await cluster.until(lambda: cluster.loan().get("phase") == "Serving")
    await cluster.kill()
    cluster.kube.remove(kinds.POD, "trainer-0-borrower-0", "ml")
    await cluster.until(lambda: "trainer-0-borrower-0" not in cluster.pods)
    await cluster.start(planner=True)
    await cluster.until(lambda: "trainer-0-borrower-0" in cluster.pods)
    await asyncio.sleep(30)
    assert (cluster.loan()["phase"], cluster.loan()["reason"]) == ("Serving", "Granted")
    assert [slot["phase"] for slot in cluster.loan()["slots"]] == ["Cold", "Ready"]
    assert cluster.pods["trainer-0-borrower-0"].engine.launches == 0
    assert (await loan.reclaim()).via == "agents"
    await loan.close()
    await client.close()


async def test_a_trainer_whose_borrowers_were_deleted_trains_on_with_the_operator_dead(cluster: LoanCluster) -> None:
    await (await cluster.begin(planner=True)).close()
    settings = cluster.add_trainer("trainer-1")
    client = cluster.client(settings, lambda: (sum(pod.device.used or 0 for pod in cluster.pods.values()),))
    loan = await client.register(rollout="swe")
    await cluster.until(lambda: cluster.loan("trainer-1").get("phase") == "Serving")
    await cluster.kill()
    cluster.kube.down = True
    for name in list(cluster.pods):
        await cluster.pods.pop(name).stop()
    free = await loan.reclaim(within=12)  # longer than the lease, whose end proves it where no agent is left to ask
    assert free.via == "lease"
    await client.close()


async def test_a_budget_of_no_gpus_keeps_what_was_taken_by_hand_from_being_lent_again(cluster: LoanCluster) -> None:
    client = await cluster.begin(planner=True)
    loan = await client.register(rollout="swe")
    await cluster.until(lambda: cluster.loan().get("phase") == "Serving")
    await cluster.kill()
    for name in list(cluster.pods):
        cluster.kube.remove(kinds.POD, name, "ml")
    cluster.kube.patch(kinds.ROLLOUT, "swe", "pearl", {"spec": {"capacity": {"borrowed": {"maxGpus": 0}}}})
    await cluster.start(planner=True)
    await cluster.until(lambda: cluster.loan()["phase"] == "Idle")
    await loan.reclaim()
    await loan.lend()
    await asyncio.sleep(30)
    assert not loan.lent
    assert cluster.loan()["reason"] == "BudgetLimit"
    await loan.close()
    await client.close()
