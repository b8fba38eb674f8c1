"""Whether the GPUs that a trainer pod names are its own and nobody else's; pure."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from pearl_operator.loans.devices import comparable
from pearl_operator.loans.problems import LoanProblem, LoanReason
from pearl_operator.loans.record import TERMINAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pearl_api.rollout import EngineSpec
    from pearl_operator.facts import LoanFact
    from pearl_operator.loans.devices import Devices
    from pearl_operator.loans.identity import Caller
    from pearl_operator.ports import Object

_UUID: Final = re.compile(r"(?i:GPU|MIG)-[A-Za-z0-9][-A-Za-z0-9/.:]{0,120}")
"""`all`, `0` or a list in one string would reach the container runtime and show the borrower other pods' GPUs."""


def requested_gpus(pod: Object, resource: str) -> int:
    """How many units of `resource` the containers of a pod ask for together."""
    total = 0
    for container in (pod.get("spec") or {}).get("containers") or []:
        asked: dict[str, Any] = container.get("resources") or {}
        count = (asked.get("limits") or {}).get(resource, (asked.get("requests") or {}).get(resource, 0))
        total += int(count)
    return total


def check_own(gpus: Sequence[str], pod: Object, devices: Devices, engine: EngineSpec) -> None:
    """Raises LoanProblem where the pod does not hold these GPUs, as far as the API server knows, or too few of them."""
    _check_names(gpus)
    _check_count(gpus, pod, devices, engine)
    if len(gpus) < engine.tensor_parallel:
        raise LoanProblem(
            LoanReason.TOO_FEW_GPUS,
            f"`gpus` names {len(gpus)} GPUs and a worker needs spec.engine.tensorParallel = {engine.tensor_parallel} "
            "on one node: lend from trainer pods with at least that many",
        )


def _check_names(gpus: Sequence[str]) -> None:
    for gpu in gpus:
        if _UUID.fullmatch(gpu) is None:
            raise LoanProblem(
                LoanReason.UNKNOWN_GPU,
                f"`gpus` names {gpu!r}, which is no GPU's UUID (GPU-… or MIG-…): register the UUIDs that `nvidia-smi "
                "-L` prints in the pod, not indices or `all`",
            )
    if len(set(map(comparable, gpus))) != len(gpus):
        raise LoanProblem(LoanReason.TOO_MANY_GPUS, "`gpus` names a GPU twice: name each once")


def _check_count(gpus: Sequence[str], pod: Object, devices: Devices, engine: EngineSpec) -> None:
    asked, held = requested_gpus(pod, engine.gpu_resource), devices.count
    if held is None:
        return  # it holds claims that the operator may not read
    if len(gpus) > asked + held:
        raise LoanProblem(
            LoanReason.TOO_MANY_GPUS,
            f"`gpus` names {len(gpus)} GPUs and the pod requests {asked} of {engine.gpu_resource}"
            f"{f' and holds {held} by ResourceClaims' if held else ''}: register only the pod's own, or set "
            "spec.engine.gpuResource of the PearlRollout to what the trainer requests",
        )
    known = devices.uuids
    strangers = [gpu for gpu in gpus if comparable(gpu) not in known]
    if known and len(strangers) > asked:
        raise LoanProblem(
            LoanReason.UNKNOWN_GPU,
            f"`gpus` names {', '.join(strangers)}, in no ResourceClaim of the pod, which requests {asked} of "
            f"{engine.gpu_resource} beside them: register the pod's own GPUs",
        )


def check_unclaimed(gpus: Sequence[str], caller: Caller, loans: Iterable[LoanFact]) -> None:
    """Raises LoanProblem where another pod lends one of them."""
    mentioned = {comparable(gpu): gpu for gpu in gpus}
    for loan in loans:
        taken = [gpu for gpu in loan.spec.gpus if comparable(gpu) in mentioned]
        mine = loan.spec.trainer.uid == caller.uid
        if taken and not mine and loan.status.phase not in TERMINAL and not loan.deleting:
            raise LoanProblem(
                LoanReason.GPU_ALREADY_ENROLLED,
                f"{', '.join(sorted(taken))} is enrolled by {loan.namespace}/{loan.spec.trainer.name}: a GPU can be "
                "lent by one pod only; check the trainer's `gpus`",
                HTTPStatus.CONFLICT,
            )
