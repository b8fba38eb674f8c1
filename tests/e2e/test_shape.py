"""From `kubectl apply` to pods: readiness, columns, and changes that touch only what they must."""

from __future__ import annotations

import time
from concurrent.futures import wait
from datetime import datetime
from typing import TYPE_CHECKING

import pytest
from traffic import Traffic, prompt, steady

from pearl_dev.fleet import wait_for
from pearl_dev.product import NAMESPACE

if TYPE_CHECKING:
    from pearl_dev.fleet import Fleet
    from pearl_dev.product import Installation

pytestmark = pytest.mark.cluster


def test_the_quickstart_becomes_ready_and_its_columns_tell(quickstart: Fleet, installation: Installation) -> None:
    printed = ""

    def cells() -> dict[str, str]:
        nonlocal printed
        printed = installation.cluster.kubectl("-n", NAMESPACE, "get", "pearlrollout", quickstart.name)
        header, row = printed.splitlines()[:2]
        return dict(zip(header.split(), row.split(), strict=True))

    def ready() -> bool:  # a trainer of other tests may have left a moment ago
        told = cells()
        return (told["GPUS"], told["BORROWED"], told["ELASTIC"], told["READY"]) == ("3", "0", "0", "3/3")

    wait_for(ready, seconds=60, what="three reserved workers are ready", last=lambda: printed)
    told = cells()
    assert list(told) == ["NAME", "MODE", "P", "D", "C", "GPUS", "BORROWED", "ELASTIC", "READY", "REASON", "AGE"]
    assert int(told["P"]) + int(told["D"]) + int(told["C"]) == 3


def test_an_unrelated_field_touches_no_pod(colocated: Fleet) -> None:
    before = {pod["metadata"]["uid"]: pod["metadata"]["resourceVersion"] for pod in colocated.workers()}
    colocated.patch({"policy": {"hysteresis": {"ratioPercent": 4}}})
    colocated.wait(
        "the operator saw the new generation",
        lambda found: found["status"]["observedGeneration"] == found["metadata"]["generation"],
        seconds=20,
    )
    assert {pod["metadata"]["uid"]: pod["metadata"]["resourceVersion"] for pod in colocated.workers()} == before


def test_a_flip_keeps_pod_and_engine_and_serves_in_the_new_role_within_two_seconds(disaggregated: Fleet) -> None:
    fleet = disaggregated
    pods, engines = fleet.uids(), fleet.engines()
    epochs = {worker.uid: worker.acked_epoch for worker in fleet.stats().workers}
    with steady(fleet, "flip", prompt_tokens=40, max_tokens=8):
        fleet.patch({"ratio": {"prefill": 2, "decode": 1}})

        def served() -> float | None:
            moved = [worker for worker in fleet.stats().workers if worker.acked_epoch != epochs[worker.uid]]
            times = [worker.first_token_in_role_seconds for worker in moved]
            return time.time() if times and None not in times else None

        first_seen_at = wait_for(served, seconds=30, what="the flipped worker served in its new role")
        fleet.wait_roles({"prefill": 2, "decode": 1})
    decided_at = datetime.fromisoformat(fleet.status()["target"]["startedAt"]).timestamp()
    assert first_seen_at - decided_at < 2.0
    assert fleet.uids() == pods
    assert fleet.engines() == engines


def test_growing_makes_one_pod_and_shrinking_drains_and_deletes_the_one_with_least_to_lose(colocated: Fleet) -> None:
    fleet = colocated
    three = fleet.uids()
    fleet.patch({"capacity": {"reserved": {"gpus": 4}}})
    fleet.wait_ready(4)
    four = fleet.uids()
    assert set(three.items()) < set(four.items())
    assert len(four) == 4
    fleet.wait_roles({"colocated": 4})
    traffic = Traffic(fleet)
    running = [traffic.start(f"busy-{n}", prompt(n, 30), 1900) for n in range(3)]
    wait_for(lambda: _in_flight(fleet) == 3, seconds=20, what="three long turns are in flight")
    before = fleet.stats()
    load = {worker.pod: (worker.resident_tokens, worker.in_flight) for worker in before.workers}
    cheapest = {pod for pod in load if load[pod] == min(load.values())}
    fleet.patch({"capacity": {"reserved": {"gpus": 3}}})
    fleet.wait_ready(3)
    left = fleet.uids()
    assert set(four) - set(left) <= cheapest, "the worker that holds and does least is the one to go"
    assert set(left.items()) < set(four.items())
    done, _ = wait(running, timeout=120)
    assert [len(future.result().token_ids) for future in done] == [1900, 1900, 1900]
    assert fleet.stats().counters.lost_turns == before.counters.lost_turns
    traffic.close()


def _in_flight(fleet: Fleet) -> int:
    return sum(worker.in_flight for worker in fleet.stats().workers)
