"""The objects of a loan in the trainer's namespace: GPULoan, Secret, borrower pods; pure.

All of them are owned by the trainer pod, so that Kubernetes removes them with it, operator or not. A borrower asks
for no GPU of its own: it names the trainer's ResourceClaim (SharedClaim), or sees the trainer's GPUs through the
container runtime (VisibleDevices). It is pinned to the trainer's node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pearl_api import names, tokens
from pearl_api.loan import LoanAccess
from pearl_api.names import Activity, Role, Zone
from pearl_operator import kinds
from pearl_operator.loans.devices import comparable
from pearl_operator.loans.enrol import loan_secret
from pearl_operator.resources import common, worker
from pearl_operator.resources.merge import merge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pearl_operator.facts import LoanFact, RolloutFact
    from pearl_operator.loans.enrol import Enrolment
    from pearl_operator.ports import Object

FIRST_SLOT: Final = 1000
"""Borrowers are numbered from here, so that they never meet a slot of the planner's own."""
HOSTNAME_LABEL: Final = "kubernetes.io/hostname"


def loan_object(enrolment: Enrolment) -> Object:
    """The GPULoan of a trainer pod; it has the pod's name."""
    caller, key = enrolment.caller, enrolment.rollout.key
    spec: dict[str, Any] = {
        "access": enrolment.access.chosen,
        "claims": [claim.model_dump(mode="json", exclude_none=True) for claim in enrolment.access.claims],
        "trainer": {"name": caller.pod, "uid": caller.uid},
        "node": enrolment.node,
        "gpus": list(enrolment.gpus),
        "rolloutRef": {"name": key.name, "namespace": key.namespace},
    }
    if enrolment.group is not None:
        spec["group"] = enrolment.group
    return {
        "apiVersion": kinds.LOAN.api_version,
        "kind": kinds.LOAN.kind,
        "metadata": {
            "name": caller.pod,
            "namespace": caller.namespace,
            "labels": {
                names.LABEL_ROLLOUT: key.name,
                names.LABEL_ROLLOUT_NAMESPACE: key.namespace,
                **_group(enrolment.group),
            },
            "ownerReferences": [trainer_reference(caller.pod, caller.uid, controller=False)],
        },
        "spec": spec,
    }


def trainer_reference(pod: str, uid: str, *, controller: bool) -> dict[str, Any]:
    """Owner reference to the trainer pod."""
    reference = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid, "blockOwnerDeletion": False}
    return {**reference, "controller": True} if controller else reference


def secret_object(loan: LoanFact, root_key: str) -> Object:
    """The tokens that the loan's borrowers mount; all of them open these borrowers and nothing else."""
    trainer = loan.spec.trainer
    lender = tokens.lender(loan.namespace, loan.name, trainer.uid)
    values = {purpose: tokens.of_borrower(tokens.derive(root_key, purpose), lender) for purpose in ("agent", "engine")}
    values["loan"] = tokens.loan_token(root_key, loan.namespace, loan.name, trainer.uid)
    return {
        "apiVersion": kinds.SECRET.api_version,
        "kind": kinds.SECRET.kind,
        "metadata": {
            "name": loan_secret(loan.name),
            "namespace": loan.namespace,
            "labels": {names.LABEL_LOAN: loan.name},
            "ownerReferences": [trainer_reference(trainer.name, trainer.uid, controller=False)],
        },
        "type": "Opaque",
        "stringData": values,
    }


