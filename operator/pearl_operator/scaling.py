"""Who else sets the replicas of a gateway's Deployment: an autoscaler that targets it, or whoever scaled it by hand.

A gateway has one replica, because trajectories and token logs have one owner. Where somebody else sets the number, it
is left to them and told: two that write one field would take it from each other for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pearl_api import names
from pearl_operator import kinds
from pearl_operator.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pearl_operator.ports import Kube, Object

REPLICAS: Final = 1
_AUTOSCALER_MANAGER: Final = "kube-controller-manager"
"""Field manager of what a HorizontalPodAutoscaler writes."""
_WHY: Final = "the gateway must have 1 replica, because each trajectory lives in one"
_INSTEAD: Final = "set spec.gateway.processes where it needs more cores"


@dataclass(frozen=True, slots=True)
class Scaling:
    """Whether the operator sets the replicas, and else what a person should change."""

    ours: bool = True
    problem: str | None = None


async def read_scaling(kube: Kube, deployment: Object) -> Scaling:
    """What the cluster says about the replicas of this gateway.

    Raises:
        RetryAfter: The API server did not answer.
    """
    autoscalers: list[Object] | None
    try:
        autoscalers = await kube.list(kinds.AUTOSCALER, deployment["metadata"]["namespace"])
    except Refused:  # the operator's Role is not the chart's
        autoscalers = None
    return scaling_of(deployment, autoscalers)


def scaling_of(deployment: Object, autoscalers: Sequence[Object] | None) -> Scaling:
    """From the stored Deployment and the autoscalers of its namespace; None: they could not be read."""
    name, replicas = deployment["metadata"]["name"], deployment["spec"].get("replicas", REPLICAS)
    scaled_by = [_called(each) for each in autoscalers or () if _targets(each, name)]
    if scaled_by:
        told = f"{' and '.join(scaled_by)} scales Deployment {name}, but {_WHY}: delete it and {_INSTEAD}"
        return Scaling(ours=False, problem=told)
    others = _other_owners(deployment)
    left_behind = autoscalers is not None and others <= {_AUTOSCALER_MANAGER}
    if replicas == REPLICAS or not others or left_behind:
        return Scaling()
    scale = f"kubectl -n {deployment['metadata']['namespace']} scale deployment/{name} --replicas={REPLICAS}"
    told = f"{' and '.join(sorted(others))} set {replicas} replicas of Deployment {name}, but {_WHY}: "
    return Scaling(ours=False, problem=f"{told}stop what scales it, run `{scale}` and {_INSTEAD}")


def _targets(autoscaler: Object, deployment: str) -> bool:
    target = autoscaler["spec"]["scaleTargetRef"]
    of_deployments = target.get("apiVersion", kinds.DEPLOYMENT.api_version).startswith(f"{kinds.DEPLOYMENT.group}/")
    return of_deployments and (target["kind"], target["name"]) == (kinds.DEPLOYMENT.kind, deployment)


def _called(autoscaler: Object) -> str:
    """What a person must delete: the object that made the autoscaler (KEDA's ScaledObject), or itself."""
    meta = autoscaler["metadata"]
    makers = [owner for owner in meta.get("ownerReferences") or () if owner.get("controller")]
    return f"{makers[0]['kind']} {makers[0]['name']}" if makers else f"{kinds.AUTOSCALER.kind} {meta['name']}"


def _other_owners(deployment: Object) -> set[str]:
    """Field managers of the replicas besides this operator."""
    entries: list[dict[str, Any]] = deployment["metadata"].get("managedFields") or []
    return {
        entry["manager"]
        for entry in entries
        if entry["manager"] != names.FIELD_MANAGER
        and "f:replicas" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})
    }
