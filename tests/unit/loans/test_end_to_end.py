"""SDK, loan API and worker agents together: what a trainer and a cluster administrator would see."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from pearl_operator import kinds
from pearl_trainer import NotReturned, Rejected

if TYPE_CHECKING:
    from pathlib import Path

    from loan_cluster import LoanCluster

pytestmark = pytest.mark.looptime


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_lend_serve_reclaim_and_the_record_of_it(cluster: LoanCluster) -> None:
    client = await cluster.begin()
    async with await client.register(rollout="swe") as loan:
        await cluster.until(lambda: loan.lent)
        await cluster.until(lambda: cluster.loan()["phase"] == "Serving")
        assert sorted(cluster.pods) == ["trainer-0-borrower-0", "trainer-0-borrower-1"]
        assert all(pod.worker.ready for pod in cluster.pods.values())
        for pod in cluster.pods.values():
            pod.engine.in_flight = 5
            pod.engine.pinned_seconds = 2.0
        await asyncio.sleep(20)
        started = now()
        async with loan.training():
            assert now() - started < 10
            assert [pod.device.used for pod in cluster.pods.values()] == [0, 0]
            await cluster.until(lambda: cluster.loan()["phase"] == "Idle")
        await cluster.until(lambda: cluster.loan()["phase"] == "Serving")
        assert loan.epoch == 2
        assert [pod.engine.launches for pod in cluster.pods.values()] == [1, 1]  # woken from sleep, not started anew
    past = cluster.loan()["history"][0]
    assert past["epoch"] == 1
    assert past["free"] is True
    assert past["wakingSeconds"] >= 5
    assert past["servingSeconds"] >= 20
    assert 0 < past["reclaimSeconds"] < 10
    assert cluster.loan()["phase"] == "Deregistered"
    await cluster.until(lambda: cluster.pods == {})
    await client.close()


async def test_reclaim_with_operator_and_api_server_dead(cluster: LoanCluster) -> None:
    client = await cluster.begin()
    loan = await client.register(rollout="swe")
    await cluster.until(lambda: all(pod.worker.ready for pod in cluster.pods.values()) and bool(cluster.pods))
    cluster.network.operator_up, cluster.kube.down = False, True
    await asyncio.sleep(60)
    assert all(pod.worker.ready for pod in cluster.pods.values())  # the operator is not in the renewal path
    started = now()
    free = await loan.reclaim()
    assert free.via == "agents"
    assert not free.killed
    assert now() - started < 1
    assert [pod.device.used for pod in cluster.pods.values()] == [0, 0]
    cluster.network.operator_up, cluster.kube.down = True, False
    result = await loan.lend()
    await cluster.until(lambda: loan.lent)
    assert loan.epoch > free.epoch
    assert result.reason in ("Granted", "CoolingDown")
    await loan.close()
    await client.close()


async def test_an_engine_that_does_not_sleep_is_killed_before_the_deadline(cluster: LoanCluster) -> None:
    client = await cluster.begin()
    loan = await client.register(rollout="swe")
    await cluster.until(lambda: all(pod.worker.ready for pod in cluster.pods.values()) and bool(cluster.pods))
    cluster.pods["trainer-0-borrower-1"].engine.sleeps = False
    started = now()
    free = await loan.reclaim(within=6)
    assert free.killed
    assert now() - started < 6
    await loan.close()
    await client.close()


async def test_an_agent_restarted_after_a_reclaim_starts_no_engine(cluster: LoanCluster) -> None:
    client = await cluster.begin()
    loan = await client.register(rollout="swe")
    await cluster.until(lambda: all(pod.worker.ready for pod in cluster.pods.values()) and bool(cluster.pods))
    async with loan.training():
        for pod in cluster.pods.values():
            await pod.restart()
        await asyncio.sleep(120)
        assert [pod.engine.running for pod in cluster.pods.values()] == [False, False]
        assert [pod.worker.loan_state().fenced for pod in cluster.pods.values()] == [True, True]
    await cluster.until(lambda: all(pod.worker.ready for pod in cluster.pods.values()))
    await loan.close()
    await client.close()


async def test_an_agent_restarted_while_lent_is_fenced_until_a_new_epoch(cluster: LoanCluster) -> None:
    client = await cluster.begin()
    loan = await client.register(rollout="swe")
    await cluster.until(lambda: all(pod.worker.ready for pod in cluster.pods.values()) and bool(cluster.pods))
    for pod in cluster.pods.values():
        await pod.restart()
    assert not any(pod.engine.running for pod in cluster.pods.values())
    await cluster.until(lambda: loan.lent and loan.epoch == 2)
    assert (await loan.reclaim()).via == "agents"
    await loan.close()
    await client.close()


async def test_a_trainer_that_dies_silently_leaves_no_engine_running(cluster: LoanCluster) -> None:
    client = await cluster.begin()
    loan = await client.register(rollout="swe")
    await cluster.until(lambda: all(pod.worker.ready for pod in cluster.pods.values()) and bool(cluster.pods))
    for work in loan._beside or []:
        await work.stop()
    await asyncio.sleep(8 + 10)  # lease, then the time it may take to vacate
    assert [pod.device.used for pod in cluster.pods.values()] == [0, 0]
    await cluster.until(lambda: cluster.loan()["phase"] == "Idle")
    assert cluster.loan()["history"][-1]["free"] is True
    # The restarted trainer fences what its predecessor lent.
    again = await client.register(rollout="swe", lend=False)
    assert (await again.reclaim()).via == "agents"
    await again.close()
    await client.close()


async def test_a_cut_link_is_not_called_free_and_the_engine_stops_by_itself(cluster: LoanCluster) -> None:
    client = await cluster.begin()
    loan = await client.register(rollout="swe")
    await cluster.until(lambda: all(pod.worker.ready for pod in cluster.pods.values()) and bool(cluster.pods))
    cut = cluster.pods["trainer-0-borrower-0"]
    cut.reachable = False
    with pytest.raises(NotReturned, match="trainer-0-borrower-0"):
        await loan.reclaim()
    assert cut.device.used == 0  # by its lease
    cut.reachable = True
    assert (await loan.reclaim()).via == "agents"
    await loan.close()
    await client.close()


async def test_a_refused_offer_says_why_and_makes_no_epoch(cluster: LoanCluster) -> None:
    cluster.planner = lambda: (False, "BorrowNotWorthwhile")
    client = await cluster.begin()
    loan = await client.register(rollout="swe")
    await cluster.until(lambda: cluster.answers >= 5)
    assert not loan.lent
    assert loan.epoch == 0
    assert (cluster.loan()["phase"], cluster.loan()["reason"]) == ("Offered", "BorrowNotWorthwhile")
    written = len(cluster.statuses)
    await asyncio.sleep(30)
    assert len(cluster.statuses) == written  # offers that repeat write nothing
    await loan.reclaim()
    await cluster.until(lambda: cluster.loan()["phase"] == "Idle")
    await loan.close()
    await client.close()


async def test_a_planner_that_does_not_answer_is_a_refusal(cluster: LoanCluster) -> None:
    cluster.planner = lambda: None
    client = await cluster.begin()
    loan = await client.register(rollout="swe", lend=False)
    await cluster.borrowers_run()
    started = now()
    result = await loan.lend()
    assert (result.granted, result.reason) == (False, "NoAnswer")
    assert now() - started < 4
    await loan.close()
    await client.close()


async def test_a_grant_is_answered_within_a_tenth_of_a_second(cluster: LoanCluster) -> None:
    client = await cluster.begin()
    loan = await client.register(rollout="swe", lend=False)
    await cluster.borrowers_run()
    started = now()
    result = await loan.lend(cap_seconds=120)
    assert result.granted
    assert now() - started < 0.1
    assert cluster.loan()["capSeconds"] == 120
    await loan.close()
    await client.close()


async def test_after_a_reclaim_there_is_a_short_cool_down_and_no_longer_one(cluster: LoanCluster) -> None:
    client = await cluster.begin()
    loan = await client.register(rollout="swe", lend=False)
    await cluster.borrowers_run()
    await loan.lend()
    await cluster.until(lambda: cluster.loan()["phase"] == "Serving")
    await loan.reclaim()
    assert (await loan.lend()).reason == "CoolingDown"
    await loan.reclaim()
    await asyncio.sleep(1.1)
    assert (await loan.lend()).granted
    await loan.close()
    await client.close()


async def test_one_agent_that_refuses_refuses_the_whole_loan_and_stops_no_training(cluster: LoanCluster) -> None:
    client = await cluster.begin()
    loan = await client.register(rollout="swe", lend=False)
    await cluster.borrowers_run()
    blind = cluster.pods["trainer-0-borrower-1"]
    blind.device.used = None  # memory that cannot be read could not be proven to come back
    result = await loan.lend()
    assert (result.granted, result.reason) == (False, "AgentUnavailable")
    assert "device memory cannot be read" in result.message
    free = await loan.reclaim()  # the other agent had accepted
    assert free.via == "agents"
    assert cluster.pods["trainer-0-borrower-0"].device.used == 0
    assert blind.worker.loan_state().epoch == free.epoch  # fenced as well
    await loan.close()
    await client.close()


async def test_a_trainer_that_did_not_empty_its_gpu_is_refused_and_trains_on(cluster: LoanCluster) -> None:
    client = await cluster.begin()
    loan = await client.register(rollout="swe")
    await cluster.until(lambda: cluster.loan().get("phase") == "Serving")
    await loan.reclaim()
    await asyncio.sleep(2)
    for pod in cluster.pods.values():
        pod.device.used = 30 << 30  # the trainer's own: it forgot to offload
    result = await loan.lend()
    assert result.reason == "AgentUnavailable"
    assert "bytes of the device are in use" in result.message
    assert (await loan.reclaim()).via == "agents"
    await loan.close()
    await client.close()


async def test_the_epoch_is_stored_before_an_agent_hears_of_it(cluster: LoanCluster) -> None:
    client = await cluster.begin()
    loan = await client.register(rollout="swe", lend=False)
    await cluster.borrowers_run()
    cluster.kube.down = True
    result = await loan.lend()
    assert not result.granted
    assert [pod.worker.loan_state().epoch for pod in cluster.pods.values()] == [0, 0]
    cluster.kube.down = False
    await loan.close()
    await client.close()


async def test_borrowers_that_vanish_are_made_again(cluster: LoanCluster) -> None:
    client = await cluster.begin()
    loan = await client.register(rollout="swe")
    await cluster.until(lambda: loan.lent)
    async with loan.training():
        await cluster.until(lambda: cluster.loan()["phase"] == "Idle")
        old = cluster.pods["trainer-0-borrower-0"]
        await cluster.kube.delete(kinds.POD, "trainer-0-borrower-0", "ml")
        await cluster.until(lambda: cluster.pods.get("trainer-0-borrower-0") not in (None, old))
    await cluster.until(lambda: loan.lent)
    assert (await loan.reclaim()).via == "agents"
    await loan.close()
    await client.close()


async def test_an_unreviewed_token_is_refused_with_how_to_get_one(cluster: LoanCluster, tmp_path: Path) -> None:
    client = await cluster.begin()
    (tmp_path / "token-trainer-0").write_text("stolen")
    with pytest.raises(Rejected, match=r"token is expired.*audience `pearl`") as caught:
        await client.register(rollout="swe")
    assert caught.value.reason == "NotAuthenticated"
    await client.close()


async def test_offering_again_does_not_take_an_engines_memory_for_the_trainers_own(cluster: LoanCluster) -> None:
    await (await cluster.begin()).close()
    settings = cluster.add_trainer("trainer-1")
    client = cluster.client(settings, lambda: (sum(pod.device.used or 0 for pod in cluster.pods.values()),))
    loan = await client.register(rollout="swe")
    await cluster.until(lambda: cluster.loan("trainer-1").get("phase") == "Serving")
    await loan.lend()  # the engines are awake
    for pod in cluster.pods.values():
        pod.reachable, pod.engine.sleeps = False, False
    with pytest.raises(NotReturned):
        await loan.reclaim(within=12)  # their lease is over by then, and they are not killed yet
    assert any(pod.device.used for pod in cluster.pods.values())
    await client.close()
