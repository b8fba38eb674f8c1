"""Whether a trainer pod may lend to a rollout; pure. Every refusal says what to change."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from pearl_api import names
from pearl_api.rollout import BorrowAccess
from pearl_api.wire.loans import AccessAnswer
from pearl_operator.loans import own_gpus
from pearl_operator.loans.access import explain
from pearl_operator.loans.devices import UNKNOWN
from pearl_operator.loans.problems import LoanProblem, LoanReason
from pearl_operator.loans.strategies import Question
from pearl_operator.loans.units import members_of
from pearl_operator.loans.world import KILL_SECONDS, lease_seconds

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from pearl_api.rollout import PearlRolloutSpec
    from pearl_api.wire.loans import AccessRequest, GroupRequest, RegisterRequest
    from pearl_operator.facts import LoanFact, RolloutFact
    from pearl_operator.loans.devices import Devices
    from pearl_operator.loans.identity import Caller
    from pearl_operator.loans.strategies import Access
    from pearl_operator.ports import Object

_LABEL_VALUE: Final = 63
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
    access: Access
    """How its borrowers reach the GPUs; one strategy is chosen."""

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
    devices: Devices = UNKNOWN,
    visible_allowed: bool = True,
) -> Enrolment:
    """The enrolment, if it is allowed.

    Args:
        request: What the trainer asks for.
        caller: Who it is, by its token.
        trainer: The pod of that name, as the API server has it.
        rollout: The PearlRollout that it names.
        loans: All loans of the cluster.
        namespaces: Where trainers may be.
        devices: What the cluster says about the pod's devices.
        visible_allowed: Its namespace may lend by VisibleDevices.

    Raises:
        LoanProblem: It is not allowed.
    """
    _check_caller(caller, namespaces)
    rollout, spec = _check_rollout(request, rollout)
    pod = _check_trainer(caller, trainer, spec)
    own_gpus.check_own(request.gpus, pod, devices, spec.engine)
    loans = list(loans)
    own_gpus.check_unclaimed(request.gpus, caller, loans)
    if request.group is not None:
        _check_group(members_of(loans, caller.namespace, request.group), caller, rollout, request.group)
    access = _checked(explain(_question(caller, spec, devices, visible_allowed, tuple(request.gpus))), spec)
    return Enrolment(caller, _node_of(caller, pod), access.gpus, request.group, rollout, spec, access)


def access_of(  # noqa: PLR0913 - one argument per source
    request: AccessRequest,
    *,
    caller: Caller,
    trainer: Object | None,
    rollout: RolloutFact | None,
    namespaces: Collection[str],
    devices: Devices,
    visible_allowed: bool,
) -> AccessAnswer:
    """How borrowers would reach this pod's GPUs; raises LoanProblem where it may not lend at all."""
    _check_caller(caller, namespaces)
    rollout, spec = _check_rollout(request, rollout)
    _check_trainer(caller, trainer, spec)
    access = explain(_question(caller, spec, devices, visible_allowed, None))
    return AccessAnswer(
        wanted=spec.capacity.borrowed.access.value, options=[option.wire() for option in access.options]
    )


def _question(
    caller: Caller, spec: PearlRolloutSpec, devices: Devices, visible_allowed: bool, gpus: tuple[str, ...] | None
) -> Question:
    return Question(
        namespace=caller.namespace,
        pod=caller.pod,
        wanted=spec.capacity.borrowed.access,
        gpus=gpus,
        parallel=spec.engine.tensor_parallel,
        devices=devices,
        visible_allowed=visible_allowed,
        overlap_seconds=lease_seconds(spec) + KILL_SECONDS,
    )


def _checked(access: Access, spec: PearlRolloutSpec) -> Access:
    if access.chosen is not None:
        return access
    wanted = spec.capacity.borrowed.access
    closed = [each for each in access.options if wanted in (BorrowAccess.AUTO, each.access)]
    said = "; ".join(f"{option.access} is not possible: {option.message}" for option in closed)
    raise LoanProblem(
        LoanReason.ACCESS_NOT_SUPPORTED, f"spec.capacity.borrowed.access is {wanted}, and {said}", HTTPStatus.FORBIDDEN
    )


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
    request: RegisterRequest | GroupRequest | AccessRequest, rollout: RolloutFact | None
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


def same(loan: LoanFact, enrolment: Enrolment) -> bool:
    """Whether this GPULoan already is that enrolment."""
    spec, key = loan.spec, enrolment.rollout.key
    return (
        spec.trainer.uid == enrolment.caller.uid
        and tuple(spec.gpus) == enrolment.gpus
        and (spec.rollout_ref.name, spec.rollout_ref.namespace) == (key.name, key.namespace)
        and spec.group == enrolment.group
        and (spec.access, tuple(spec.claims)) == (enrolment.access.chosen, enrolment.access.claims)
    )


def loan_secret(loan: str) -> str:
    """Name of the Secret with the tokens of a loan's borrowers, in the trainer's namespace."""
    return names.worker_secret(loan)
