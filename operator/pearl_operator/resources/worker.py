"""The worker pod: one container, PID 1 is the agent, GPUs by extended resource, role and activity by label."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from pearl_api import names
from pearl_api.names import Activity, Zone
from pearl_api.rollout import WeightsSpec
from pearl_operator.resources import common
from pearl_operator.resources.merge import merge
from pearl_operator.stage_sizes import worker_sizes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pearl_api.rollout import PearlRolloutSpec
    from pearl_operator.facts import RolloutFact
    from pearl_operator.ports import Object
    from pearl_planner.types import Slot

CONTAINER: Final = "worker"
TOKENS_DIR: Final = "/etc/pearl/tokens"
STATE_DIR: Final = "/var/run/pearl"
_GRACE_SECONDS: Final = 15
"""On top of the drain: stopping the engine."""
_SHAPE_DIGITS: Final = 12
_ON_UPDATE_DEFAULT: Final = WeightsSpec().on_update
_ANNOTATIONS: Final = {
    Zone.RESERVED: {
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        "karpenter.sh/do-not-disrupt": "true",
    },
    Zone.ELASTIC: {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"},
    Zone.BORROWED: {
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "true",
    },
}
"""Reserved workers are never moved; elastic ones may be; a borrower must not keep its trainer's node alive."""


def shape_hash(spec: PearlRolloutSpec, zone: Zone, gpus: int) -> str:
    """Identifies everything for which a pod of so many GPUs must be replaced.

    Computed from what the user wrote, not from the pod that is built, so that a new operator version does not
    replace a fleet, and so that deadlines, policy and roles touch no pod.
    """
    # Of the sizes only its own counts, so that another stage's may change without it.
    engine = spec.engine.model_dump(mode="json", exclude={"table"}) | {"tensor_parallel": gpus, "parallelism": None}
    basis: dict[str, Any] = {
        "model": spec.model.model_dump(mode="json"),
        "engine": engine,
        "weights": spec.weights.source,
        "templates": [template for template in _templates(spec, zone) if template],
    }
    if spec.weights.on_update != _ON_UPDATE_DEFAULT:
        # Left out at its default: fleets from before it counted keep their pods.
        basis["onUpdate"] = spec.weights.on_update
    text = json.dumps(basis, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_SHAPE_DIGITS]


def worker_pod(rollout: RolloutFact, spec: PearlRolloutSpec, slot: Slot, *, role_epoch: int) -> Object:
    """The pod of a slot. Its name is a function of slot and incarnation, so that a repeated create is noticed."""
    zone = Zone(slot.zone)
    gpus = worker_sizes(spec.engine).gpus_of(slot.role)
    ours = common.metadata(
        rollout, names.worker_pod(rollout.key.name, slot.slot, slot.incarnation), names.COMPONENT_WORKER
    )
    ours["labels"] |= {
        names.LABEL_ZONE: zone.value,
        names.LABEL_SLOT: str(slot.slot),
        names.LABEL_SHAPE: shape_hash(spec, zone, gpus),
        names.LABEL_ROLE: slot.role.value,
        names.LABEL_ROLE_EPOCH: str(role_epoch),
        names.LABEL_ACTIVITY: Activity.ACTIVE.value,
    }
    base = base_pod(spec, zone, names.worker_secret(rollout.key.name), gpus=gpus)
    return with_templates(base, spec, zone, ours)


def base_pod(spec: PearlRolloutSpec, zone: Zone, secret: str, *, gpus: int) -> Object:
    """What every worker pod of so many GPUs is before templates are merged: `metadata.annotations` and `spec`.

    Also the base of borrower pods, whose GPUs, owner and environment the loan service adds.
    """
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"annotations": dict(_ANNOTATIONS[zone])},
        "spec": {
            "restartPolicy": "Always",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": round(spec.policy.deadlines.drain_seconds) + _GRACE_SECONDS,
            "securityContext": dict(common.POD_SECURITY),
            "containers": [_container(spec, zone, gpus)],
            "volumes": [
                {"name": "tmp", "emptyDir": {}},
                {"name": "shm", "emptyDir": {"medium": "Memory"}},
                {"name": "pearl-state", "emptyDir": {}},
                common.secret_volume("pearl-tokens", secret),
                *({"name": f"claim-{claim}", **_claim(claim)} for claim in claims(spec)),
            ],
        },
    }


