"""Loans on a real cluster: TokenReview, GPULoans, owner references, and worker agents behind real addresses.

Real engines on lent GPUs are in the end-to-end tests.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from loan_scene import rollout, trainer

from pearl_trainer import Rejected

if TYPE_CHECKING:
    from loan_scene import Scene

pytestmark = pytest.mark.cluster


def test_a_gpu_is_lent_reclaimed_without_the_operator_and_lent_again(scene: Scene) -> None:
    scene.apply(rollout("swe"))
    scene.apply(trainer({"app": "trainer"}))
    scene.start_operator()
    scene.until("the trainer runs", lambda: scene.ready("trainer-0"))
    with scene.client() as pearl:
        loan = pearl.register(rollout="swe")
        scene.until("the borrower serves", lambda: loan.lent and scene.ready("trainer-0-borrower-0"))
        scene.until("the record says so", lambda: scene.loan().get("phase") == "Serving")
        borrower = scene.get("pod", "trainer-0-borrower-0")
        node = scene.get("pod", "trainer-0")["spec"]["nodeName"]
        assert borrower["spec"]["nodeName"] == node
        assert not borrower["spec"]["containers"][0].get("resources", {}).get("limits")

        scene.kill_operator()
        time.sleep(8)  # longer than the lease: the SDK alone keeps it
        assert scene.ready("trainer-0-borrower-0")
        free = loan.reclaim()
        assert free.via == "agents"
        assert free.total_seconds < 5
        scene.until("no more turns", lambda: not scene.ready("trainer-0-borrower-0"), seconds=20)

        # The agent's container starts anew on the same volume: fenced, it starts no engine.
        scene.kubectl("exec", "trainer-0-borrower-0", "--", "python3", "-c", "import os; os.kill(1, 15)")
        scene.until("the container was restarted", lambda: _restarts(scene) == 1, seconds=60)
        time.sleep(5)
        assert not scene.ready("trainer-0-borrower-0")

        assert not loan.lend().granted
        scene.start_operator()
        scene.until("lent again", lambda: loan.lent and scene.ready("trainer-0-borrower-0"))
        scene.until("the record says so", lambda: scene.loan().get("phase") == "Serving")
        assert scene.loan()["epoch"] > free.epoch
        assert scene.loan()["history"][0]["epoch"] == free.epoch
        loan.close()
        assert scene.loan()["phase"] == "Deregistered"
        assert scene.loan()["history"][-1]["free"] is True


def _restarts(scene: Scene) -> int:
    statuses = scene.get("pod", "trainer-0-borrower-0")["status"].get("containerStatuses", [])
    return sum(int(status["restartCount"]) for status in statuses)


def test_everything_of_a_loan_goes_with_its_trainer_pod(scene: Scene) -> None:
    scene.apply(rollout("swe"))
    scene.apply(trainer({"app": "trainer"}))
    scene.start_operator()
    scene.until("the trainer runs", lambda: scene.ready("trainer-0"))
    with scene.client() as pearl:
        loan = pearl.register(rollout="swe", lend=False)
        assert loan.registration is not None
        assert [agent.pod for agent in loan.registration.agents] == ["trainer-0-borrower-0"]
        scene.kill_operator()
        scene.kubectl("delete", "pod", "trainer-0", "--wait=true")

        def left() -> list[str]:
            found = self_owned("gpuloans") + self_owned("pods") + self_owned("secrets")
            return [name for name in found if name.startswith("trainer-0")]

        def self_owned(kind: str) -> list[str]:
            return [item["metadata"]["name"] for item in scene.get(kind)["items"]]

        scene.until("the garbage collector is done", lambda: not left(), seconds=60)


def test_a_pod_that_the_rollout_does_not_select_is_told_why(scene: Scene) -> None:
    scene.apply(rollout("swe"))
    scene.apply(trainer({"app": "other"}))
    scene.start_operator()
    scene.until("the trainer runs", lambda: scene.ready("trainer-0"))
    with scene.client() as pearl:
        with pytest.raises(Rejected, match=r"lacks the labels app=trainer of spec\.capacity\.borrowed") as caught:
            pearl.register(rollout="swe")
        assert caught.value.reason == "TrainerNotSelected"
        assert scene.get("gpuloans")["items"] == []
        (scene.folder / "token").write_text(scene.kubectl("create", "token", "default", "--audience=pearl"))
        with pytest.raises(Rejected, match="bound to no pod"):
            pearl.register(rollout="swe")
