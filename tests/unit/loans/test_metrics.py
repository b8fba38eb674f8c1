"""What loans tell Prometheus: every phase, every answer, and GPUs that two may hold."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import pytest

from pearl_operator import kinds

if TYPE_CHECKING:
    from loan_cluster import LoanCluster

pytestmark = pytest.mark.looptime

CHAIN = ["Idle", "Offered", "Granted", "Waking", "Serving", "Draining", "CoolingDown", "Idle"]


def value(cluster: LoanCluster, name: str, **labels: Any) -> float | None:
    every = {"rollout_namespace": "pearl", "rollout": "swe", **labels}
    return cluster.service.metrics.get_sample_value(name, every)


async def test_every_change_of_phase_is_counted_and_timed(cluster: LoanCluster) -> None:
    client = await cluster.begin()
    loan = await client.register(rollout="swe")
    await cluster.until(lambda: cluster.loan()["phase"] == "Serving")
    assert value(cluster, "pearl_loans", phase="Serving") == 1
    assert value(cluster, "pearl_loan_gpus", phase="Serving") == 2
    for killed in ("false", "true"):
        assert value(cluster, "pearl_loan_reclaim_seconds_count", killed=killed) == 0
    await asyncio.sleep(30)
    await loan.reclaim()
    await cluster.until(lambda: cluster.loan()["phase"] == "Idle")
    for phase, following in itertools.pairwise(CHAIN):
        labels = {"phase": phase, "next": following}
        assert value(cluster, "pearl_loan_phase_changes_total", **labels) == 1, labels
    lasted = value(cluster, "pearl_loan_phase_seconds_sum", phase="Serving", next="Draining")
    assert lasted == pytest.approx(30, abs=1)
    assert value(cluster, "pearl_loan_answers_total", reason="Granted") == 1
    assert value(cluster, "pearl_loan_reclaim_seconds_count", killed="false") == 1
    assert value(cluster, "pearl_loan_not_returned_total") == 0
    await client.close()


async def test_the_overlap_with_a_trainer_that_ended_is_measured_until_its_borrowers_rest(cluster: LoanCluster) -> None:
    client = await cluster.begin()
    loan = await client.register(rollout="swe")
    await cluster.until(lambda: cluster.loan()["phase"] == "Serving")
    for work in loan._beside or []:
        await work.stop()  # its process is gone
    trainer = cluster.kube.objects["pods", "ml", "trainer-0"]
    cluster.kube.store(kinds.POD, {**trainer, "status": {"phase": "Failed"}})
    ended = asyncio.get_running_loop().time()
    await cluster.until(lambda: cluster.loan().get("phase") == "Lost")
    await cluster.until(lambda: value(cluster, "pearl_loan_overlap_seconds_count", access="VisibleDevices") == 1)
    overlap = value(cluster, "pearl_loan_overlap_seconds_sum", access="VisibleDevices")
    assert overlap is not None
    # The lease of 8 s, then at most the 10 s of a reclaim; this pod tells no end, so it counts from when it was seen.
    assert overlap <= asyncio.get_running_loop().time() - ended <= 8 + 10 + 2
    assert {pod.device.used for pod in cluster.pods.values()} <= {0}
    await client.close()


async def test_a_trainer_pod_that_was_deleted_counts_from_then(cluster: LoanCluster) -> None:
    client = await cluster.begin()
    loan = await client.register(rollout="swe")
    await cluster.until(lambda: cluster.loan()["phase"] == "Serving")
    for work in loan._beside or []:
        await work.stop()
    cluster.kube.remove(kinds.POD, "trainer-0", "ml")  # GPULoan and borrowers go by their owner reference
    await cluster.until(lambda: value(cluster, "pearl_loan_overlap_seconds_count", access="VisibleDevices") == 1)
    assert cluster.loan() == {}
    overlap = value(cluster, "pearl_loan_overlap_seconds_sum", access="VisibleDevices")
    assert overlap is not None
    assert 0 < overlap < 5
    await cluster.until(lambda: value(cluster, "pearl_loan_overlaps") == 0)
    await client.close()


@pytest.mark.parametrize("operator_looked", [True, False])
async def test_of_a_rollout_that_is_gone_no_series_is_left(cluster: LoanCluster, *, operator_looked: bool) -> None:
    client = await cluster.begin(planner=True)
    loan = await client.register(rollout="swe")
    await cluster.until(lambda: cluster.loan().get("phase") == "Serving")
    if not operator_looked:  # it is deleted while no operator runs, so that the next one never looks at it
        await cluster.kill()
    cluster.kube.remove(kinds.ROLLOUT, "swe", "pearl")
    if not operator_looked:
        await cluster.start(planner=True)
    await cluster.until(lambda: cluster.loan()["phase"] == "Deregistered")
    await asyncio.sleep(20)
    series = {
        sample.name
        for family in cluster.service.metrics.collect()
        for sample in family.samples
        if sample.labels.get("rollout") == "swe"
    }
    assert series == set()
    await loan.close()
    await client.close()
