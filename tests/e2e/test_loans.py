"""Lend and reclaim with real engines: served while lent, back inside the deadline, whatever is dead."""

from __future__ import annotations

import json
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from traffic import Traffic, prompt, steady

from pearl_dev.fleet import wait_for
from pearl_dev.product import NAMESPACE
from pearl_dev.shell import run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from pearl_dev.fleet import Fleet, Turn
    from pearl_dev.product import Installation

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
TRAINERS = "trainers"
RECLAIM_SECONDS = 10.0


class Trainer:
    """A trainer pod whose SDK obeys commands."""

    def __init__(self, installation: Installation, rollout: str) -> None:
        self.cluster = installation.cluster
        argv = [self.cluster.binaries["kubectl"], "-n", TRAINERS, "exec", "-i", "trainer-0", "--", "python3"]
        self._process = subprocess.Popen(
            [*map(str, argv), "/opt/code/trainer_shell.py", rollout],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(self.cluster.environment),
        )
        assert self._read() == {"registered": True}

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the trainer's process ended"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def tell(self, command: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("quit\n")
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()


@pytest.fixture(scope="module")
def trainer(installation: Installation, quickstart: Fleet) -> Iterator[Trainer]:
    """A registered trainer with one GPU."""
    installation.cluster.kubectl("-n", TRAINERS, "delete", "pod", "trainer-0", "--ignore-not-found", "--grace-period=1")
    shell = Path(__file__).with_name("trainer_shell.py")
    installation.cluster.apply(*installation.trainer([shell], ["sleep", "infinity"]))
    installation.cluster.kubectl("-n", TRAINERS, "wait", "--for=condition=Ready", "pod/trainer-0", "--timeout=120s")
    quickstart.patch({"mode": "Colocated", "ratio": None})
    started = Trainer(installation, quickstart.name)
    yield started
    started.close()


def borrower(fleet: Fleet) -> dict[str, Any]:
    return next(pod for pod in fleet.workers() if pod["metadata"]["namespace"] == TRAINERS)


def in_flight(fleet: Fleet, uid: str) -> int:
    return next((worker.in_flight for worker in fleet.stats().workers if worker.uid == uid), 0)


def loan_status(fleet: Fleet) -> dict[str, Any]:
    loan = fleet.api.get(f"/apis/pearl.dev/v1alpha1/namespaces/{TRAINERS}/gpuloans/trainer-0")
    assert loan is not None
    status: dict[str, Any] = loan["status"]
    return status


@contextmanager
def operator_dead(installation: Installation) -> Iterator[None]:
    """No operator pod inside the block, and a ready one after it."""
    kubectl = installation.cluster.kubectl
    kubectl("-n", NAMESPACE, "scale", "deployment/pearl-operator", "--replicas=0")
    kubectl("-n", NAMESPACE, "wait", "--for=delete", "pod", "-l", "app.kubernetes.io/name=pearl-operator")
    try:
        yield
    finally:
        kubectl("-n", NAMESPACE, "scale", "deployment/pearl-operator", "--replicas=1")
        kubectl("-n", NAMESPACE, "rollout", "status", "deployment/pearl-operator", "--timeout=120s")


def forget_past_loans(fleet: Fleet) -> None:
    """These loans end as soon as they serve; of a trainer that does so always, the gate would take none at first."""
    path = f"/apis/pearl.dev/v1alpha1/namespaces/{TRAINERS}/gpuloans/trainer-0/status"
    fleet.api.patch(path, {"status": {"idleSeconds": None}})


def lend_until_serving(trainer: Trainer, fleet: Fleet) -> dict[str, Any]:
    forget_past_loans(fleet)
    trainer.tell("lend")  # the SDK repeats the offer while the borrower pod is still starting
    answer = wait_for(
        lambda: told if (told := trainer.tell("lent"))["lent"] else None, seconds=120, what="the loan is granted"
    )
    pod = borrower(fleet)
    wait_for(
        lambda: (
            any(w.uid == pod["metadata"]["uid"] and w.ready and w.activity == "active" for w in fleet.stats().workers)
            or None
        ),
        seconds=200,
        what="the gateway routes to the borrowed worker",
    )
    fleet.wait_roles({"colocated": 4})
    return answer


def reclaim_under_load(trainer: Trainer, fleet: Fleet) -> dict[str, Any]:
    """Reclaims while every worker, the borrowed one too, has long turns; all of them must come out right."""
    uid = borrower(fleet)["metadata"]["uid"]
    traffic, epoch = Traffic(fleet, 32), trainer.tell("lent")["epoch"]
    prompts: list[list[int]] = []
    running: list[Future[Turn]] = []

    def busy() -> int:
        # A worker that just came back starts slowly, so turns keep coming until it has some.
        prompts.append(prompt(500 + len(prompts), 120))
        running.append(traffic.start(f"reclaimed-{epoch}-{len(prompts)}", prompts[-1], 1500))
        return in_flight(fleet, uid)

    wait_for(busy, seconds=60, what="the borrowed worker has turns in flight")
    answer = trainer.tell(f"reclaim {RECLAIM_SECONDS}")
    answers = [future.result(timeout=240).token_ids for future in running]
    traffic.close()
    reserved = next(pod for pod in fleet.workers() if pod["metadata"]["namespace"] == NAMESPACE)
    assert answers == [fleet.generate_on(reserved, tokens, 1500).token_ids for tokens in prompts]
    return answer


