"""What the operator makes: pods, gateway, Secrets; and what does and does not replace a pod."""

from __future__ import annotations

from typing import Any

import pytest

from pearl_api import names, tokens
from pearl_api.names import Zone
from pearl_api.rollout import PearlRolloutSpec, PearlRolloutStatus
from pearl_operator.facts import RolloutFact
from pearl_operator.ports import RolloutKey
from pearl_operator.resources.disruption import worker_budget
from pearl_operator.resources.gateway import gateway_deployment
from pearl_operator.resources.merge import merge
from pearl_operator.resources.secrets import derived_secrets
from pearl_operator.resources.worker import base_pod, shape_hash, worker_pod
from pearl_operator.settings import Settings
from pearl_planner.types import Role, Slot
from pearl_planner.types import Zone as PlannerZone

SPEC: dict[str, Any] = {
    "model": {"name": "Qwen/Qwen3-8B", "uri": "pvc://models/qwen3-8b"},
    "engine": {"image": "example/worker:1", "tensorParallel": 2, "args": ["--max-num-seqs", "64"]},
    "capacity": {"reserved": {"gpus": 4}, "elastic": {"maxGpus": 4}},
    "weights": {"source": "pvc://weights/run-1"},
    "policy": {"deadlines": {"drainSeconds": 60}},
}


def spec_of(**changes: Any) -> PearlRolloutSpec:
    return PearlRolloutSpec.model_validate({**SPEC, **changes})


def fact(spec: PearlRolloutSpec) -> RolloutFact:
    return RolloutFact(
        key=RolloutKey("rl", "swe"),
        uid="uid-1",
        resource_version="1",
        generation=1,
        deleting=False,
        hold=False,
        spec=spec,
        status=PearlRolloutStatus(),
    )


def pod_of(spec: PearlRolloutSpec, zone: PlannerZone = PlannerZone.RESERVED) -> dict[str, Any]:
    return worker_pod(fact(spec), spec, Slot(3, zone, Role.DECODE, 2), role_epoch=7)


def environment(pod_spec: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in pod_spec["containers"][0]["env"] if "value" in each}


def test_worker_pod_has_name_labels_owner_and_gpus_of_its_slot() -> None:
    pod = pod_of(spec_of())
    assert pod["metadata"]["name"] == "swe-w3-2"
    labels = pod["metadata"]["labels"]
    assert labels["pearl.dev/slot"] == "3"
    assert labels["pearl.dev/role"] == "decode"
    assert labels["pearl.dev/role-epoch"] == "7"
    assert labels["pearl.dev/activity"] == "active"
    owner = pod["metadata"]["ownerReferences"]
    assert [(each["kind"], each["uid"], each["controller"]) for each in owner] == [("PearlRollout", "uid-1", True)]
    worker = pod["spec"]["containers"][0]
    assert worker["resources"] == {"requests": {"nvidia.com/gpu": "2"}, "limits": {"nvidia.com/gpu": "2"}}
    assert pod["spec"]["terminationGracePeriodSeconds"] == 75


