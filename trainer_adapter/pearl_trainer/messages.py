"""The wire messages that the SDK sends and reads, as plain dataclasses.

They are the SDK's own, so that it needs neither Pydantic nor PEARL's API package; a contract test holds each of
them to the API's model of the same name. On the wire names are camelCase, and unknown fields are ignored.
"""

from __future__ import annotations

import re
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from pearl_trainer.errors import ProtocolError

if TYPE_CHECKING:
    from typing_extensions import Self


def camel(name: str) -> str:
    """`cap_seconds` → `capSeconds`."""
    return re.sub(r"_([a-z0-9])", lambda match: match.group(1).upper(), name)


class Message:
    """Base of all: conversion to and from decoded JSON."""

    _lists: ClassVar[dict[str, type[Message]]] = {}
    """Fields that hold a list of other messages."""

    def to_wire(self) -> dict[str, Any]:
        """JSON object with camelCase names; optional fields that are None are left out."""
        mine = fields(self)  # type: ignore[arg-type]
        pairs = ((field, getattr(self, field.name)) for field in mine)
        return {
            camel(field.name): _plain(value)
            for field, value in pairs
            if value is not None or (field.default is MISSING and field.default_factory is MISSING)
        }

    @classmethod
    def from_wire(cls, body: Any) -> Self:
        """Reads a decoded JSON object; raises ProtocolError where a field is missing."""
        if not isinstance(body, dict):
            raise ProtocolError(f"expected a JSON object for {cls.__name__}, got {type(body).__name__}")
        values: dict[str, Any] = {}
        for field in fields(cls):  # type: ignore[arg-type]
            key = camel(field.name)
            if key in body:
                values[field.name] = _read(cls._lists.get(field.name), body[key])
                _check(f"{cls.__name__}.{key}", str(field.type), values[field.name])
            elif field.default is MISSING and field.default_factory is MISSING:
                raise ProtocolError(f"{cls.__name__} came without `{key}`: are the SDK and PEARL of the same release?")
        return cls(**values)


def _plain(value: Any) -> Any:
    if isinstance(value, Message):
        return value.to_wire()
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "tuple": (tuple,),
    "None": (type(None),),
}


def _check(where: str, annotation: str, value: Any) -> None:
    """Raises ProtocolError where a value is of another kind than its field: a broken PEARL must not break training."""
    wanted = tuple(kind for part in annotation.split(" | ") for kind in _KINDS.get(part.split("[")[0], (object,)))
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted and object not in wanted):
        raise ProtocolError(f"{where} came as {type(value).__name__}: are the SDK and PEARL of the same release?")


