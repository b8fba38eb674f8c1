"""What the cluster says about a trainer pod's devices: ResourceClaims, their GPUs, DeviceClasses; small frozen facts.

`None` means that it could not be read. The `*_of` functions are pure; `look` is the only one that asks the API server.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pearl_operator import kinds
from pearl_operator.errors import NotFound, Refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pearl_operator.ports import Kube, Object

_UUID: Final = "uuid"
"""Attribute of a GPU in a ResourceSlice that holds its UUID; drivers prefix it with their domain or leave that out."""
_EXTENDED: Final = "resource.kubernetes.io/extended-resource-claim"
"""Annotation of claims that the scheduler makes for an extended resource; other pods may not name those."""


def comparable(uuid: str) -> str:
    """A UUID for comparing: NVML writes GPU-…, some drivers publish gpu-…."""
    return uuid.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One allocated device of a ResourceClaim."""

    request: str
    """Request of the claim that it fills."""
    address: tuple[str, str, str]
    """Driver, pool and device: what a ResourceSlice calls it."""
    uuid: str | None = None
    admin: bool = False
    """Allocated with admin access, which keeps nobody out."""
    divided: bool = False
    """A share of the device, whose other shares anybody may get."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A ResourceClaim that a pod names."""

    name: str
    devices: tuple[Device, ...] | None
    """None until it is allocated."""
    consumers: int = 0
    extended: bool = False
    """The scheduler made it for an extended resource."""

    @property
    def requests(self) -> tuple[str, ...]:
        """Requests with devices, in order, each once."""
        return tuple(dict.fromkeys(device.request for device in self.devices or ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """What is known about the devices of one trainer pod, and of the cluster."""

    version: str | None = None
    """Newest version of `resource.k8s.io` that is served: `v1` or a beta; empty = none."""
    classes: tuple[str, ...] | None = None
    """DeviceClasses."""
    named: tuple[str, ...] = ()
    """ResourceClaims that the pod names."""
    claims: tuple[Claim, ...] | None = ()
    """Those claims; None where the operator may not read them."""

    @property
    def count(self) -> int | None:
        """Allocated devices, GPUs only where the driver tells which are; None = not known."""
        if self.claims is None:
            return None
        found = [device for claim in self.claims for device in claim.devices or ()]
        return sum(device.uuid is not None for device in found) or len(found)

    @property
    def uuids(self) -> frozenset[str]:
        """Keys of the GPUs in its claims, as far as they are known."""
        found = [device for claim in self.claims or () for device in claim.devices or ()]
        return frozenset(comparable(device.uuid) for device in found if device.uuid)


UNKNOWN: Final = Devices()
"""Of a pod that names no claim, in a cluster that nobody looked at."""


def claim_names(pod: Object) -> tuple[str, ...]:
    """ResourceClaims that a pod uses, also those made for it from a template or for an extended resource."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    made = {each["name"]: each.get("resourceClaimName") for each in status.get("resourceClaimStatuses") or []}
    listed = spec.get("resourceClaims") or []
    found = [each.get("resourceClaimName") or made.get(each["name"]) for each in listed]
    found.append((status.get("extendedResourceClaimStatus") or {}).get("resourceClaimName"))
    return tuple(dict.fromkeys(name for name in found if name))


def claim_of(body: Object) -> Claim:
    """The fact of a ResourceClaim, its devices still without UUIDs."""
    meta, status = body["metadata"], body.get("status") or {}
    allocation: Mapping[str, Any] | None = status.get("allocation")
    results = ((allocation or {}).get("devices") or {}).get("results") or []
    return Claim(
        name=meta["name"],
        devices=tuple(map(_device_of, results)) if allocation is not None else None,
        consumers=len(status.get("reservedFor") or []),
        extended=(meta.get("annotations") or {}).get(_EXTENDED) == "true",
    )


def _device_of(result: Mapping[str, Any]) -> Device:
    return Device(
        request=result["request"].partition("/")[0],  # "request/alternative" where the claim gave alternatives
        address=(result["driver"], result["pool"], result["device"]),
        admin=bool(result.get("adminAccess")),
        divided=bool(result.get("shareID")),
    )


def uuids_of(slices: Iterable[Object]) -> dict[tuple[str, str, str], str]:
    """UUIDs of the devices in ResourceSlices, by driver, pool and device; devices without one are left out."""
    found: dict[tuple[str, str, str], str] = {}
    for each in slices:
        spec = each["spec"]
        driver, pool = spec["driver"], spec["pool"]["name"]
        for device in spec.get("devices") or []:
            attributes = device.get("attributes") or {}
            attribute = attributes.get(_UUID) or attributes.get(f"{driver}/{_UUID}") or {}
            if attribute.get("string"):
                found[driver, pool, device["name"]] = attribute["string"]
    return found


def with_uuids(claim: Claim, uuids: Mapping[tuple[str, str, str], str]) -> Claim:
    """The claim whose devices have their UUIDs, as far as they are known."""
    if claim.devices is None:
        return claim
    devices = tuple(replace(device, uuid=uuids.get(device.address)) for device in claim.devices)
    return replace(claim, devices=devices)


async def look(kube: Kube, pod: Object) -> Devices:
    """Asks the API server about the pod's claims, the ResourceSlices of its node, and DeviceClasses.

    Raises:
        RetryAfter: the API server did not answer.
    """
    version, classes = await _classes(kube)
    named = claim_names(pod)
    claims: tuple[Claim, ...] | None = None if named else ()
    if named and version == kinds.RESOURCE_CLAIM.version:
        claims = await _claims(kube, pod["metadata"]["namespace"], named)
    if claims:
        uuids = await _uuids(kube, (pod.get("spec") or {}).get("nodeName"))
        claims = tuple(with_uuids(claim, uuids) for claim in claims)
    return Devices(version=version, classes=classes, named=named, claims=claims)


async def _classes(kube: Kube) -> tuple[str | None, tuple[str, ...] | None]:
    for version in (kinds.DEVICE_CLASS.version, *kinds.EARLIER_DEVICE_VERSIONS):
        try:
            found = await kube.list(replace(kinds.DEVICE_CLASS, version=version))
        except NotFound:
            continue
        except Refused:
            return None, None
        return version, tuple(sorted(each["metadata"]["name"] for each in found))
    return "", ()


async def _claims(kube: Kube, namespace: str, named: tuple[str, ...]) -> tuple[Claim, ...] | None:
    try:
        found = [await kube.get(kinds.RESOURCE_CLAIM, name, namespace) for name in named]
    except Refused:
        return None
    return tuple(claim_of(body) for body in found if body is not None)


async def _uuids(kube: Kube, node: str | None) -> dict[tuple[str, str, str], str]:
    try:
        slices = await kube.list(kinds.RESOURCE_SLICE, fields={"spec.nodeName": node} if node else None)
    except (NotFound, Refused):
        return {}
    return uuids_of(slices)
