"""Small frozen facts, distilled from Kubernetes objects; no object body is kept.

Each `*_fact` function is pure and accepts whatever the API server may send.
"""

from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from pearl_api import names, tokens
from pearl_api.base import Model
from pearl_api.loan import GPULoanSpec, GPULoanStatus
from pearl_api.rollout import PearlRolloutSpec, PearlRolloutStatus
from pearl_operator.clock import from_rfc3339
from pearl_operator.ports import PodAddress, RolloutKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pearl_operator.ports import Object

Stored = TypeVar("Stored", bound=Model)
_WORKER_NAME = re.compile(r"-w(?P<slot>\d+)-(?P<incarnation>\d+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFact:
    """A pod of a rollout: worker or gateway."""

    address: PodAddress
    resource_version: str
    rollout: RolloutKey
    component: str
    zone: str | None = None
    slot: int | None = None
    incarnation: int = 0
    role: str | None = None
    role_epoch: int = 0
    activity: str = names.Activity.ACTIVE
    activity_since: float | None = None
    """When the role manager last changed the pod (the API server's clock)."""
    shape: str | None = None
    loan: str | None = None
    group: str | None = None
    owner_uid: str | None = None
    node: str | None = None
    phase: str = "Pending"
    running: bool = False
    """Its worker container runs."""
    ready: bool = False
    deleting: bool = False
    restarts: int = 0
    resources: tuple[tuple[str, int], ...] = ()
    """Extended resources (name, count) that it holds."""
    unschedulable: str | None = None
    """The scheduler's sentence."""
    waiting: str | None = None
    """`Reason: message` of a container that cannot start, for example ImagePullBackOff."""
    created: float | None = None
    """Wall-clock time."""
    disruption: str | None = None
    """Reason of a DisruptionTarget condition."""

    @property
    def rank(self) -> tuple[int, int]:
        """Orders pods by slot and incarnation."""
        return (self.slot if self.slot is not None else -1, self.incarnation)


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint that may announce a node's end."""

    key: str
    since: float | None
    value: str = ""


@dataclass(frozen=True, slots=True)
class NodeCondition:
    """A condition of a node, without its heartbeat."""

    kind: str
    status: str
    reason: str | None
    since: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFact:
    """A node."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    taints: tuple[Taint, ...] = ()
    conditions: tuple[NodeCondition, ...] = ()
    unschedulable: bool = False
    ready: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoanFact:
    """A GPULoan."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    deleting: bool
    rollout: RolloutKey
    spec: GPULoanSpec
    status: GPULoanStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFact:
    """A PearlRollout."""

    key: RolloutKey
    uid: str
    resource_version: str
    generation: int
    deleting: bool
    hold: bool
    spec: PearlRolloutSpec | None
    """None where this operator cannot read it; `problem` says why."""
    status: PearlRolloutStatus
    problem: str | None = None


def _integer(text: str | None, default: int | None = None) -> int | None:
    try:
        return int(text) if text is not None else default
    except ValueError:
        return default


def rollout_of(meta: Mapping[str, Any]) -> RolloutKey | None:
    """The rollout that an object belongs to by its labels; None for strangers."""
    labels = meta.get("labels") or {}
    name = labels.get(names.LABEL_ROLLOUT)
    namespace = labels.get(names.LABEL_ROLLOUT_NAMESPACE) or meta.get("namespace")
    return RolloutKey(namespace, name) if name and namespace else None


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return next((each for each in status.get("conditions") or [] if each.get("type") == kind), {})


def _is_true(condition: Mapping[str, Any]) -> bool:
    return condition.get("status") == "True"


def _sentence(condition: Mapping[str, Any]) -> str:
    return ": ".join(part for part in (condition.get("reason"), condition.get("message")) if part)


def _resources(spec: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """Extended resources only: their names have a slash, their counts are whole numbers."""
    total: dict[str, int] = {}
    for container in spec.get("containers") or []:
        asked = container.get("resources") or {}
        for name, count in {**(asked.get("limits") or {}), **(asked.get("requests") or {})}.items():
            if "/" in name:
                total[name] = total.get(name, 0) + (_integer(str(count), 0) or 0)
    return tuple(sorted(total.items()))


def _activity_since(meta: Mapping[str, Any]) -> float | None:
    times = [
        from_rfc3339(entry.get("time"))
        for entry in meta.get("managedFields") or []
        if entry.get("manager") == names.FIELD_MANAGER_ROLE
    ]
    return max((time for time in times if time is not None), default=None)


def _waiting(statuses: list[Mapping[str, Any]]) -> str | None:
    for each in statuses:
        waiting = (each.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return _sentence(waiting)
    return None


def pod_fact(body: Object) -> PodFact | None:
    """The fact of a pod with PEARL's labels; None for any other pod."""
    meta, spec, status = body.get("metadata") or {}, body.get("spec") or {}, body.get("status") or {}
    rollout = rollout_of(meta)
    labels = meta.get("labels") or {}
    component = labels.get(names.LABEL_COMPONENT)
    if rollout is None or component is None:
        return None
    named = _WORKER_NAME.search(meta["name"])
    containers = status.get("containerStatuses") or []
    ready, scheduled = _condition(status, "Ready"), _condition(status, "PodScheduled")
    disruption = _condition(status, "DisruptionTarget")
    return PodFact(
        address=PodAddress(
            meta["namespace"],
            meta["name"],
            meta["uid"],
            status.get("podIP") or None,
            tokens.lender_of(meta, rollout.namespace),
        ),
        resource_version=meta.get("resourceVersion", ""),
        rollout=rollout,
        component=component,
        zone=labels.get(names.LABEL_ZONE),
        slot=_integer(labels.get(names.LABEL_SLOT)),
        incarnation=int(named["incarnation"]) if named else 0,
        role=labels.get(names.LABEL_ROLE),
        role_epoch=_integer(labels.get(names.LABEL_ROLE_EPOCH), 0) or 0,
        activity=labels.get(names.LABEL_ACTIVITY) or names.Activity.ACTIVE,
        activity_since=_activity_since(meta),
        shape=labels.get(names.LABEL_SHAPE),
        loan=labels.get(names.LABEL_LOAN),
        group=labels.get(names.LABEL_GROUP),
        owner_uid=tokens.controller_uid(meta),
        node=spec.get("nodeName"),
        phase=status.get("phase") or "Pending",
        running=any("running" in (each.get("state") or {}) for each in containers),
        ready=_is_true(ready),
        deleting=meta.get("deletionTimestamp") is not None,
        restarts=sum(each.get("restartCount") or 0 for each in containers),
        resources=_resources(spec),
        unschedulable=_sentence(scheduled) if scheduled.get("status") == "False" else None,
        waiting=_waiting(containers),
        created=from_rfc3339(meta.get("creationTimestamp")),
        disruption=disruption.get("reason") or "Unknown" if _is_true(disruption) else None,
    )


def node_fact(body: Object) -> NodeFact:
    """The fact of a node."""
    meta, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    return NodeFact(
        name=meta["name"],
        labels=tuple(sorted((meta.get("labels") or {}).items())),
        annotations=tuple(sorted((meta.get("annotations") or {}).items())),
        taints=tuple(
            Taint(taint.get("key", ""), from_rfc3339(taint.get("timeAdded")), taint.get("value") or "")
            for taint in spec.get("taints") or []
        ),
        conditions=tuple(
            NodeCondition(
                kind=each.get("type", ""),
                status=each.get("status", ""),
                reason=each.get("reason"),
                since=from_rfc3339(each.get("lastTransitionTime")),
            )
            for each in status.get("conditions") or []
        ),
        unschedulable=bool(spec.get("unschedulable")),
        ready=_is_true(_condition(status, "Ready")),
    )


def _known(model: type[Stored], body: Any) -> Stored:
    """What an operator wrote, without fields of another release; they were no user's wish.

    Raises:
        ValidationError: anything else is wrong with it.
    """
    try:
        return model.model_validate(body)
    except ValidationError as error:
        unknown = [each["loc"] for each in error.errors() if each["type"] == "extra_forbidden"]
        if len(unknown) < error.error_count():
            raise
    left = deepcopy(body)
    for *path, name in unknown:
        inner = left
        for step in path:
            inner = inner[step]
        del inner[name]
    return model.model_validate(left)


def loan_fact(body: Object) -> LoanFact | None:
    """The fact of a GPULoan; None where this operator cannot read it."""
    meta = body["metadata"]
    try:
        spec = _known(GPULoanSpec, body.get("spec"))
        status = _known(GPULoanStatus, body.get("status") or {})
    except ValidationError:
        return None
    return LoanFact(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        resource_version=meta.get("resourceVersion", ""),
        deleting=meta.get("deletionTimestamp") is not None,
        rollout=RolloutKey(spec.rollout_ref.namespace, spec.rollout_ref.name),
        spec=spec,
        status=status,
    )


def rollout_fact(body: Object) -> RolloutFact:
    """The fact of a PearlRollout; an unreadable status counts as none, an unreadable spec is a problem."""
    meta = body["metadata"]
    spec: PearlRolloutSpec | None = None
    problem = None
    try:
        spec = PearlRolloutSpec.model_validate(body.get("spec") or {})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        problem = f"spec.{'.'.join(map(str, first['loc']))}: {first['msg']}"
    try:
        status = _known(PearlRolloutStatus, body.get("status") or {})
    except ValidationError:
        status = PearlRolloutStatus()
    return RolloutFact(
        key=RolloutKey(meta["namespace"], meta["name"]),
        uid=meta["uid"],
        resource_version=meta.get("resourceVersion", ""),
        generation=meta.get("generation") or 0,
        deleting=meta.get("deletionTimestamp") is not None,
        hold=(meta.get("annotations") or {}).get(names.ANNOTATION_HOLD) == "true",
        spec=spec,
        status=status,
        problem=problem,
    )
