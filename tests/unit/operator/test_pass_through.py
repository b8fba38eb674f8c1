"""Whatever a cluster demands of pods: it reaches workers, borrowers and gateway, and changing it is a rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from fake_cluster import SPEC, World

from pearl_api.loan import GPULoanSpec, GPULoanStatus
from pearl_api.rollout import PearlRolloutSpec, PearlRolloutStatus
from pearl_dev.virtual.kube import deep_merge
from pearl_operator import kinds
from pearl_operator.facts import LoanFact, RolloutFact
from pearl_operator.loans.borrowers import borrower_pod
from pearl_operator.ports import RolloutKey
from pearl_operator.resources.gateway import gateway_deployment
from pearl_operator.resources.worker import worker_pod
from pearl_operator.settings import Settings
from pearl_planner.types import Role, Slot, Zone

if TYPE_CHECKING:
    from fake_cluster import Object

KEY = RolloutKey("rl", "swe")


def of_pod(**fields: Any) -> Object:
    return {"spec": fields}


def of_container(name: str, **fields: Any) -> Object:
    return {"spec": {"containers": [{"name": name, **fields}]}}


def wishes(container: str) -> dict[str, Object]:
    """Pod templates, each with one demand."""
    spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["gpu"]}]}]}
    mounted = of_container(container, volumeMounts=[{"name": "ca", "mountPath": "/etc/ca", "readOnly": True}])
    return {
        "tolerations": of_pod(tolerations=[{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]),
        "nodeSelector": of_pod(nodeSelector={"pool": "gpu"}),
        "affinity": of_pod(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}),
        "topologySpreadConstraints": of_pod(topologySpreadConstraints=[spread]),
        "runtimeClassName": of_pod(runtimeClassName="nvidia"),
        "schedulerName": of_pod(schedulerName="kai-scheduler"),
        "imagePullSecrets": of_pod(imagePullSecrets=[{"name": "pull"}]),
        "priorityClassName": of_pod(priorityClassName="high"),
        "serviceAccountName": of_pod(serviceAccountName="own"),
        "hostNetwork": of_pod(hostNetwork=True, dnsPolicy="ClusterFirstWithHostNet"),
        "initContainers": of_pod(initContainers=[{"name": "wait", "image": "example/wait:1"}]),
        "podLabels": {"metadata": {"labels": {"team": "rl"}}},
        "podAnnotations": {"metadata": {"annotations": {"sidecar.istio.io/inject": "false"}}},
        "podSecurityContext": of_pod(securityContext={"supplementalGroups": [4], "runAsUser": 7}),
        "securityContext": of_container(container, securityContext={"capabilities": {"add": ["IPC_LOCK"]}}),
        "resources": of_container(container, resources={"requests": {"cpu": "8"}, "limits": {"rdma/ib": "1"}}),
        "env": of_container(container, env=[{"name": "NCCL_DEBUG", "value": "INFO"}]),
        "envFrom": of_container(container, envFrom=[{"secretRef": {"name": "hub"}}]),
        "volumes": deep_merge(mounted, of_pod(volumes=[{"name": "ca", "configMap": {"name": "ca"}}])),
        "shmSize": of_pod(volumes=[{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}]),
        "tmpOnDisk": of_pod(volumes=[{"name": "tmp", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}]),
    }


WISHES = sorted(wishes("worker"))


def has(found: Any, wanted: Any) -> bool:
    """Whether `found` says everything that `wanted` says."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(key in found and has(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return isinstance(found, list) and all(any(has(each, wish) for each in found) for wish in wanted)
    return bool(found == wanted)


def fact(**changes: Any) -> tuple[RolloutFact, PearlRolloutSpec]:
    spec = PearlRolloutSpec.model_validate(deep_merge(SPEC, changes))
    status = PearlRolloutStatus()
    return RolloutFact(
        key=KEY, uid="u", resource_version="1", generation=1, deleting=False, hold=False, spec=spec, status=status
    ), spec


