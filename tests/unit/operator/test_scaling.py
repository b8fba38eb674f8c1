"""Somebody else scales a gateway's Deployment: it is told, and nobody fights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pearl_api.conditions import ConditionType
from pearl_operator import kinds
from pearl_operator.scaling import Scaling, scaling_of

if TYPE_CHECKING:
    from fake_cluster import Object, World

AUTOSCALER = "kube-controller-manager"


def deployment(replicas: int, *managers: str) -> Object:
    fields = [{"manager": name, "fieldsV1": {"f:spec": {"f:replicas": {}}}} for name in managers]
    others = [{"manager": "kubectl-edit", "fieldsV1": {"f:metadata": {"f:labels": {}}}}, {"manager": "bare"}]
    meta = {"name": "swe-gateway", "namespace": "rl", "managedFields": [*fields, *others]}
    return {"metadata": meta, "spec": {"replicas": replicas}}


def autoscaler(called: str = "busy", *, made_by: str | None = None, **target: str) -> Object:
    aim = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "swe-gateway", **target}
    owners = [{"kind": "ScaledObject", "name": made_by, "controller": True}] if made_by else []
    meta: dict[str, Any] = {"name": called, "namespace": "rl", "ownerReferences": owners}
    return {"metadata": meta, "spec": {"scaleTargetRef": aim, "minReplicas": 2, "maxReplicas": 4}}


@pytest.mark.parametrize(
    "target",
    [{"name": "other-gateway"}, {"kind": "StatefulSet"}, {"apiVersion": "example.com/v1"}],
)
def test_an_autoscaler_of_something_else_changes_nothing(target: dict[str, str]) -> None:
    assert scaling_of(deployment(1, "pearl"), [autoscaler(**target)]) == Scaling()


def test_an_autoscaler_is_told_before_it_has_scaled_and_its_maker_is_named() -> None:
    found = scaling_of(deployment(1, "pearl"), [autoscaler("busy")])
    assert not found.ours
    assert found.problem == (
        "HorizontalPodAutoscaler busy scales Deployment swe-gateway, but the gateway must have 1 replica, because each "
        "trajectory lives in one: delete it and set spec.gateway.processes where it needs more cores"
    )
    by_keda = scaling_of(deployment(1, "pearl"), [autoscaler("keda-hpa-busy", made_by="busy")])
    assert (by_keda.problem or "").startswith("ScaledObject busy scales")


@pytest.mark.parametrize(
    ("found", "autoscalers", "ours"),
    [
        (deployment(1, "pearl"), [], True),
        (deployment(3, "pearl"), [], True),  # an operator of another version set it
        (deployment(1, "kubectl"), [], True),  # the number is right: nothing to take from anybody
        (deployment(0, "kubectl"), [], False),
        (deployment(3, "pearl", AUTOSCALER), [], True),  # its autoscaler is gone
        (deployment(3, AUTOSCALER), None, False),  # whether it is gone is unknown
        (deployment(3, AUTOSCALER, "kubectl"), [], False),
    ],
)
def test_what_others_set_is_left_to_them(found: Object, autoscalers: list[Object] | None, ours: bool) -> None:
    scaling = scaling_of(found, autoscalers)
    assert (scaling.ours, scaling.problem is None) == (ours, ours)
    if "kubectl" in (scaling.problem or ""):
        assert "kubectl -n rl scale deployment/swe-gateway --replicas=1" in str(scaling.problem)


def replicas(world: World) -> int:
    count: int = world.kube.of(kinds.DEPLOYMENT)[0]["spec"]["replicas"]
    return count


def applied(world: World) -> int:
    return world.kube.writes.count("apply Deployment swe-gateway")


def warnings(world: World) -> list[str]:
    return [event["message"] for event in world.kube.of(kinds.EVENT) if event["reason"] == "GatewayScaled"]


@pytest.mark.looptime
async def test_an_autoscaler_of_the_gateway_is_told_and_not_fought_and_what_it_left_is_put_right(world: World) -> None:
    world.apply()
    await world.start()
    await world.until(world.is_ready)
    assert replicas(world) == 1
    world.kube.store(kinds.AUTOSCALER, autoscaler())
    world.kube.scale("swe-gateway", "rl", 3, manager=AUTOSCALER)
    before = applied(world)
    await world.until(lambda: world.condition("Degraded") == ("True", "GatewayScaled"), seconds=90)
    world.kube.scale("swe-gateway", "rl", 4, manager=AUTOSCALER)
    world.apply(capacity={"reserved": {"gpus": 4}})
    await world.until(world.is_ready)
    await world.rest(200)
    assert replicas(world) == 4
    assert applied(world) - before <= 1, "giving up the field is the only write"
    (told,) = [each["message"] for each in world.status["conditions"] if each["type"] == ConditionType.DEGRADED]
    assert warnings(world) == [told]

    world.kube.remove(kinds.AUTOSCALER, "busy", "rl")
    await world.until(lambda: world.condition("Degraded") == ("False", "Healthy"), seconds=90)
    assert replicas(world) == 1
    await world.stop()


@pytest.mark.looptime
async def test_a_gateway_scaled_by_hand_stays_so_until_it_is_scaled_back(world: World) -> None:
    world.apply()
    await world.start()
    await world.until(world.is_ready)
    world.kube.scale("swe-gateway", "rl", 0, manager="kubectl")
    await world.until(lambda: world.condition("Degraded") == ("True", "GatewayScaled"), seconds=90)
    await world.rest(200)
    assert replicas(world) == 0
    world.kube.scale("swe-gateway", "rl", 1, manager="kubectl")
    await world.until(lambda: world.condition("Degraded") == ("False", "Healthy"), seconds=90)
    await world.stop()


@pytest.mark.looptime
async def test_without_the_right_to_read_autoscalers_the_gateway_is_made(world: World) -> None:
    world.kube.forbidden = {kinds.AUTOSCALER.plural}
    world.apply()
    await world.start()
    await world.until(world.is_ready)
    assert (replicas(world), world.condition("Degraded")) == (1, ("False", "Healthy"))
    await world.stop()