def test_lend_serves_and_reclaim_is_in_time_with_turns_in_flight(trainer: Trainer, quickstart: Fleet) -> None:
    lend_until_serving(trainer, quickstart)
    answer = reclaim_under_load(trainer, quickstart)
    assert answer["free"], answer
    assert answer["seconds"] < RECLAIM_SECONDS
    assert loan_status(quickstart)["epoch"] == answer["epoch"]


def test_reclaim_is_in_time_with_kv_pinned_for_a_decode_worker(trainer: Trainer, quickstart: Fleet) -> None:
    lend_until_serving(trainer, quickstart)
    quickstart.patch({"mode": "Disaggregated", "ratio": {"prefill": 1, "decode": 3}})
    pod = borrower(quickstart)
    wait_for(
        lambda: borrower(quickstart)["metadata"]["labels"]["pearl.dev/role"] == "prefill",
        seconds=60,
        what="the borrowed worker does the prefill",
    )
    with steady(quickstart, "pinned", prompt_tokens=1200, max_tokens=40, streams=6):
        wait_for(
            lambda: (
                next((w.in_flight for w in quickstart.stats().workers if w.uid == pod["metadata"]["uid"]), 0) or None
            ),
            seconds=30,
            what="the borrowed worker prefills",
        )
        answer = trainer.tell(f"reclaim {RECLAIM_SECONDS}")
    assert answer["free"], answer
    assert answer["seconds"] < RECLAIM_SECONDS
    quickstart.patch({"mode": "Colocated", "ratio": None})


def test_reclaim_is_in_time_with_the_operator_dead(
    trainer: Trainer, quickstart: Fleet, installation: Installation
) -> None:
    lend_until_serving(trainer, quickstart)
    with operator_dead(installation):
        answer = reclaim_under_load(trainer, quickstart)
    assert answer["free"], answer
    assert answer["seconds"] < RECLAIM_SECONDS


def test_borrowers_deleted_by_hand_with_the_operator_dead_are_not_lent_again_by_themselves(
    trainer: Trainer, quickstart: Fleet, installation: Installation
) -> None:
    lend_until_serving(trainer, quickstart)
    before = borrower(quickstart)["metadata"]["uid"]
    with operator_dead(installation):
        installation.cluster.kubectl(
            "-n", TRAINERS, "delete", "pod", "-l", "pearl.dev/loan=trainer-0", "--timeout=120s"
        )
    wait_for(
        lambda: ((loan := loan_status(quickstart))["phase"], loan["reason"]) == ("Idle", "BorrowersGone") or None,
        seconds=60,
        what="the loan is over",
    )
    wait_for(
        lambda: (
            any(
                pod["metadata"]["uid"] != before
                for pod in quickstart.workers()
                if pod["metadata"]["namespace"] == TRAINERS
            )
            or None
        ),
        seconds=60,
        what="a borrower pod was made again",
    )
    state = wait_for(lambda: _agent_or_none(quickstart), seconds=60, what="its agent answers")
    assert state.engine_pid is None
    answer = trainer.tell(f"reclaim {RECLAIM_SECONDS}")
    assert answer["free"], answer


def test_an_agent_restarted_after_a_reclaim_starts_no_engine(
    trainer: Trainer, quickstart: Fleet, installation: Installation
) -> None:
    assert trainer.tell("lent")["lent"] is False
    pod = borrower(quickstart)
    restarts = pod["status"]["containerStatuses"][0]["restartCount"]
    _kill_first_process(installation, pod)
    wait_for(
        lambda: (
            (
                borrower(quickstart)["status"]["containerStatuses"][0]["restartCount"] > restarts
                and borrower(quickstart)["status"]["containerStatuses"][0].get("state", {}).get("running") is not None
            )
            or None
        ),
        seconds=120,
        what="the agent's container was restarted",
    )
    state = wait_for(lambda: _agent_or_none(quickstart), seconds=60, what="the restarted agent answers")
    assert state.loan is not None
    assert state.loan.fenced
    assert state.engine_pid is None


def _restarted(pod: dict[str, Any], restarts: int) -> bool:
    status = pod["status"]["containerStatuses"][0]
    return status["restartCount"] > restarts and "running" in status["state"]


def _agent_or_none(fleet: Fleet) -> Any:
    import httpx

    try:
        return fleet.agent(borrower(fleet))
    except (httpx.HTTPError, RuntimeError):
        return None


def _kill_first_process(installation: Installation, pod: dict[str, Any]) -> None:
    """SIGKILL for PID 1 of the pod's container, from its node: from inside it would be ignored."""
    container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    node = next(
        n for n in installation.cluster.nodes if installation.cluster.spec.node_name(n.index) == pod["spec"]["nodeName"]
    )
    ctr = str(installation.cluster.binaries.or_hosts("ctr"))
    run(node.enter([ctr, "-n", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", container]))
