"""The rollout's gateway: one Deployment and one Service. Its ServiceAccount comes with the chart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pearl_api import names
from pearl_api.names import Zone
from pearl_operator.resources import common
from pearl_operator.resources.merge import merge
from pearl_operator.scaling import REPLICAS

if TYPE_CHECKING:
    from pearl_api.rollout import PearlRolloutSpec
    from pearl_operator.facts import RolloutFact
    from pearl_operator.ports import Object
    from pearl_operator.settings import Settings

CONTAINER: Final = "gateway"
TOKENS_DIR: Final = "/etc/pearl/tokens"
DATA_DIR: Final = "/var/lib/pearl"


def gateway_deployment(
    rollout: RolloutFact, spec: PearlRolloutSpec, settings: Settings, *, set_replicas: bool = True
) -> Object:
    """One replica, recreated rather than rolled: its batches and token logs have one owner.

    Without `set_replicas` their number is left to whoever set it.
    """
    name = names.gateway_name(rollout.key.name)
    labels = common.labels(rollout, names.COMPONENT_GATEWAY)
    selector = {names.LABEL_ROLLOUT: rollout.key.name, names.LABEL_COMPONENT: names.COMPONENT_GATEWAY}
    template = {"metadata": {"labels": labels}, "spec": _pod_spec(rollout, spec, settings)}
    overlay = spec.gateway.pod_template or {}
    meta = overlay.get("metadata") or {}
    template = merge(
        template,
        {
            "metadata": {key: meta[key] for key in ("labels", "annotations") if meta.get(key)},
            "spec": overlay.get("spec") or {},
        },
    )
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": common.metadata(rollout, name, names.COMPONENT_GATEWAY),
        "spec": {
            **({"replicas": REPLICAS} if set_replicas else {}),
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": selector},
            "template": merge(template, {"metadata": {"labels": labels}}),
        },
    }


def gateway_service(rollout: RolloutFact) -> Object:
    """The one address of the rollout."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": common.metadata(rollout, names.gateway_name(rollout.key.name), names.COMPONENT_GATEWAY),
        "spec": {
            "selector": {
                names.LABEL_ROLLOUT: rollout.key.name,
                names.LABEL_COMPONENT: names.COMPONENT_GATEWAY,
            },
            "ports": [
                {
                    "name": names.PORT_NAME_HTTP,
                    "port": names.PORT_GATEWAY,
                    "targetPort": names.PORT_NAME_HTTP,
                    "protocol": "TCP",
                }
            ],
        },
    }


def _pod_spec(rollout: RolloutFact, spec: PearlRolloutSpec, settings: Settings) -> dict[str, Any]:
    return {
        "serviceAccountName": settings.gateway_service_account,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 30,
        "securityContext": dict(common.POD_SECURITY),
        "containers": [_container(rollout, spec, settings)],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            common.secret_volume("pearl-tokens", names.gateway_secret(rollout.key.name)),
            {"name": "data", **_storage(spec)},
        ],
    }


def _requests(processes: int) -> dict[str, str]:
    return {"cpu": f"{100 * processes}m", "memory": f"{256 * processes}Mi"}


def _storage(spec: PearlRolloutSpec) -> dict[str, Any]:
    storage = spec.gateway.storage
    if storage.claim_name is not None:
        return {"persistentVolumeClaim": {"claimName": storage.claim_name}}
    return {"emptyDir": {"sizeLimit": storage.size_limit}}


def _container(rollout: RolloutFact, spec: PearlRolloutSpec, settings: Settings) -> dict[str, Any]:
    environment = {
        "PEARL_ROLLOUT": rollout.key.name,
        "PEARL_NAMESPACE": rollout.key.namespace,
        "PEARL_TRAINER_NAMESPACES": ",".join(settings.trainer_namespaces),
        "PEARL_TOKENS": TOKENS_DIR,
        "PEARL_STORAGE": DATA_DIR,
        "PEARL_PROCESSES": str(spec.gateway.processes),
        "PEARL_AUTH": spec.gateway.auth,
        "PEARL_MODEL": spec.model.name,
        "PEARL_MAX_MODEL_LEN": str(spec.engine.max_model_len),
        # By zone: the gateway knows which workers are borrowed, and only theirs is short.
        common.KV_LEASE_VARIABLE: f"{common.kv_lease_seconds(spec, Zone.RESERVED):g}",
        "PEARL_BORROWED_KV_LEASE_SECONDS": f"{common.kv_lease_seconds(spec, Zone.BORROWED):g}",
    }
    return {
        "name": CONTAINER,
        "image": settings.gateway_image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["pearl-gateway"],
        "ports": [{"name": names.PORT_NAME_HTTP, "containerPort": names.PORT_GATEWAY, "protocol": "TCP"}],
        "env": [{"name": name, "value": value} for name, value in environment.items()],
        # Ready without workers too: it then answers 503 with a hint, and the operator reads its statistics.
        "livenessProbe": common.probe("/health", names.PORT_NAME_HTTP, period=10, failures=3, timeout=5),
        "readinessProbe": common.probe("/health", names.PORT_NAME_HTTP, period=2, failures=2, timeout=2),
        "resources": {"requests": _requests(spec.gateway.processes)},
        "securityContext": dict(common.CONTAINER_SECURITY),
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - a path in the container
            {"name": "pearl-tokens", "mountPath": TOKENS_DIR, "readOnly": True},
            {"name": "data", "mountPath": DATA_DIR},
        ],
    }
