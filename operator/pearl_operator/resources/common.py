"""What all objects of a rollout have in common: owner, labels, security."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pearl_api import names
from pearl_api.names import Zone

if TYPE_CHECKING:
    from pearl_api.rollout import PearlRolloutSpec
    from pearl_operator.facts import RolloutFact

POD_SECURITY: Final = {
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "runAsGroup": 10001,
    "fsGroup": 10001,
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY: Final = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
"""Both together satisfy Pod Security Admission `restricted`."""


KV_LEASE_VARIABLE: Final = "PEARL_KV_LEASE_SECONDS"
_KV_LEASE_SECONDS: Final = {Zone.RESERVED: 10.0, Zone.ELASTIC: 10.0, Zone.BORROWED: 3.0}


def kv_lease_seconds(spec: PearlRolloutSpec, zone: Zone) -> float:
    """How long a worker of this zone keeps prefilled KV pinned; short on borrowed GPUs, which must come back."""
    given = spec.engine.env.get(KV_LEASE_VARIABLE, "")
    try:
        return min(float(given), _KV_LEASE_SECONDS[zone]) if given else _KV_LEASE_SECONDS[zone]
    except ValueError:
        return _KV_LEASE_SECONDS[zone]


def owner(rollout: RolloutFact) -> dict[str, Any]:
    """The controller reference by which the garbage collector removes everything, operator or not."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": "PearlRollout",
        "name": rollout.key.name,
        "uid": rollout.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def labels(rollout: RolloutFact, component: str) -> dict[str, str]:
    """Labels by which pods of a rollout are found."""
    return {
        "app.kubernetes.io/name": "pearl",
        "app.kubernetes.io/instance": rollout.key.name,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/managed-by": "pearl-operator",
        names.LABEL_ROLLOUT: rollout.key.name,
        names.LABEL_COMPONENT: component,
    }


def metadata(rollout: RolloutFact, name: str, component: str) -> dict[str, Any]:
    """Metadata of an object that the rollout owns."""
    return {
        "name": name,
        "namespace": rollout.key.namespace,
        "labels": labels(rollout, component),
        "ownerReferences": [owner(rollout)],
    }


def secret_volume(name: str, secret: str) -> dict[str, Any]:
    """A Secret as a volume that only the container's group reads."""
    return {"name": name, "secret": {"secretName": secret, "defaultMode": 0o440}}


def probe(path: str, port: str, *, period: int, failures: int, timeout: int) -> dict[str, Any]:
    """An HTTP probe."""
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period,
        "failureThreshold": failures,
        "timeoutSeconds": timeout,
    }
