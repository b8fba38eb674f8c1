"""What all objects of a rollout have in common: owner, labels, security."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pearl_api import names

if TYPE_CHECKING:
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
