"""Who may lend to whom; each refusal names what to change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from loan_cluster import SPEC, trainer_pod

from pearl_api import names, tokens
from pearl_api.loan import GPULoanStatus, LoanPhase
from pearl_api.wire.loans import RegisterRequest
from pearl_gateway.cluster import pod_facts
from pearl_gateway.fleet import Fleet
from pearl_operator.facts import LoanFact, RolloutFact, loan_fact, pod_fact, rollout_fact
from pearl_operator.loans.borrowers import borrower_pod, free_slots, loan_object, secret_object
from pearl_operator.loans.enrol import Enrolment, check, same
from pearl_operator.loans.identity import Caller, caller_of
from pearl_operator.loans.problems import LoanProblem

CALLER = Caller("ml", "trainer-0", "trainer-0-uid", "node-1")


def rollout(**spec: Any) -> RolloutFact:
    meta = {"name": "swe", "namespace": "pearl", "uid": "rollout-uid", "generation": 1}
    return rollout_fact({"metadata": meta, "spec": {**SPEC, **spec}})


def enrolment(gpus: list[str], **changes: Any) -> Enrolment:
    facts: dict[str, Any] = {
        "caller": CALLER,
        "trainer": trainer_pod(),
        "rollout": rollout(),
        "loans": (),
        "namespaces": ("pearl", "ml"),
    }
    return check(RegisterRequest(rollout="swe", gpus=gpus), **{**facts, **changes})


def loan(made: Enrolment, **status: Any) -> LoanFact:
    body = loan_object(made)
    body["metadata"] |= {"uid": "loan-uid"}
    fact = loan_fact({**body, "status": GPULoanStatus(**status).model_dump(mode="json", by_alias=True)})
    assert fact is not None
    return fact


def test_a_trainer_of_two_gpus_gets_two_borrowers() -> None:
    made = enrolment(["GPU-a", "GPU-b"])
    assert made.borrowers == 2
    assert made.node == "node-1"
    assert same(loan(made), made)


def test_gpus_that_fill_no_worker_are_left_over() -> None:
    three = trainer_pod()
    three["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "3"
    wide = rollout(engine={"image": "i", "tensorParallel": 2})
    assert enrolment(["GPU-a", "GPU-b", "GPU-c"], trainer=three, rollout=wide).borrowers == 1


@pytest.mark.parametrize(
    ("gpus", "changes", "reason", "said"),
    [
        (["GPU-a"] * 2, {}, "TooManyGpus", "twice"),
        (["GPU-a", "GPU-b", "GPU-c"], {}, "TooManyGpus", "names 3 GPUs and the pod requests 2"),
        (
            ["GPU-a"],
            {"rollout": rollout(engine={"image": "i", "tensorParallel": 2})},
            "TooFewGpus",
            "spec.engine.tensorParallel = 2",
        ),
        (["GPU-a"], {"rollout": None}, "RolloutNotFound", "check `rollout`"),
        (["GPU-a"], {"rollout": rollout(mode="Sideways")}, "RolloutInvalid", "spec.mode"),
        (
            ["GPU-a"],
            {"rollout": rollout(capacity={"reserved": {"gpus": 1}})},
            "BorrowingDisabled",
            "spec.capacity.borrowed.maxGpus",
        ),
        (
            ["GPU-a"],
            {
                "rollout": rollout(
                    capacity={"reserved": {"gpus": 1}, "borrowed": {"maxGpus": 4, "access": "SharedClaim"}}
                )
            },
            "AccessNotSupported",
            "is SharedClaim, and SharedClaim is not possible: the operator may not list DeviceClasses",
        ),
        (
            ["GPU-a"],
            {"visible_allowed": False},
            "AccessNotSupported",
            "is Auto, and SharedClaim is not possible: .*; VisibleDevices is not possible: namespace ml is not in",
        ),
        (["GPU-a"], {"namespaces": ("pearl",)}, "NotATrainerNamespace", "`trainerNamespaces`"),
        (["GPU-a"], {"trainer": None}, "TrainerPodGone", "running pod"),
        (["GPU-a"], {"caller": Caller("ml", "trainer-0", "older-uid", "node-1")}, "TrainerPodGone", "gone or ending"),
        (["GPU-a"], {"trainer": trainer_pod(role="eval")}, "TrainerNotSelected", "role=trainer"),
        (["GPU-a"], {"caller": Caller("ml", "t" * 64, "trainer-0-uid", "node-1")}, "NameTooLong", "64 characters"),
    ],
)
def test_what_may_not_lend(gpus: list[str], changes: dict[str, Any], reason: str, said: str) -> None:
    with pytest.raises(LoanProblem, match=said) as caught:
        enrolment(gpus, **changes)
    assert caught.value.reason == reason


def test_a_gpu_is_enrolled_by_one_pod_only_and_free_again_when_that_loan_is_over() -> None:
    other = check(
        RegisterRequest(rollout="swe", gpus=["GPU-b"]),
        caller=Caller("ml", "trainer-1", "other-uid", "node-1"),
        trainer={
            **trainer_pod(),
            "metadata": {**trainer_pod()["metadata"], "name": "trainer-1", "uid": "other-uid"},
        },
        rollout=rollout(),
        loans=(),
        namespaces=("ml",),
    )
    with pytest.raises(LoanProblem, match="GPU-b is enrolled by ml/trainer-1") as caught:
        enrolment(["GPU-a", "GPU-b"], loans=[loan(other)])
    assert caught.value.status == 409
    for phase in (LoanPhase.LOST, LoanPhase.DEREGISTERED):
        assert enrolment(["GPU-a", "GPU-b"], loans=[loan(other, phase=phase)]).borrowers == 2
    mine = enrolment(["GPU-a"])
    assert enrolment(["GPU-a", "GPU-b"], loans=[loan(mine)]).borrowers == 2


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"authenticated": False, "audiences": ["pearl"]},
        {"authenticated": True, "audiences": ["kubernetes"]},
        {"authenticated": True, "audiences": ["pearl"], "user": {"username": "system:serviceaccount:ml:default"}},
        {"authenticated": True, "audiences": ["pearl"], "user": {"username": "alice", "extra": {}}},
    ],
)
def test_a_token_that_is_no_pods_is_refused(status: dict[str, Any]) -> None:
    with pytest.raises(LoanProblem, match="mount a projected ServiceAccount token"):
        caller_of(status)


def test_a_borrower_holds_no_gpu_of_its_own_and_belongs_to_the_trainer() -> None:
    made = enrolment(["GPU-a", "GPU-b"])
    template = {"spec": {"runtimeClassName": "nvidia", "nodeSelector": {"kubernetes.io/hostname": "elsewhere"}}}
    borrowing = {"reserved": {"gpus": 1}, "borrowed": {"maxGpus": 4, "podTemplate": template}}
    pod = borrower_pod(loan(made), rollout(capacity=borrowing), index=1, slot=1003, hostname="host-1")
    container = pod["spec"]["containers"][0]
    environment = {item["name"]: item.get("value") for item in container["env"]}
    assert "resources" not in container
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "GPU-b"
    assert (environment["PEARL_LOAN_NAMESPACE"], environment["PEARL_LOAN_NAME"]) == ("ml", "trainer-0")
    assert pod["spec"]["nodeSelector"] == {"kubernetes.io/hostname": "host-1"}
    assert pod["spec"]["runtimeClassName"] == "nvidia"
    assert (pod["metadata"]["namespace"], pod["metadata"]["name"]) == ("ml", "trainer-0-borrower-1")
    owners = [(owner["kind"], owner["uid"], owner["controller"]) for owner in pod["metadata"]["ownerReferences"]]
    assert owners == [("Pod", "trainer-0-uid", True)]
    labels = pod["metadata"]["labels"]
    assert labels["pearl.dev/rollout"] == "swe"
    assert labels["pearl.dev/rollout-namespace"] == "pearl"
    assert labels["pearl.dev/zone"] == "borrowed"
    assert labels["pearl.dev/slot"] == "1003"
    assert labels["pearl.dev/loan"] == "trainer-0"


KEY = "0" * 64
ROLLOUT_WIDE = {purpose: tokens.derive(KEY, purpose) for purpose in ("agent", "engine")}


def test_the_secret_of_a_loan_opens_its_own_borrowers_and_nothing_else() -> None:
    mine = loan(enrolment(["GPU-a"]))
    trainer = mine.spec.trainer.model_copy(update={"uid": "a-later-pod"})
    later = replace(mine, spec=mine.spec.model_copy(update={"trainer": trainer}))
    secrets = [secret_object(one, KEY) for one in (mine, later)]
    assert set(secrets[0]["stringData"]) == {"agent", "engine", "loan"}
    assert secrets[0]["metadata"]["namespace"] == "ml"
    shown = [KEY, *ROLLOUT_WIDE.values(), *(value for secret in secrets for value in secret["stringData"].values())]
    assert len(set(shown)) == len(shown)


def test_operator_and_gateway_show_a_borrower_the_tokens_that_it_mounts() -> None:
    mine = loan(enrolment(["GPU-a"]))
    secret = secret_object(mine, KEY)["stringData"]
    body = borrower_pod(mine, rollout(), index=0, slot=1000, hostname="node-1")
    body = {**body, "metadata": {**body["metadata"], "uid": "u"}, "status": {"podIP": "10.0.0.9"}}
    fact, fleet = pod_fact(body), Fleet(lambda: 0.0)
    assert fact is not None
    assert tokens.of_borrower(ROLLOUT_WIDE["agent"], fact.address.lender) == secret["agent"]
    fleet.upsert(pod_facts(body, "pearl"))
    for purpose, port in (("engine", names.PORT_ENGINE), ("agent", names.PORT_AGENT)):
        assert tokens.of_borrower(ROLLOUT_WIDE[purpose], fleet.lenders[f"http://10.0.0.9:{port}"]) == secret[purpose]
    # The address is a worker's of the rollout itself now.
    own = {"name": "swe-w0-0", "namespace": "pearl", "uid": "w", "labels": {}}
    fleet.upsert(pod_facts({"metadata": own, "status": body["status"]}, "pearl"))
    assert fleet.lenders == {}


def test_a_pod_in_another_namespace_is_shown_no_token_of_the_rollouts_own_workers() -> None:
    labels = {names.LABEL_ROLLOUT: "swe", names.LABEL_ROLLOUT_NAMESPACE: "pearl", names.LABEL_COMPONENT: "worker"}
    body = {"metadata": {"name": "x", "namespace": "ml", "uid": "u", "labels": labels}, "status": {"podIP": "10.0.0.9"}}
    fact = pod_fact(body)
    assert fact is not None
    assert fact.address.lender == pod_facts(body, "pearl").lender == "ml//"


def test_borrowers_are_numbered_apart_from_the_planners_slots() -> None:
    assert free_slots({0, 1, 1000, 1002}, 3) == [1001, 1003, 1004]