def with_templates(base: Object, spec: PearlRolloutSpec, zone: Zone, ours: Mapping[str, Any]) -> Object:
    """Merges the user's templates, general then of the zone, and then `ours` metadata, which always wins.

    A grace period in a template counts where it is longer: a shorter one would kill the engine in its drain.
    """
    pod = base
    for template in _templates(spec, zone):
        meta = template.get("metadata") or {}
        allowed = {key: meta[key] for key in ("labels", "annotations") if meta.get(key)}
        pod = merge(pod, {"metadata": allowed, "spec": template.get("spec") or {}})
    least, wanted = (each["spec"].get("terminationGracePeriodSeconds") for each in (base, pod))
    if wanted is None or (isinstance(wanted, int) and wanted < least):
        pod = merge(pod, {"spec": {"terminationGracePeriodSeconds": least}})
    return merge(pod, {"metadata": dict(ours)})


def claims(spec: PearlRolloutSpec) -> list[str]:
    """Volume claims that `pvc://claim/path` URIs of model and weights name; each is mounted at `/pvc/CLAIM`."""
    uris = [spec.model.uri, spec.weights.source or ""]
    found = {urlsplit(uri).netloc for uri in uris if uri.startswith("pvc://")}
    return sorted(claim for claim in found if claim)


def _templates(spec: PearlRolloutSpec, zone: Zone) -> list[dict[str, Any]]:
    of_zone = {
        Zone.RESERVED: None,
        Zone.ELASTIC: spec.capacity.elastic.pod_template,
        Zone.BORROWED: spec.capacity.borrowed.pod_template,
    }[zone]
    return [spec.pod_template or {}, of_zone or {}]


def _claim(claim: str) -> dict[str, Any]:
    return {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}


def _container(spec: PearlRolloutSpec, zone: Zone, gpus: int) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": spec.engine.image,
        "imagePullPolicy": "IfNotPresent",
        "ports": [
            {"name": names.PORT_NAME_ENGINE, "containerPort": names.PORT_ENGINE, "protocol": "TCP"},
            {"name": names.PORT_NAME_AGENT, "containerPort": names.PORT_AGENT, "protocol": "TCP"},
            {"name": "nixl", "containerPort": names.PORT_NIXL, "protocol": "TCP"},
        ],
        "env": _environment(spec, zone, gpus),
        "livenessProbe": common.probe("/healthz", names.PORT_NAME_AGENT, period=5, failures=3, timeout=5),
        "readinessProbe": common.probe("/readyz", names.PORT_NAME_AGENT, period=1, failures=2, timeout=2),
        "securityContext": dict(common.CONTAINER_SECURITY),
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - a path in the container
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
            {"name": "pearl-state", "mountPath": STATE_DIR},
            {"name": "pearl-tokens", "mountPath": TOKENS_DIR, "readOnly": True},
            *({"name": f"claim-{claim}", "mountPath": f"/pvc/{claim}", "readOnly": True} for claim in claims(spec)),
        ],
    }
    if zone is not Zone.BORROWED:
        held = {spec.engine.gpu_resource: str(gpus)}
        container["resources"] = {"requests": held, "limits": dict(held)}
    return container


def _environment(spec: PearlRolloutSpec, zone: Zone, gpus: int) -> list[dict[str, Any]]:
    ours = {
        "HOME": "/tmp",  # noqa: S108 - the only writable place
        "PEARL_MODEL_NAME": spec.model.name,
        "PEARL_MODEL_URI": spec.model.uri,
        "PEARL_MAX_MODEL_LEN": str(spec.engine.max_model_len),
        "PEARL_TENSOR_PARALLEL": str(gpus),
        "PEARL_ENGINE_ARGS": json.dumps(spec.engine.args),
        "PEARL_DRAIN_SECONDS": f"{spec.policy.deadlines.drain_seconds:g}",
        "PEARL_START_SECONDS": f"{spec.policy.deadlines.start_seconds:g}",
        "PEARL_ON_UPDATE": spec.weights.on_update,
        "PEARL_TOKENS_DIR": TOKENS_DIR,
        "PEARL_STATE_DIR": STATE_DIR,
        common.KV_LEASE_VARIABLE: f"{common.kv_lease_seconds(spec, zone):g}",
    }
    if spec.weights.source is not None:
        ours["PEARL_WEIGHTS_SOURCE"] = spec.weights.source
    downward = {
        "PEARL_POD_NAME": "metadata.name",
        "PEARL_POD_UID": "metadata.uid",
        "PEARL_POD_IP": "status.podIP",
    }
    return [
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in downward.items()),
        *({"name": name, "value": value} for name, value in {**spec.engine.env, **ours}.items()),
    ]
