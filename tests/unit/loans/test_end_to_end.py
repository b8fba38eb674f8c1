"""SDK, loan API and worker agents together: what a trainer and a cluster administrator would see."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from pearl_operator import kinds
from pearl_trainer import NotReturned, Rejected

if TYPE_CHECKING:
    from loans_bench import Bench

pytestmark = pytest.mark.looptime


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_lend_serve_reclaim_and_the_record_of_it(bench: Bench) -> None:
    client = bench.client()
    async with await client.register(rollout="swe") as loan:
        await bench.until(lambda: loan.lent)
        await bench.until(lambda: bench.status()["phase"] == "Serving")
        assert sorted(bench.pods) == ["trainer-0-borrower-0", "trainer-0-borrower-1"]
        assert all(pod.worker.ready for pod in bench.pods.values())
        for pod in bench.pods.values():
            pod.engine.in_flight = 5
            pod.engine.pinned_seconds = 2.0
        await asyncio.sleep(20)
        started = now()
        async with loan.training():
            assert now() - started < 10
            assert [pod.device.used for pod in bench.pods.values()] == [0, 0]
            await bench.until(lambda: bench.status()["phase"] == "Idle")
        await bench.until(lambda: bench.status()["phase"] == "Serving")
        assert loan.epoch == 2
        assert [pod.engine.launches for pod in bench.pods.values()] == [1, 1]  # woken from sleep, not started anew
    past = bench.status()["history"][0]
    assert past["epoch"] == 1
    assert past["free"] is True
    assert past["wakingSeconds"] >= 5
    assert past["servingSeconds"] >= 20
    assert 0 < past["reclaimSeconds"] < 10
    assert bench.status()["phase"] == "Deregistered"
    assert bench.pods == {}
    await client.close()


async def test_reclaim_with_operator_and_api_server_dead(bench: Bench) -> None:
    client = bench.client()
    loan = await client.register(rollout="swe")
    await bench.until(lambda: all(pod.worker.ready for pod in bench.pods.values()) and bool(bench.pods))
    bench.network.operator_up, bench.kube.down = False, True
    await asyncio.sleep(60)
    assert all(pod.worker.ready for pod in bench.pods.values())  # the operator is not in the renewal path
    started = now()
    free = await loan.reclaim()
    assert free.via == "agents"
    assert not free.killed
    assert now() - started < 1
    assert [pod.device.used for pod in bench.pods.values()] == [0, 0]
    bench.network.operator_up, bench.kube.down = True, False
    result = await loan.lend()
    await bench.until(lambda: loan.lent)
    assert loan.epoch > free.epoch
    assert result.reason in ("Granted", "CoolingDown")
    await loan.close()
    await client.close()


async def test_an_engine_that_does_not_sleep_is_killed_before_the_deadline(bench: Bench) -> None:
    client = bench.client()
    loan = await client.register(rollout="swe")
    await bench.until(lambda: all(pod.worker.ready for pod in bench.pods.values()) and bool(bench.pods))
    bench.pods["trainer-0-borrower-1"].engine.sleeps = False
    started = now()
    free = await loan.reclaim(within=6)
    assert free.killed
    assert now() - started < 6
    await loan.close()
    await client.close()


async def test_an_agent_restarted_after_a_reclaim_starts_no_engine(bench: Bench) -> None:
    client = bench.client()
    loan = await client.register(rollout="swe")
    await bench.until(lambda: all(pod.worker.ready for pod in bench.pods.values()) and bool(bench.pods))
    async with loan.training():
        for pod in bench.pods.values():
            await pod.restart()
        await asyncio.sleep(120)
        assert [pod.engine.running for pod in bench.pods.values()] == [False, False]
        assert [pod.worker.loan_state().fenced for pod in bench.pods.values()] == [True, True]
    await bench.until(lambda: all(pod.worker.ready for pod in bench.pods.values()))
    await loan.close()
    await client.close()


async def test_an_agent_restarted_while_lent_is_fenced_until_a_new_epoch(bench: Bench) -> None:
    client = bench.client()
    loan = await client.register(rollout="swe")
    await bench.until(lambda: all(pod.worker.ready for pod in bench.pods.values()) and bool(bench.pods))
    for pod in bench.pods.values():
        await pod.restart()
    assert not any(pod.engine.running for pod in bench.pods.values())
    await bench.until(lambda: loan.lent and loan.epoch == 2)
    assert (await loan.reclaim()).via == "agents"
    await loan.close()
    await client.close()


async def test_a_trainer_that_dies_silently_leaves_no_engine_running(bench: Bench) -> None:
    client = bench.client()
    loan = await client.register(rollout="swe")
    await bench.until(lambda: all(pod.worker.ready for pod in bench.pods.values()) and bool(bench.pods))
    for work in loan._beside or []:
        await work.stop()
    await asyncio.sleep(8 + 10)  # lease, then the time it may take to vacate
    assert [pod.device.used for pod in bench.pods.values()] == [0, 0]
    await bench.until(lambda: bench.status()["phase"] == "Idle")
    assert bench.status()["history"][-1]["free"] is True
    # The restarted trainer fences what its predecessor lent.
    again = await client.register(rollout="swe", lend=False)
    assert (await again.reclaim()).via == "agents"
    await again.close()
    await client.close()


async def test_a_cut_link_is_not_called_free_and_the_engine_stops_by_itself(bench: Bench) -> None:
    client = bench.client()
    loan = await client.register(rollout="swe")
    await bench.until(lambda: all(pod.worker.ready for pod in bench.pods.values()) and bool(bench.pods))
    cut = bench.pods["trainer-0-borrower-0"]
    cut.reachable = False
    with pytest.raises(NotReturned, match="trainer-0-borrower-0"):
        await loan.reclaim()
    assert cut.device.used == 0  # by its lease
    cut.reachable = True
    assert (await loan.reclaim()).via == "agents"
    await loan.close()
    await client.close()


async def test_a_refused_offer_says_why_and_makes_no_epoch(bench: Bench) -> None:
    bench.planner = lambda: (False, "BorrowNotWorthwhile")
    client = bench.client()
    loan = await client.register(rollout="swe")
    await bench.until(lambda: bench.answers >= 5)
    assert not loan.lent
    assert loan.epoch == 0
    assert (bench.status()["phase"], bench.status()["reason"]) == ("Offered", "BorrowNotWorthwhile")
    written = len(bench.kube.statuses)
    await asyncio.sleep(30)
    assert len(bench.kube.statuses) == written  # offers that repeat write nothing
    await loan.reclaim()
    await bench.until(lambda: bench.status()["phase"] == "Idle")
    await loan.close()
    await client.close()


async def test_a_planner_that_does_not_answer_is_a_refusal(bench: Bench) -> None:
    bench.planner = lambda: None
    client = bench.client()
    loan = await client.register(rollout="swe", lend=False)
    await bench.until(lambda: len(bench.pods) == 2)
    started = now()
    result = await loan.lend()
    assert (result.granted, result.reason) == (False, "NoAnswer")
    assert now() - started < 4
    await loan.close()
    await client.close()


async def test_a_grant_is_answered_within_a_tenth_of_a_second(bench: Bench) -> None:
    client = bench.client()
    loan = await client.register(rollout="swe", lend=False)
    await bench.until(lambda: len(bench.pods) == 2)
    started = now()
    result = await loan.lend(cap_seconds=120)
    assert result.granted
    assert now() - started < 0.1
    assert bench.status()["capSeconds"] == 120
    await loan.close()
    await client.close()


async def test_after_a_reclaim_there_is_a_short_cool_down_and_no_longer_one(bench: Bench) -> None:
    client = bench.client()
    loan = await client.register(rollout="swe", lend=False)
    await bench.until(lambda: len(bench.pods) == 2)
    await loan.lend()
    await bench.until(lambda: bench.status()["phase"] == "Serving")
    await loan.reclaim()
    assert (await loan.lend()).reason == "CoolingDown"
    await loan.reclaim()
    await asyncio.sleep(1.1)
    assert (await loan.lend()).granted
    await loan.close()
    await client.close()


async def test_one_agent_that_refuses_refuses_the_whole_loan_and_stops_no_training(bench: Bench) -> None:
    client = bench.client()
    loan = await client.register(rollout="swe", lend=False)
    await bench.until(lambda: len(bench.pods) == 2)
    blind = bench.pods["trainer-0-borrower-1"]
    blind.device.used = None  # memory that cannot be read could not be proven to come back
    result = await loan.lend()
    assert (result.granted, result.reason) == (False, "AgentUnavailable")
    assert "device memory cannot be read" in result.message
    free = await loan.reclaim()  # the other agent had accepted
    assert free.via == "agents"
    assert bench.pods["trainer-0-borrower-0"].device.used == 0
    assert blind.worker.loan_state().epoch == free.epoch  # fenced as well
    await loan.close()
    await client.close()


async def test_a_trainer_that_did_not_empty_its_gpu_is_refused_and_trains_on(bench: Bench) -> None:
    client = bench.client()
    loan = await client.register(rollout="swe")
    await bench.until(lambda: bench.status().get("phase") == "Serving")
    await loan.reclaim()
    await asyncio.sleep(2)
    for pod in bench.pods.values():
        pod.device.used = 30 << 30  # the trainer's own: it forgot to offload
    result = await loan.lend()
    assert result.reason == "AgentUnavailable"
    assert "bytes of the device are in use" in result.message
    assert (await loan.reclaim()).via == "agents"
    await loan.close()
    await client.close()


async def test_the_epoch_is_stored_before_an_agent_hears_of_it(bench: Bench) -> None:
    client = bench.client()
    loan = await client.register(rollout="swe", lend=False)
    await bench.until(lambda: len(bench.pods) == 2)
    bench.kube.down = True
    result = await loan.lend()
    assert not result.granted
    assert [pod.worker.loan_state().epoch for pod in bench.pods.values()] == [0, 0]
    bench.kube.down = False
    await loan.close()
    await client.close()


async def test_borrowers_that_vanish_are_made_again(bench: Bench) -> None:
    client = bench.client()
    loan = await client.register(rollout="swe")
    await bench.until(lambda: loan.lent)
    async with loan.training():
        await bench.until(lambda: bench.status()["phase"] == "Idle")
        old = bench.kube.objects["pods", "ml", "trainer-0-borrower-0"]["metadata"]["uid"]
        await bench.kube.delete(kinds.POD, "trainer-0-borrower-0", "ml")
        await bench.until(lambda: ("pods", "ml", "trainer-0-borrower-0") in bench.kube.objects)
    await bench.until(lambda: loan.lent)
    assert loan.registration is not None
    assert bench.kube.objects["pods", "ml", "trainer-0-borrower-0"]["metadata"]["uid"] != old
    assert (await loan.reclaim()).via == "agents"
    await loan.close()
    await client.close()


async def test_an_unreviewed_token_is_refused_with_how_to_get_one(bench: Bench) -> None:
    bench.write_token("stolen")
    client = bench.client()
    with pytest.raises(Rejected, match=r"token is expired.*audience `pearl`") as caught:
        await client.register(rollout="swe")
    assert caught.value.reason == "NotAuthenticated"
    await client.close()
