"""Whether a trainer pod may lend to a rollout; pure. Every refusal says what to change."""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from pearl_api import names
from pearl_api.rollout import BorrowAccess
from pearl_operator.loans.problems import LoanProblem, LoanReason
from pearl_operator.loans.record import TERMINAL
from pearl_operator.loans.units import members_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from pearl_api.rollout import PearlRolloutSpec
    from pearl_api.wire.loans import GroupRequest, RegisterRequest
    from pearl_operator.facts import LoanFact, RolloutFact
    from pearl_operator.loans.identity import Caller
    from pearl_operator.ports import Object

_LABEL_VALUE: Final = 63
_UUID: Final = re.compile(r"(?i:GPU|MIG)-[A-Za-z0-9][-A-Za-z0-9/.:]{0,120}")
"""`all`, `0` or a list in one string would reach the container runtime and show the borrower other pods' GPUs."""
_RUNNING: Final = ("Pending", "Running")


@dataclass(frozen=True, slots=True)
class Enrolment:
    """A trainer pod that may lend, and to whom."""

    caller: Caller
    node: str
    gpus: tuple[str, ...]
    group: str | None
    rollout: RolloutFact
    spec: PearlRolloutSpec

    @property
    def borrowers(self) -> int:
        """Borrower pods: one engine each."""
        return len(self.gpus) // self.spec.engine.tensor_parallel


def check(  # noqa: PLR0913 - one argument per source
    request: RegisterRequest,
    *,
    caller: Caller,
    trainer: Object | None,
    rollout: RolloutFact | None,
    loans: Iterable[LoanFact],
    namespaces: Collection[str],
) -> Enrolment:
    """The enrolment, if it is allowed.

    Args:
        request: What the trainer asks for.
        caller: Who it is, by its token.
        trainer: The pod of that name, as the API server has it.
        rollout: The PearlRollout that it names.
        loans: All loans of the cluster.
        namespaces: Where trainers may be.

    Raises:
        LoanProblem: It is not allowed.
    """
    _check_caller(caller, namespaces)
    rollout, spec = _check_rollout(request, rollout)
    pod = _check_trainer(caller, trainer, spec)
    gpus = _check_gpus(request.gpus, pod, spec)
    loans = list(loans)
    _check_others(gpus, caller, loans)
    if request.group is not None:
        _check_group(members_of(loans, caller.namespace, request.group), caller, rollout, request.group)
    return Enrolment(caller, _node_of(caller, pod), gpus, request.group, rollout, spec)


def check_driver(  # noqa: PLR0913 - one argument per source
    request: GroupRequest,
    *,
    caller: Caller,
    trainer: Object | None,
    rollout: RolloutFact | None,
    members: Collection[LoanFact],
    namespaces: Collection[str],
) -> tuple[RolloutFact, PearlRolloutSpec]:
    """Whether this pod may drive a group; `trainer` is the pod, `members` are the group's loans.

    Raises:
        LoanProblem: It may not.
    """
    _check_caller(caller, namespaces)
    rollout, spec = _check_rollout(request, rollout)
    _check_trainer(caller, trainer, spec)
    _check_group(members, caller, rollout, request.group)
    return rollout, spec


def _check_group(members: Collection[LoanFact], caller: Caller, rollout: RolloutFact, group: str) -> None:
    for loan in members:
        if loan.rollout != rollout.key and loan.spec.trainer.uid != caller.uid:
            raise LoanProblem(
                LoanReason.GROUP_OF_ANOTHER_ROLLOUT,
                f"pod {loan.name} of group {group} lends to PearlRollout {loan.rollout}, not {rollout.key}: register "
                "all pods of a group and its driver with one rollout",
                HTTPStatus.CONFLICT,
            )


def _node_of(caller: Caller, pod: Object) -> str:
    """Where the pod runs: its spec says so, and the token was bound to a node too."""
    node: str | None = pod.get("spec", {}).get("nodeName")
    if not node:
        raise LoanProblem(
            LoanReason.TRAINER_POD_GONE, f"pod {caller.pod} is not on a node yet: register later", HTTPStatus.CONFLICT
        )
    if caller.node not in (None, node):
        raise LoanProblem(
            LoanReason.WRONG_NODE,
            f"the token was issued on node {caller.node} and pod {caller.pod} runs on {node}: register with the token "
            "that is mounted in this pod",
            HTTPStatus.CONFLICT,
        )
    return node


def _check_caller(caller: Caller, namespaces: Collection[str]) -> None:
    if caller.namespace not in namespaces:
        raise LoanProblem(
            LoanReason.NOT_A_TRAINER_NAMESPACE,
            f"namespace {caller.namespace} may not lend: add it to the chart's value `trainerNamespaces` "
            f"(now {', '.join(sorted(namespaces))})",
            HTTPStatus.FORBIDDEN,
        )
    if len(caller.pod) > _LABEL_VALUE:
        raise LoanProblem(
            LoanReason.NAME_TOO_LONG,
            f"pod name {caller.pod} has {len(caller.pod)} characters: give trainers names of at most {_LABEL_VALUE}",
        )