def _read(item: type[Message] | None, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(item.from_wire(part) for part in value) if item else tuple(value)
    return value


@dataclass(frozen=True)
class RegisterRequest(Message):
    """Enrols this pod as a lender."""

    rollout: str
    gpus: tuple[str, ...]
    rollout_namespace: str | None = None
    group: str | None = None
    audience: str = "pearl"


@dataclass(frozen=True)
class GroupRequest(Message):
    """Takes the handle of all pods of a group."""

    rollout: str
    group: str
    members: int
    rollout_namespace: str | None = None
    audience: str = "pearl"


@dataclass(frozen=True)
class AgentEndpoint(Message):
    """Where the agent of one borrower pod answers; `url` is None until the pod has an address."""

    pod: str
    uid: str
    url: str | None = None
    token: str | None = None


@dataclass(frozen=True)
class AccessOption(Message):
    """`SharedClaim` or `VisibleDevices`: whether borrowers can reach this pod's GPUs that way, and a sentence why."""

    access: str
    possible: bool
    chosen: bool
    reason: str
    message: str


@dataclass(frozen=True)
class AccessRequest(Message):
    """Asks how borrowers would reach this pod's GPUs; enrols nothing."""

    rollout: str
    rollout_namespace: str | None = None


@dataclass(frozen=True)
class AccessAnswer(Message):
    """Every strategy with its sentence; `wanted` is the rollout's setting."""

    _lists: ClassVar[dict[str, type[Message]]] = {"options": AccessOption}

    wanted: str
    options: tuple[AccessOption, ...]


@dataclass(frozen=True)
class RegisterAnswer(Message):
    """The enrolled loan and all that is needed to go on without the operator."""

    _lists: ClassVar[dict[str, type[Message]]] = {"agents": AgentEndpoint, "access": AccessOption}

    namespace: str
    name: str
    token: str
    slots: int
    agents: tuple[AgentEndpoint, ...]
    gateway_url: str
    gateway_token: str
    weights_source: str | None
    reclaim_seconds: float
    heartbeat_seconds: float
    ttl_seconds: float
    epoch: int = 0
    path: str | None = None
    access: tuple[AccessOption, ...] = ()


@dataclass(frozen=True)
class LendRequest(Message):
    """Offers the GPUs; `after_epoch` is the highest epoch that this trainer has fenced."""

    request_id: str
    cap_seconds: float | None = None
    after_epoch: int = 0
    members: int | None = None


@dataclass(frozen=True)
class LendAnswer(Message):
    """Granted, or refused with the reason."""

    _lists: ClassVar[dict[str, type[Message]]] = {"agents": AgentEndpoint}

    epoch: int
    granted: bool
    reason: str
    agents: tuple[AgentEndpoint, ...]
    message: str = ""


@dataclass(frozen=True)
class ReclaimingNotice(Message):
    """Tells the operator that a reclaim began."""

    epoch: int
    within_seconds: float


@dataclass(frozen=True)
class ReclaimedNotice(Message):
    """Tells the operator what the agents answered."""

    epoch: int
    free: bool
    total_seconds: float
    killed: bool = False
    kept: tuple[str, ...] = ()


@dataclass(frozen=True)
class LoanView(Message):
    """A loan as the operator has recorded it."""

    _lists: ClassVar[dict[str, type[Message]]] = {"agents": AgentEndpoint}

    namespace: str
    name: str
    epoch: int
    phase: str
    agents: tuple[AgentEndpoint, ...]


@dataclass(frozen=True)
class HeartbeatRequest(Message):
    """Renews a loan at an agent."""

    epoch: int


@dataclass(frozen=True)
class LoanState(Message):
    """A loan as an agent has it."""

    epoch: int
    fenced: bool
    granted: bool
    ttl_seconds: float | None = None
    memory_free: bool | None = None


@dataclass(frozen=True)
class ReclaimRequest(Message):
    """Fences an epoch and takes the GPU back within a hard deadline."""

    epoch: int
    within_seconds: float


@dataclass(frozen=True)
class ReclaimAnswer(Message):
    """What an agent did; `free` only if it read the device and its memory is back."""

    epoch: int
    free: bool
    killed: bool
    drain_seconds: float
    sleep_seconds: float
    total_seconds: float
    aborted_requests: int | None = None
    message: str = ""


@dataclass(frozen=True)
class OpenBatch(Message):
    """Declares a batch to the gateway."""

    step: int
    groups: int
    group_size: int
    need_groups: int | None = None
    min_version: int = 0


@dataclass(frozen=True)
class FinishTrajectory(Message):
    """A trajectory reached its end."""

    trajectory: str
    group: str | None = None
    reward: float | None = None


@dataclass(frozen=True)
class AbortTrajectory(Message):
    """A trajectory ended early."""

    trajectory: str
    group: str | None = None
    cause: str = "aborted"


@dataclass(frozen=True)
class BatchProgress(Message):
    """How far a batch is."""

    step: int
    groups: int
    group_size: int
    need_groups: int
    min_version: int
    started: int
    finished: int
    aborted: int
    complete_groups: int
    open_seconds: float
    closed: bool


@dataclass(frozen=True)
class PermitRequest(Message):
    """Asks for the admission of one whole group."""

    group: str
    size: int
    step: int | None = None
    wait_seconds: float = 30.0


@dataclass(frozen=True)
class PermitAnswer(Message):
    """Admitted, or not yet with the reason."""

    granted: bool
    reason: str
    in_flight: int
    window: int | None
    weight_version: int


@dataclass(frozen=True)
class Segment(Message):
    """Tokens [start, end) of a trajectory that one worker generated under one weight version."""

    turn: int
    worker: str
    version: int
    start: int
    end: int
    reason: str
    prefill_worker: str | None = None
    routed_experts: str | None = None
    """Base64 of a `.npy` of (tokens - 1, layers, experts per token); None where the engine gives none."""


@dataclass(frozen=True)
class Trajectory(Message):
    """What a trainer consumes: per-token lists of equal length over all turns (`TrajectoryExport` on the wire)."""

    _lists: ClassVar[dict[str, type[Message]]] = {"segments": Segment}

    trajectory: str
    group: str | None
    state: str
    reward: float | None
    cause: str | None
    turns: int
    token_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    versions: tuple[int | None, ...]
    segments: tuple[Segment, ...]
