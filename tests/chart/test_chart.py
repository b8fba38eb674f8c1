"""What the chart installs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pearl_api.crd import RESOURCES
from pearl_operator import upgrade_crds
from pearl_operator.settings import from_env

if TYPE_CHECKING:
    from collections.abc import Callable

    Render = Callable[..., list[dict[str, Any]]]
    Helm = Callable[..., str]

CHART = "charts/pearl"


def one(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = [item for item in objects if item["kind"] == kind and item["metadata"]["name"] == name]
    return found


def pod_templates(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        item["metadata"]["name"]: item["spec"]["template"] for item in objects if item["kind"] in {"Deployment", "Job"}
    }


def test_the_chart_has_no_lint(helm: Helm, request: pytest.FixtureRequest) -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(request.config.rootpath / CHART))


def test_every_pod_satisfies_pod_security_restricted(render: Render) -> None:
    templates = pod_templates(render())
    assert set(templates) == {"pearl-operator", "pearl-uninstall", "pearl-crds"}
    for template in templates.values():
        pod = template["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not [volume for volume in pod.get("volumes", []) if "hostPath" in volume]
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"]["memory"]


def operator_environment(objects: list[dict[str, Any]]) -> dict[str, str]:
    """As the kubelet would fill it in."""
    (container,) = one(objects, "Deployment", "pearl-operator")["spec"]["template"]["spec"]["containers"]
    own = {"metadata.namespace": "rollouts", "metadata.name": "pearl-operator-0"}
    return {
        entry["name"]: entry["value"] if "value" in entry else own[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        for entry in container["env"]
    }


def test_the_operator_understands_the_environment_that_the_chart_gives_it(render: Render) -> None:
    image = {"repository": "registry.example.com:5000/pearl/operator", "tag": "2"}
    objects = render(image=image, trainerNamespaces=["train-a", "train-b"], rbac={"clusterScoped": False})
    settings = from_env(operator_environment(objects))
    assert settings.namespace == "rollouts"
    assert settings.gateway_image == "registry.example.com:5000/pearl/operator:2"
    assert settings.trainer_namespaces == ("train-a", "train-b")
    assert settings.cluster_scoped is False
    assert settings.operator_url == "http://pearl-operator.rollouts:8090"
    accounts = {item["metadata"]["name"] for item in objects if item["kind"] == "ServiceAccount"}
    assert settings.gateway_service_account in accounts


def test_a_digest_takes_the_place_of_the_tag(render: Render) -> None:
    digest = "sha256:" + "0" * 64
    pod = pod_templates(render(image={"digest": digest}))["pearl-operator"]["spec"]
    assert {container["image"] for container in [*pod["initContainers"], *pod["containers"]]} == {
        f"docker.io/pearl/operator@{digest}"
    }


def test_the_service_leads_to_the_operators_port(render: Render) -> None:
    objects = render()
    service = one(objects, "Service", "pearl-operator")["spec"]
    template = pod_templates(objects)["pearl-operator"]
    assert service["selector"].items() <= template["metadata"]["labels"].items()
    assert not service["selector"].items() <= pod_templates(objects)["pearl-uninstall"]["metadata"]["labels"].items()
    assert service["ports"] == [{"name": "http", "port": 8090, "targetPort": "http"}]
    (container,) = template["spec"]["containers"]
    assert container["ports"] == [{"name": "http", "containerPort": 8090}]
    probes = {container[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")}
    assert probes == {"/healthz", "/readyz"}


def test_one_author_of_decisions_at_a_time(render: Render) -> None:
    spec = one(render(), "Deployment", "pearl-operator")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def granted(role: dict[str, Any]) -> set[tuple[str, str]]:
    return {(resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}


def test_resource_claims_may_be_read_where_trainers_are_and_only_if_claims_are_shared(render: Render) -> None:
    def readers(objects: list[dict[str, Any]]) -> set[str]:
        roles = [item for item in objects if item["kind"] == "Role"]
        return {item["metadata"].get("namespace", "") for item in roles if ("resourceclaims", "get") in granted(item)}

    trainers = ["train-a", "rollouts"]
    assert readers(render(trainerNamespaces=trainers)) == {"rollouts", "train-a"}
    without = render(trainerNamespaces=trainers, sharedClaims={"enabled": False})
    assert readers(without) == set()
    role = one(without, "ClusterRole", "pearl-operator-rollouts")
    assert ("deviceclasses", "list") not in granted(role)


@pytest.mark.parametrize(
    ("allowed", "may"), [(["*"], ["train-a", "rollouts"]), ([], []), (["train-b", "rollouts"], ["rollouts"])]
)
def test_visible_devices_are_allowed_by_namespace(render: Render, allowed: list[str], may: list[str]) -> None:
    settings = from_env(operator_environment(render(visibleDevices={"allowedNamespaces": allowed})))
    assert [name for name in ("train-a", "rollouts") if settings.may_use_visible_devices(name)] == may


def test_operator_and_gateway_get_a_role_in_every_trainer_namespace(render: Render) -> None:
    objects = render(trainerNamespaces=["train-a", "rollouts"])
    assert {
        (item["metadata"]["namespace"], item["metadata"]["name"]) for item in objects if item["kind"] == "Role"
    } == {
        ("rollouts", "pearl-operator"),
        ("rollouts", "pearl-gateway"),
        ("train-a", "pearl-operator-rollouts"),
        ("train-a", "pearl-gateway-rollouts"),
    }


WISHES: dict[str, Any] = {
    "nodeSelector": {"pool": "control"},
    "tolerations": [{"key": "control", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
    ],
    "priorityClassName": "high",
    "runtimeClassName": "gvisor",
    "schedulerName": "other",
}
SHM = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}}
SHM_MOUNT = {"name": "shm", "mountPath": "/dev/shm"}  # noqa: S108 - a path in the container


def test_the_operators_pod_takes_whatever_a_cluster_demands(render: Render) -> None:
    secrets, variable = [{"name": "pull"}], {"name": "A", "value": "b"}
    further = {
        "extraEnv": [variable],
        "extraVolumes": [SHM],
        "extraVolumeMounts": [SHM_MOUNT],
        "podLabels": {"team": "rl"},
        "podAnnotations": {"sidecar.istio.io/inject": "false"},
        "podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": 7},
        "securityContext": {"seLinuxOptions": {"level": "s0"}},
    }
    for template in pod_templates(render(operator=WISHES | further, imagePullSecrets=secrets)).values():
        pod = template["spec"]
        assert {name: pod[name] for name in WISHES} == WISHES
        assert pod["imagePullSecrets"] == secrets
        assert SHM in pod["volumes"]
        assert pod["securityContext"] == {
            "runAsNonRoot": True,
            "fsGroup": 7,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        assert template["metadata"]["labels"].items() >= {("team", "rl")}
        assert template["metadata"]["annotations"] == {"sidecar.istio.io/inject": "false"}
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            assert variable in container["env"]
            assert SHM_MOUNT in container["volumeMounts"]
            assert container["securityContext"]["seLinuxOptions"] == {"level": "s0"}
            assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_the_operators_resources_are_its_own(render: Render) -> None:
    pod = pod_templates(render(operator={"resources": {"limits": {"cpu": 2}}}))["pearl-operator"]["spec"]
    assert pod["containers"][0]["resources"] == {
        "requests": {"cpu": "100m", "memory": "192Mi"},
        "limits": {"cpu": 2, "memory": "512Mi"},
    }


def hook(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [item for item in objects if "crds" in item["metadata"]["name"]]


def test_the_crds_are_upgraded_before_everything_else_by_an_account_that_goes_with_its_job(render: Render) -> None:
    made = hook(render())
    assert [item["kind"] for item in made] == ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Job"]
    for item in made:
        said = item["metadata"]["annotations"]
        assert said["helm.sh/hook"] == "pre-install,pre-upgrade"
        assert said["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"
    weights = [int(item["metadata"]["annotations"]["helm.sh/hook-weight"]) for item in made]
    assert weights == sorted(weights)
    assert weights[-1] > weights[-2], "the Job comes after its rights"
    pod = made[-1]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == made[0]["metadata"]["name"]
    assert pod["containers"][0]["command"] == ["python", "-m", upgrade_crds.__name__]
    assert {name for rule in made[1]["rules"] for name in rule["resourceNames"]} == {each.name for each in RESOURCES}
    selector = one(render(), "Service", "pearl-operator")["spec"]["selector"]
    assert not selector.items() <= made[-1]["spec"]["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize(
    "values", [{"crds": {"upgrade": False}}, {"rbac": {"create": False}}, {"rbac": {"clusterScoped": False}}], ids=str
)
def test_the_crds_are_left_alone_without_leave(render: Render, values: dict[str, Any]) -> None:
    assert hook(render(**values)) == []
