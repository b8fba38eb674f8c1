"""Whether a trainer pod's ResourceClaims may be shared with its borrowers; pure.

A container sees all devices of the requests that it names, so every borrower needs requests of its own GPUs alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pearl_api.loan import LentClaim
from pearl_operator import kinds
from pearl_operator.loans.devices import comparable
from pearl_operator.loans.strategies import AccessReason, Obstacle

if TYPE_CHECKING:
    from pearl_operator.loans.devices import Claim, Device, Devices
    from pearl_operator.loans.strategies import Question

MAX_CONSUMERS: Final = 256
"""Pods that may share one claim: `ResourceClaim.status.reservedFor` takes no more (Kubernetes API reference)."""


@dataclass(frozen=True, slots=True)
class Part:
    """One request of a claim, and its GPUs."""

    claim: Claim
    request: str
    devices: tuple[Device, ...]

    @property
    def uuids(self) -> tuple[str, ...]:
        """Those that are known."""
        return tuple(device.uuid for device in self.devices if device.uuid)


def parts_of(devices: Devices) -> tuple[Part, ...]:
    """Requests with GPUs; devices without a UUID are no GPUs where the driver tells which are."""
    claims = [claim for claim in devices.claims or () if not claim.extended]
    known = any(device.uuid for claim in claims for device in claim.devices or ())
    found = []
    for claim in claims:
        for request in claim.requests:
            mine = [device for device in claim.devices or () if device.request == request]
            gpus = tuple(device for device in mine if device.uuid or not known)
            if gpus:
                found.append(Part(claim, request, gpus))
    return tuple(found)


def ordered(question: Question, parts: tuple[Part, ...]) -> tuple[str, ...]:
    """The lent GPUs, those of one request next to each other; all that the claims hold where none are named."""
    rank = {comparable(uuid): place for place, part in enumerate(parts) for uuid in part.uuids}
    if question.gpus is None:
        return tuple(uuid for part in parts for uuid in part.uuids)
    return tuple(sorted(question.gpus, key=lambda gpu: rank.get(comparable(gpu), len(parts))))


def lent(part: Part) -> LentClaim:
    """What the GPULoan keeps of it."""
    return LentClaim(name=part.claim.name, request=part.request, gpus=list(part.uuids))


def obstacle(question: Question, parts: tuple[Part, ...], gpus: tuple[str, ...]) -> Obstacle | None:
    """The first thing that keeps the claims from being shared; None = they may be."""
    return _cluster_obstacle(question) or _claim_obstacle(question, parts) or _split_obstacle(question, parts, gpus)


def _cluster_obstacle(question: Question) -> Obstacle | None:
    """What keeps any pod from sharing a claim here."""
    devices = question.devices
    if devices.version is None:
        return Obstacle(
            AccessReason.UNREADABLE,
            "the operator may not list DeviceClasses: set the chart's value sharedClaims.enabled to true",
        )
    if devices.version != kinds.DEVICE_CLASS.version:
        served = f"only in {devices.version}" if devices.version else "not at all"
        return Obstacle(
            AccessReason.API_MISSING,
            f"the API server serves resource.k8s.io {served}: SharedClaim needs v1, of Kubernetes 1.34 or newer",
        )
    if not devices.named and not devices.classes:
        return Obstacle(
            AccessReason.NO_DEVICE_CLASS,
            "the cluster has no DeviceClass: install a DRA driver for its GPUs, for example dra-driver-nvidia-gpu",
        )
    return None


def _claim_obstacle(question: Question, parts: tuple[Part, ...]) -> Obstacle | None:
    """What keeps this pod's claims from being shared."""
    devices, pod = question.devices, question.pod
    if not devices.named:
        classes = ", ".join(devices.classes or ())
        return Obstacle(
            AccessReason.NO_CLAIM,
            f"pod {pod} names no ResourceClaim: in the trainer's pod template replace the GPU request by a "
            f"ResourceClaim (DeviceClasses here: {classes}); a running pod cannot be changed, so start it anew",
        )
    if devices.claims is None:
        return Obstacle(
            AccessReason.UNREADABLE,
            f"the operator may not read ResourceClaims in namespace {question.namespace}: set the chart's value "
            "sharedClaims.enabled to true",
        )
    waiting = [name for name in devices.named if name not in {claim.name for claim in devices.claims if claim.devices}]
    if waiting:
        return Obstacle(
            AccessReason.CLAIM_NOT_ALLOCATED,
            f"ResourceClaim {', '.join(waiting)} of pod {pod} has no device: register from the running trainer",
        )
    if not parts:
        names = ", ".join(devices.named)
        return Obstacle(
            AccessReason.EXTENDED_RESOURCE,
            f"ResourceClaim {names} was made for an extended resource and no other pod may name it: let pod {pod} name "
            "a ResourceClaim in spec.resourceClaims instead",
        )
    return next((found for part in parts if (found := _part_obstacle(part, question)) is not None), None)