def test_worker_pod_mounts_the_claims_of_its_uris() -> None:
    pod = pod_of(spec_of())
    mounts = {mount["mountPath"]: mount["name"] for mount in pod["spec"]["containers"][0]["volumeMounts"]}
    claims = {
        volume["name"]: volume["persistentVolumeClaim"]["claimName"]
        for volume in pod["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert claims[mounts["/pvc/models"]] == "models"
    assert claims[mounts["/pvc/weights"]] == "weights"


def test_worker_pod_passes_pod_security_restricted() -> None:
    pod = pod_of(spec_of())["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert pod["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not [volume for volume in pod["volumes"] if "hostPath" in volume]


def test_template_is_merged_into_the_worker_container_and_cannot_take_our_labels() -> None:
    template = {
        "metadata": {"labels": {"team": "rl", "pearl.dev/slot": "9"}},
        "spec": {
            "nodeSelector": {"pool": "gpu"},
            "containers": [
                {
                    "name": "worker",
                    "env": [{"name": "NCCL_DEBUG", "value": "INFO"}],
                    "resources": {"limits": {"cpu": "8"}},
                },
                {"name": "sidecar", "image": "example/sidecar:1"},
            ],
        },
    }
    pod = pod_of(spec_of(podTemplate=template))
    assert pod["metadata"]["labels"]["team"] == "rl"
    assert pod["metadata"]["labels"]["pearl.dev/slot"] == "3"
    assert pod["spec"]["nodeSelector"] == {"pool": "gpu"}
    worker, sidecar = pod["spec"]["containers"]
    assert sidecar["name"] == "sidecar"
    assert worker["resources"]["limits"] == {"nvidia.com/gpu": "2", "cpu": "8"}
    names = [variable["name"] for variable in worker["env"]]
    assert "NCCL_DEBUG" in names
    assert "PEARL_MODEL_URI" in names


@pytest.mark.parametrize(
    ("change", "replaces"),
    [
        ({"engine": {**SPEC["engine"], "image": "example/worker:2"}}, True),
        ({"engine": {**SPEC["engine"], "args": []}}, True),
        ({"engine": {**SPEC["engine"], "tensorParallel": 4}}, True),
        ({"engine": {**SPEC["engine"], "parallelism": {"prefill": 1, "decode": 4}}}, True),
        ({"engine": {**SPEC["engine"], "parallelism": {"prefill": 1, "decode": 2}}}, False),  # other workers' size
        ({"weights": {"source": "pvc://weights/run-2"}}, True),
        ({"weights": {**SPEC["weights"], "onUpdate": "KeepKV"}}, True),
        ({"weights": {**SPEC["weights"], "onUpdate": "Recompute"}}, False),
        ({"podTemplate": {"spec": {"nodeSelector": {"pool": "gpu"}}}}, True),
        ({"policy": {"deadlines": {"drainSeconds": 90}}}, False),
        ({"weights": {**SPEC["weights"], "maxStaleness": 4}}, False),
        ({"capacity": {"reserved": {"gpus": 8}}}, False),
        ({"mode": "Disaggregated", "ratio": {"prefill": 1, "decode": 1}}, False),
        ({"engine": {**SPEC["engine"], "table": "Qwen/Qwen3-8B/H100-TP2"}}, False),
    ],
)
def test_shape_changes_with_what_the_engine_runs_and_with_nothing_else(
    change: dict[str, Any],
    replaces: bool,
) -> None:
    before, after = (pod_of(spec)["metadata"]["labels"][names.LABEL_SHAPE] for spec in (spec_of(), spec_of(**change)))
    assert (after != before) is replaces


def test_each_worker_has_the_gpus_of_its_stage_and_its_engine_knows() -> None:
    spec = spec_of(engine={**SPEC["engine"], "parallelism": {"prefill": 1, "decode": 4}})
    seen = {}
    for role in Role:
        pod = worker_pod(fact(spec), spec, Slot(0, PlannerZone.RESERVED, role, 0), role_epoch=1)["spec"]
        gpus = pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
        seen[role] = (gpus, environment(pod)["PEARL_TENSOR_PARALLEL"])
    assert seen == {Role.COLOCATED: ("2", "2"), Role.PREFILL: ("1", "1"), Role.DECODE: ("4", "4")}


def test_a_newer_operator_keeps_the_pods_of_a_fleet() -> None:
    assert shape_hash(spec_of(), Zone.RESERVED, 2) == "beabab506dc3"


@pytest.mark.parametrize("on_update", ["Recompute", "FinishTurn", "KeepKV"])
def test_worker_learns_what_a_weight_update_does_to_requests_inside(on_update: str) -> None:
    pod = pod_of(spec_of(weights={**SPEC["weights"], "onUpdate": on_update}))
    assert environment(pod["spec"])["PEARL_ON_UPDATE"] == on_update


def test_a_template_of_one_zone_replaces_pods_of_that_zone_only() -> None:
    elastic = {"maxGpus": 4, "podTemplate": {"spec": {"tolerations": [{"key": "spot"}]}}}
    changed = spec_of(capacity={"reserved": {"gpus": 4}, "elastic": elastic})
    assert shape_hash(changed, Zone.RESERVED, 2) == shape_hash(spec_of(), Zone.RESERVED, 2)
    assert shape_hash(changed, Zone.ELASTIC, 2) != shape_hash(spec_of(), Zone.ELASTIC, 2)
    assert pod_of(changed, PlannerZone.ELASTIC)["spec"]["tolerations"] == [{"key": "spot"}]


def test_only_reserved_workers_are_kept_from_the_autoscalers() -> None:
    reserved, elastic = pod_of(spec_of()), pod_of(spec_of(), PlannerZone.ELASTIC)
    assert reserved["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "true"
    assert "karpenter.sh/do-not-disrupt" not in elastic["metadata"]["annotations"]


def test_merge_follows_the_merge_keys_of_the_api() -> None:
    base = {
        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
        "volumeMounts": [{"mountPath": "/tmp", "name": "tmp"}],  # noqa: S108
        "args": ["x"],
        "tolerations": [{"key": "a"}],
        "readinessProbe": {"periodSeconds": 1},
    }
    overlay = {
        "env": [{"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}, {"name": "C", "value": "3"}],
        "volumeMounts": [{"mountPath": "/tmp", "name": "other"}],  # noqa: S108
        "args": ["y"],
        "tolerations": [{"key": "b"}],
        "readinessProbe": None,
    }
    assert merge(base, overlay) == {
        "env": [
            {"name": "A", "value": "1"},
            {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "x"}}},
            {"name": "C", "value": "3"},
        ],
        "volumeMounts": [{"mountPath": "/tmp", "name": "other"}],  # noqa: S108
        "args": ["y"],
        "tolerations": [{"key": "a"}, {"key": "b"}],
    }


def test_gateway_and_workers_agree_on_the_kv_lease_of_each_zone() -> None:
    settings = Settings(namespace="rl", gateway_image="example/operator:1")
    spec = spec_of()
    deployment = gateway_deployment(fact(spec), spec, settings)
    gateway = environment(deployment["spec"]["template"]["spec"])
    assert gateway["PEARL_KV_LEASE_SECONDS"] == environment(pod_of(spec)["spec"])["PEARL_KV_LEASE_SECONDS"] == "10"
    borrower = base_pod(spec, Zone.BORROWED, "secret", gpus=2)
    assert gateway["PEARL_BORROWED_KV_LEASE_SECONDS"] == environment(borrower["spec"])["PEARL_KV_LEASE_SECONDS"] == "3"


def test_the_gateway_has_its_processes_and_what_they_need() -> None:
    settings = Settings(namespace="rl", gateway_image="example/operator:1")
    found = {}
    for count in (1, 4):
        spec = spec_of(gateway={"processes": count})
        pod = gateway_deployment(fact(spec), spec, settings)["spec"]["template"]["spec"]
        assert environment(pod)["PEARL_PROCESSES"] == str(count)
        found[count] = pod["containers"][0]["resources"]["requests"]
    assert found == {1: {"cpu": "100m", "memory": "256Mi"}, 4: {"cpu": "400m", "memory": "1024Mi"}}


def test_each_secret_holds_its_holders_tokens_only() -> None:
    key = "0" * 64
    secrets = {secret["metadata"]["name"]: secret["data"] for secret in derived_secrets(fact(spec_of()), key)}
    assert set(secrets["swe-pearl-worker"]) == {"agent", "engine"}
    assert set(secrets["swe-pearl-gateway"]) == {"agent", "engine", "gateway", "client"}
    assert set(secrets["swe-pearl-client"]) == {"token"}
    assert key not in str(secrets)
    assert tokens.derive(key, "client") != tokens.derive(key, "gateway")


def test_a_node_drain_takes_one_worker_at_a_time() -> None:
    assert worker_budget(fact(spec_of()), 4)["spec"]["minAvailable"] == 3
    assert worker_budget(fact(spec_of()), 0)["spec"]["minAvailable"] == 0


@pytest.mark.parametrize(("wanted", "gets"), [(30, 75), (300, 300)])
def test_a_template_may_lengthen_the_grace_period_and_not_cut_the_drain(wanted: int, gets: int) -> None:
    pod = pod_of(spec_of(podTemplate={"spec": {"terminationGracePeriodSeconds": wanted}}))
    assert pod["spec"]["terminationGracePeriodSeconds"] == gets