def _check_rollout(
    request: RegisterRequest | GroupRequest, rollout: RolloutFact | None
) -> tuple[RolloutFact, PearlRolloutSpec]:
    if rollout is None or rollout.deleting:
        where = request.rollout_namespace or "the operator's namespace"
        raise LoanProblem(
            LoanReason.ROLLOUT_NOT_FOUND,
            f"there is no PearlRollout {request.rollout} in {where}: check `rollout` and `rollout_namespace`",
            HTTPStatus.NOT_FOUND,
        )
    if rollout.spec is None:
        raise LoanProblem(LoanReason.ROLLOUT_INVALID, f"PearlRollout {rollout.key} cannot be read: {rollout.problem}")
    borrowed, parallel = rollout.spec.capacity.borrowed, rollout.spec.engine.tensor_parallel
    if borrowed.max_gpus < parallel:
        raise LoanProblem(
            LoanReason.BORROWING_DISABLED,
            f"PearlRollout {rollout.key} borrows at most {borrowed.max_gpus} GPUs and a worker needs {parallel}: raise "
            "spec.capacity.borrowed.maxGpus",
        )
    if borrowed.access is BorrowAccess.SHARED_CLAIM:
        raise LoanProblem(
            LoanReason.ACCESS_NOT_SUPPORTED,
            "spec.capacity.borrowed.access is SharedClaim, which is not supported yet: set Auto or VisibleDevices",
        )
    return rollout, rollout.spec


def _check_trainer(caller: Caller, trainer: Object | None, spec: PearlRolloutSpec) -> Object:
    meta = (trainer or {}).get("metadata") or {}
    phase = ((trainer or {}).get("status") or {}).get("phase")
    if trainer is None or meta.get("uid") != caller.uid or meta.get("deletionTimestamp") or phase not in _RUNNING:
        raise LoanProblem(
            LoanReason.TRAINER_POD_GONE,
            f"pod {caller.namespace}/{caller.pod} of this token is gone or ending: register from a running pod",
            HTTPStatus.CONFLICT,
        )
    labels = meta.get("labels") or {}
    wanted = spec.capacity.borrowed.trainer_selector
    missing = [f"{key}={value}" for key, value in sorted(wanted.items()) if labels.get(key) != value]
    if missing:
        raise LoanProblem(
            LoanReason.TRAINER_NOT_SELECTED,
            f"pod {caller.pod} lacks the labels {', '.join(missing)} of spec.capacity.borrowed.trainerSelector: add "
            "them to the trainer's pod template, or change the selector",
            HTTPStatus.FORBIDDEN,
        )
    return trainer


def requested_gpus(pod: Object, resource: str) -> int:
    """How many units of `resource` the containers of a pod ask for together."""
    total = 0
    for container in (pod.get("spec") or {}).get("containers") or []:
        asked: dict[str, Any] = container.get("resources") or {}
        count = (asked.get("limits") or {}).get(resource, (asked.get("requests") or {}).get(resource, 0))
        total += int(count)
    return total


def _check_gpus(gpus: list[str], pod: Object, spec: PearlRolloutSpec) -> tuple[str, ...]:
    engine = spec.engine
    for gpu in gpus:
        if _UUID.fullmatch(gpu) is None:
            raise LoanProblem(
                LoanReason.UNKNOWN_GPU,
                f"`gpus` names {gpu!r}, which is no GPU's UUID (GPU-… or MIG-…): register the UUIDs that `nvidia-smi "
                "-L` prints in the pod, not indices or `all`",
            )
    if len(set(gpus)) != len(gpus):
        raise LoanProblem(LoanReason.TOO_MANY_GPUS, "`gpus` names a GPU twice: name each once")
    asked = requested_gpus(pod, engine.gpu_resource)
    if len(gpus) > asked:
        raise LoanProblem(
            LoanReason.TOO_MANY_GPUS,
            f"`gpus` names {len(gpus)} GPUs and the pod requests {asked} of {engine.gpu_resource}: register only the "
            "pod's own, or set spec.engine.gpuResource of the PearlRollout to what the trainer requests",
        )
    if len(gpus) < engine.tensor_parallel:
        raise LoanProblem(
            LoanReason.TOO_FEW_GPUS,
            f"`gpus` names {len(gpus)} GPUs and a worker needs spec.engine.tensorParallel = {engine.tensor_parallel} "
            "on one node: lend from trainer pods with at least that many",
        )
    return tuple(gpus)


def _check_others(gpus: tuple[str, ...], caller: Caller, loans: Iterable[LoanFact]) -> None:
    for loan in loans:
        taken = set(loan.spec.gpus) & set(gpus)
        mine = loan.spec.trainer.uid == caller.uid
        if taken and not mine and loan.status.phase not in TERMINAL and not loan.deleting:
            raise LoanProblem(
                LoanReason.GPU_ALREADY_ENROLLED,
                f"{', '.join(sorted(taken))} is enrolled by {loan.namespace}/{loan.spec.trainer.name}: a GPU can be "
                "lent by one pod only; check the trainer's `gpus`",
                HTTPStatus.CONFLICT,
            )


def same(loan: LoanFact, enrolment: Enrolment) -> bool:
    """Whether this GPULoan already is that enrolment."""
    spec, key = loan.spec, enrolment.rollout.key
    return (
        spec.trainer.uid == enrolment.caller.uid
        and tuple(spec.gpus) == enrolment.gpus
        and (spec.rollout_ref.name, spec.rollout_ref.namespace) == (key.name, key.namespace)
        and spec.group == enrolment.group
    )


def loan_secret(loan: str) -> str:
    """Name of the Secret with the tokens of a loan's borrowers, in the trainer's namespace."""
    return names.worker_secret(loan)
