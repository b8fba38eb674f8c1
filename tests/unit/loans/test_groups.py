"""Trainers of several pods: one handle lends and takes back the GPUs of all of them, or of none."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from pearl_operator import kinds
from pearl_trainer import NotReturned, Rejected

if TYPE_CHECKING:
    from loan_cluster import LoanCluster

    from pearl_trainer.async_client import AsyncLoan, AsyncPearlClient

pytestmark = pytest.mark.looptime

PODS = ("trainer-0", "worker-1")


class Job:
    """Two GPU pods and a driver without GPUs."""

    def __init__(self, cluster: LoanCluster) -> None:
        self.cluster = cluster
        self.clients: list[AsyncPearlClient] = []
        self.members: list[AsyncLoan] = []

    async def member(self, name: str) -> None:
        settings = self.cluster.add_trainer(name, node=f"node-of-{name}")
        self.clients.append(self.cluster.client(settings))
        self.members.append(await self.clients[-1].register(rollout="swe", group="job"))

    async def drive(self, *, lend: bool = True, name: str = "driver") -> AsyncLoan:
        client = self.cluster.client(self.cluster.add_trainer(name, gpus=0))
        self.clients.append(client)
        return await client.register_group(rollout="swe", group="job", members=len(PODS), lend=lend)

    async def close(self) -> None:
        for client in self.clients:
            await client.close()

    def phases(self) -> list[str]:
        return [self.cluster.loan(name).get("phase", "") for name in PODS]

    def serving(self) -> bool:
        pods = self.cluster.pods.values()
        return len(pods) == 4 and all(pod.worker.ready for pod in pods) and self.phases() == ["Serving"] * 2

    def used(self) -> list[int | None]:
        return [pod.device.used for pod in self.cluster.pods.values()]


@pytest.fixture
async def job(cluster: LoanCluster) -> Job:
    return Job(cluster)


async def test_a_driver_without_gpus_lends_and_takes_back_all_pods_under_one_epoch(job: Job) -> None:
    job.clients.append(await job.cluster.begin())
    for name in PODS:
        await job.member(name)
    loan = await job.drive()
    await job.cluster.until(job.serving)
    assert job.cluster.answers == 1  # the planner takes a group or leaves it
    assert [job.cluster.loan(name)["epoch"] for name in PODS] == [1, 1]
    await asyncio.sleep(30)
    assert job.serving()  # renewed by the driver, each agent with its own token
    started = asyncio.get_running_loop().time()
    free = await loan.reclaim()
    assert (free.via, free.epoch) == ("agents", 1)
    assert asyncio.get_running_loop().time() - started < 1
    assert job.used() == [0] * 4
    await job.cluster.until(lambda: job.phases() == ["Idle"] * 2)
    assert [job.cluster.loan(name)["history"][-1]["free"] for name in PODS] == [True, True]
    await loan.lend()
    await job.cluster.until(job.serving)
    assert loan.epoch == 2
    await loan.close()
    assert job.phases() == ["Deregistered"] * 2
    await job.close()


async def test_a_group_is_not_lent_before_all_its_pods_are_there(job: Job) -> None:
    job.clients.append(await job.cluster.begin())
    await job.member("trainer-0")
    loan = await job.drive(lend=False)
    await job.cluster.borrowers_run(2)
    result = await loan.lend()
    assert result.reason == "GroupIncomplete"
    assert "1 pods of group job are enrolled (trainer-0) and the driver expects 2" in result.message
    await job.member("worker-1")
    await job.cluster.until(job.serving)  # the SDK goes on offering
    await loan.close()
    await job.close()


async def test_one_agent_that_refuses_refuses_the_whole_group(job: Job) -> None:
    job.clients.append(await job.cluster.begin())
    for name in PODS:
        await job.member(name)
    loan = await job.drive(lend=False)
    await job.cluster.borrowers_run(4)
    job.cluster.pods["worker-1-borrower-0"].device.used = None
    result = await loan.lend()
    assert (result.granted, result.reason) == (False, "AgentUnavailable")
    assert "worker-1-borrower-0" in result.message
    assert not loan.lent
    assert (await loan.reclaim()).via == "agents"
    assert not any(pod.engine.running for pod in job.cluster.pods.values())
    await loan.close()
    await job.close()


async def test_a_pod_of_a_group_does_not_lend_by_itself(job: Job) -> None:
    job.clients.append(await job.cluster.begin())
    await job.member("trainer-0")
    await job.cluster.borrowers_run(2)
    registration = job.members[0].registration
    assert registration is not None
    async with job.clients[0]._driver._loans as http:
        answer = await http.post(
            f"http://operator{registration.path}/lend",
            json={"requestId": "request-1"},
            headers={"Authorization": f"Bearer {registration.token}"},
        )
    assert (answer.status_code, answer.json()["error"]) == (409, "MemberOfGroup")
    assert "/v1/groups/ml/job/lend" in answer.json()["message"]
    await job.close()


async def test_a_pod_that_dies_takes_its_borrowers_along_and_the_others_come_back(job: Job) -> None:
    job.clients.append(await job.cluster.begin())
    for name in PODS:
        await job.member(name)
    loan = await job.drive()
    await job.cluster.until(job.serving)
    job.cluster.kube.remove(kinds.POD, "worker-1", "ml")
    free = await loan.reclaim()  # the pod's borrowers are still there, and are asked
    assert free.via == "agents"
    await job.cluster.until(lambda: len(job.cluster.pods) == 2)
    result = await loan.lend()
    assert result.reason in ("CoolingDown", "GroupIncomplete")
    await job.member("worker-1")  # started again
    await job.cluster.until(job.serving)
    await loan.close()
    await job.close()


async def test_a_pod_that_vanished_counts_as_free_only_when_its_borrowers_are_gone(job: Job) -> None:
    job.clients.append(await job.cluster.begin())
    for name in PODS:
        await job.member(name)
    loan = await job.drive()
    await job.cluster.until(job.serving)
    for number in range(2):
        job.cluster.pods[f"worker-1-borrower-{number}"].reachable = False
    with pytest.raises(NotReturned, match="worker-1-borrower-0"):
        await loan.reclaim(within=1)
    job.cluster.kube.remove(kinds.POD, "worker-1", "ml")
    assert (await loan.reclaim()).via == "agents"  # after the garbage collector
    assert len(job.cluster.pods) == 2
    await loan.close()
    await job.close()


async def test_when_the_driver_dies_every_engine_stops_and_another_driver_goes_on(job: Job) -> None:
    job.clients.append(await job.cluster.begin())
    for name in PODS:
        await job.member(name)
    loan = await job.drive()
    await job.cluster.until(job.serving)
    for work in loan._beside or []:
        await work.stop()
    await asyncio.sleep(8 + 10)  # lease, then the time it may take to vacate
    assert job.used() == [0] * 4
    again = await job.drive(lend=False, name="driver-again")
    assert again.epoch == 1
    assert (await again.reclaim()).via == "agents"
    await again.lend()
    await job.cluster.until(job.serving)
    assert again.epoch == 2
    await again.close()
    await job.close()


async def test_all_pods_of_a_group_lend_to_one_rollout(job: Job) -> None:
    job.clients.append(await job.cluster.begin())
    other = {**job.cluster.rollout_body, "metadata": {"name": "other", "namespace": "pearl"}}
    job.cluster.kube.store(kinds.ROLLOUT, other)
    await job.cluster.until(lambda: len(job.cluster.index.rollouts) == 2)
    await job.member("trainer-0")
    client = job.cluster.client(job.cluster.add_trainer("stray"))
    with pytest.raises(Rejected, match="lends to PearlRollout pearl/swe, not pearl/other"):
        await client.register(rollout="other", group="job")
    with pytest.raises(Rejected, match="register all pods of a group and its driver with one rollout"):
        await client.register_group(rollout="other", group="job", members=2)
    await client.close()
    await job.close()