def loan() -> LoanFact:
    reference = {"name": KEY.name, "namespace": KEY.namespace}
    spec = {"trainer": {"name": "t", "uid": "u"}, "node": "n", "gpus": ["GPU-1"], "rolloutRef": reference}
    return LoanFact(
        namespace="train",
        name="t",
        uid="u",
        resource_version="1",
        deleting=False,
        rollout=KEY,
        spec=GPULoanSpec.model_validate(spec),
        status=GPULoanStatus(),
    )


def pods_with(wish: Object) -> dict[str, Object]:
    """The worker pod of each zone, with the demand in the template that is for it."""
    rollout, spec = fact(podTemplate=wish)
    of_zone, zone_spec = fact(capacity={"elastic": {"maxGpus": 2, "podTemplate": wish}})
    borrowing, _ = fact(capacity={"borrowed": {"maxGpus": 2, "podTemplate": wish}})
    return {
        "reserved": worker_pod(rollout, spec, Slot(0, Zone.RESERVED, Role.DECODE, 0), role_epoch=1),
        "elastic": worker_pod(of_zone, zone_spec, Slot(0, Zone.ELASTIC, Role.DECODE, 0), role_epoch=1),
        "borrower": borrower_pod(loan(), borrowing, index=0, slot=1000, hostname="n"),
    }


@pytest.mark.parametrize("name", WISHES)
def test_a_demand_reaches_the_workers_of_every_zone(name: str) -> None:
    wish = wishes("worker")[name]
    assert [zone for zone, pod in pods_with(wish).items() if not has(pod, wish)] == []
    assert [zone for zone, pod in pods_with({}).items() if has(pod, wish)] == [], "it is there anyway"


@pytest.mark.parametrize("name", WISHES)
def test_a_demand_reaches_the_gateway(name: str) -> None:
    wish = wishes("gateway")[name]
    settings = Settings(namespace="rl", gateway_image="example/operator:1")
    asked, plain = (
        gateway_deployment(*fact(gateway={"podTemplate": each}), settings)["spec"]["template"] for each in (wish, {})
    )
    assert has(asked, wish)
    assert not has(plain, wish)


@pytest.mark.parametrize("pod", [*pods_with({}), "gateway"])
def test_a_volume_of_another_kind_takes_the_place_of_ours(pod: str) -> None:
    other = of_pod(volumes=[{"name": "tmp", "hostPath": {"path": "/scratch"}}])
    if pod == "gateway":
        settings = Settings(namespace="rl", gateway_image="example/operator:1")
        made = gateway_deployment(*fact(gateway={"podTemplate": other}), settings)["spec"]["template"]
    else:
        made = pods_with(other)[pod]
    (tmp,) = [volume for volume in made["spec"]["volumes"] if volume["name"] == "tmp"]
    assert tmp == {"name": "tmp", "hostPath": {"path": "/scratch"}}, "a volume has one source"


@pytest.mark.looptime
@pytest.mark.parametrize("name", WISHES)
async def test_changing_a_demand_replaces_the_workers_one_for_one(world: World, name: str) -> None:
    wish = wishes("worker")[name]
    world.apply()
    await world.start()
    await world.until(world.is_ready)
    before = len(world.kube.writes)
    world.apply(podTemplate=wish)

    def done() -> bool:
        assert world.serving >= 2
        return world.is_ready() and all(has(pod, wish) for pod in world.pods.values())

    await world.until(done, seconds=300)
    writes = world.kube.writes[before:]
    made = [write for write in writes if write.startswith("create Pod")]
    ended = [write for write in writes if write.startswith("delete Pod")]
    assert (len(made), len(set(ended))) == (3, 3)
    assert not [write for write in writes if "Deployment" in write], "the gateway is not touched"
    await world.stop()


@pytest.mark.looptime
async def test_changing_a_demand_of_the_gateway_touches_no_worker(world: World) -> None:
    world.apply()
    await world.start()
    await world.until(world.is_ready)
    before = world.uids
    for wish in wishes("gateway").values():
        world.apply(gateway={"podTemplate": wish})
        await world.until(lambda wish=wish: has(world.kube.of(kinds.DEPLOYMENT)[0]["spec"]["template"], wish))
        await world.until(world.is_ready)
    assert world.uids == before
    await world.stop()