def _part_obstacle(part: Part, question: Question) -> Obstacle | None:
    where = f"request {part.request} of ResourceClaim {part.claim.name}"
    if any(device.admin for device in part.devices):
        return Obstacle(
            AccessReason.ADMIN_ACCESS, f"{where} has adminAccess, which keeps nobody else out: ask without it"
        )
    if any(device.divided for device in part.devices):
        return Obstacle(
            AccessReason.DEVICE_DIVIDED,
            f"{where} holds a share of a device, and others may get its other shares: ask for whole devices",
        )
    borrowers = len(part.devices) // question.parallel
    if part.claim.consumers + borrowers > MAX_CONSUMERS:
        return Obstacle(
            AccessReason.CLAIM_FULL,
            f"ResourceClaim {part.claim.name} has {part.claim.consumers} pods of at most {MAX_CONSUMERS}: give each "
            "trainer pod a claim of its own",
        )
    return None


def _split_obstacle(question: Question, parts: tuple[Part, ...], gpus: tuple[str, ...]) -> Obstacle | None:
    """Whether every borrower gets exactly its own GPUs: a container sees all devices of the requests that it names."""
    if not any(part.uuids for part in parts):
        return _uncounted_obstacle(question, parts)
    held = {comparable(uuid) for part in parts for uuid in part.uuids}
    strangers = [gpu for gpu in gpus if comparable(gpu) not in held]
    if strangers:
        return Obstacle(
            AccessReason.GPUS_NOT_IN_CLAIM,
            f"{', '.join(strangers)} is in no ResourceClaim of pod {question.pod}: lend the claim's own GPUs only",
        )
    used = len(gpus) // question.parallel * question.parallel
    for start in range(0, used, question.parallel):
        mine = {comparable(gpu) for gpu in gpus[start : start + question.parallel]}
        for part in parts:
            seen = {comparable(uuid) for uuid in part.uuids}
            if seen & mine and not seen <= mine:
                return _too_wide(part, question.parallel)
    return None


def _uncounted_obstacle(question: Question, parts: tuple[Part, ...]) -> Obstacle | None:
    """No UUIDs are published: only one borrower that takes all devices needs none."""
    count = sum(len(part.devices) for part in parts)
    lent = count if question.gpus is None else len(question.gpus)
    if count == lent == question.parallel:
        return None
    return Obstacle(
        AccessReason.GPUS_UNKNOWN,
        f"the ResourceSlices tell no `uuid` of the {count} devices of pod {question.pod}, so they cannot be split "
        f"among borrowers of {question.parallel} GPUs: use a driver that publishes it, or trainer pods with so many",
    )


def _too_wide(part: Part, parallel: int) -> Obstacle:
    return Obstacle(
        AccessReason.REQUEST_TOO_WIDE,
        f"request {part.request} of ResourceClaim {part.claim.name} holds {len(part.devices)} GPUs, more than one "
        f"borrower is lent, and a container sees all of a request: give the claim one request per {parallel} GPUs "
        "(spec.engine.tensorParallel) and lend whole requests",
    )


def sentence(question: Question, parts: tuple[Part, ...]) -> str:
    """What SharedClaim does here."""
    names = ", ".join(dict.fromkeys(part.claim.name for part in parts))
    count = sum(len(part.devices) for part in parts)
    return (
        f"pod {question.pod} and its borrowers name ResourceClaim {names} ({count} GPUs), and the scheduler keeps "
        "every other pod off them"
    )