def borrower_pod(loan: LoanFact, rollout: RolloutFact, *, index: int, slot: int, hostname: str) -> Object:
    """Borrower number `index` of a loan, numbered `slot` among the rollout's workers.

    `hostname` is the node's label of that name, by which the pod is pinned.

    Raises:
        ValueError: the rollout cannot be read.
    """
    if rollout.spec is None:
        raise ValueError(f"PearlRollout {rollout.key} cannot be read: {rollout.problem}")
    spec = rollout.spec
    parallel = spec.engine.tensor_parallel
    base = worker.base_pod(spec, Zone.BORROWED, loan_secret(loan.name), gpus=parallel)
    pod = worker.with_templates(base, spec, Zone.BORROWED, _metadata(loan, rollout, index, slot))
    environment = {
        "PEARL_LOAN_NAME": loan.name,
        "PEARL_LOAN_NAMESPACE": loan.namespace,
        "PEARL_RECLAIM_SECONDS": f"{spec.policy.deadlines.reclaim_seconds:g}",
    }
    container = {
        "name": worker.CONTAINER,
        "env": [{"name": name, "value": value} for name, value in environment.items()],
    }
    # Not spec.nodeName: that would go around the scheduler and its checks.
    pod = merge(pod, {"spec": {"containers": [container], "nodeSelector": {HOSTNAME_LABEL: hostname}}})
    return merge(pod, {"spec": _reaching(loan, loan.spec.gpus[index * parallel : (index + 1) * parallel])})


def _reaching(loan: LoanFact, gpus: Sequence[str]) -> dict[str, Any]:
    """What makes the container see these GPUs."""
    if loan.spec.access is LoanAccess.VISIBLE_DEVICES:
        return {"containers": [_visible(",".join(gpus))]}
    wanted = set(map(comparable, gpus))
    shared = [part for part in loan.spec.claims if not part.gpus or not wanted.isdisjoint(map(comparable, part.gpus))]
    # Each claim once: the scheduler cannot reserve one claim twice for a pod.
    entries = {claim: f"lent-{place}" for place, claim in enumerate(dict.fromkeys(part.name for part in shared))}
    asked = [{"name": entries[part.name], **({"request": part.request} if part.request else {})} for part in shared]
    return {
        # `void`: images that ask the container runtime for `all` GPUs get the claim's only.
        "containers": [{**_visible("void"), "resources": {"claims": asked}}],
        "resourceClaims": [{"name": name, "resourceClaimName": claim} for claim, name in entries.items()],
    }


def _visible(gpus: str) -> dict[str, Any]:
    return {"name": worker.CONTAINER, "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": gpus}]}


def _metadata(loan: LoanFact, rollout: RolloutFact, index: int, slot: int) -> dict[str, Any]:
    assert rollout.spec is not None  # noqa: S101 - the caller checked
    # While disaggregated a newcomer prefills first: what it computes is pinned for seconds only.
    role = Role.PREFILL if rollout.status.mode == "Disaggregated" else Role.COLOCATED
    labels = common.labels(rollout, names.COMPONENT_WORKER) | {
        names.LABEL_ROLLOUT_NAMESPACE: rollout.key.namespace,
        names.LABEL_ZONE: Zone.BORROWED.value,
        names.LABEL_SLOT: str(slot),
        names.LABEL_SHAPE: worker.shape_hash(rollout.spec, Zone.BORROWED, rollout.spec.engine.tensor_parallel),
        names.LABEL_ROLE: role.value,
        names.LABEL_ROLE_EPOCH: "0",
        names.LABEL_ACTIVITY: Activity.ACTIVE.value,
        names.LABEL_LOAN: loan.name,
        **_group(loan.spec.group),
    }
    trainer = loan.spec.trainer
    return {
        "name": names.borrower_pod(loan.name, index),
        "namespace": loan.namespace,
        "labels": labels,
        "ownerReferences": [trainer_reference(trainer.name, trainer.uid, controller=True)],
    }


def _group(group: str | None) -> dict[str, str]:
    return {} if group is None else {names.LABEL_GROUP: group}


def free_slots(taken: set[int], count: int) -> list[int]:
    """The lowest numbers from `FIRST_SLOT` that no worker has."""
    found: list[int] = []
    slot = FIRST_SLOT
    while len(found) < count:
        if slot not in taken:
            found.append(slot)
        slot += 1
    return found
