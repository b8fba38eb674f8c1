"""Everything that the environment decides; the only module that reads it."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pearl_api import names
from pearl_operator.notices import SIGNS, Sign, signs_with

if TYPE_CHECKING:
    from collections.abc import Mapping

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}
_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one operator process; the field's comment names its variable."""

    namespace: str
    """`PEARL_NAMESPACE`: the release namespace; PearlRollouts live here."""
    gateway_image: str
    """`PEARL_GATEWAY_IMAGE`: image of the gateways that it deploys."""
    trainer_namespaces: tuple[str, ...] = ()
    """`PEARL_TRAINER_NAMESPACES`: comma list of namespaces whose trainers may lend."""
    visible_devices_namespaces: tuple[str, ...] = ("*",)
    """`PEARL_VISIBLE_DEVICES_NAMESPACES`: comma list of namespaces whose trainers may lend without a ResourceClaim;
    `*` = wherever trainers may lend at all."""
    cluster_scoped: bool = True
    """`PEARL_CLUSTER_SCOPED`: may read nodes and review tokens; false switches notices and loans off."""
    operator_url: str = ""
    """`PEARL_OPERATOR_URL`: where trainers reach the loan API; default its Service's DNS name."""
    gateway_service_account: str = "pearl-gateway"
    """`PEARL_GATEWAY_SERVICE_ACCOUNT`: made by the chart."""
    lease_name: str = "pearl-operator"
    """`PEARL_LEASE_NAME`."""
    lease_seconds: float = 15.0
    """`PEARL_LEASE_SECONDS`: a stopped operator's successor waits this long."""
    identity: str = "pearl-operator"
    """`PEARL_IDENTITY`: holder of the Lease; default the host name."""
    port: int = names.PORT_OPERATOR
    """`PEARL_PORT`."""
    call_timeout_seconds: float = 6.0
    """`PEARL_CALL_TIMEOUT_SECONDS`: of one Kubernetes call; also what the Lease must outlast."""
    look_seconds: float = 2.0
    """`PEARL_LOOK_SECONDS`: longest pause between two looks at a rollout that somebody asks; else 10 s."""
    node_notices: tuple[Sign, ...] = SIGNS
    """`PEARL_NODE_NOTICES`: JSON list of further signs that a node will end (`notices.Sign`)."""
    log_level: str = "info"
    """`PEARL_LOG_LEVEL`: debug, info, warning or error; debug tells of every call to others."""
    debug_ring: int = 50
    """`PEARL_DEBUG_RING`: decisions that `/debug/snapshot` remembers per rollout."""

    def __post_init__(self) -> None:
        if self.call_timeout_seconds >= self.lease_seconds:
            raise ValueError(
                f"PEARL_CALL_TIMEOUT_SECONDS ({self.call_timeout_seconds:g}) must be below "
                f"PEARL_LEASE_SECONDS ({self.lease_seconds:g}): a write must end while the Lease is held"
            )

    def may_use_visible_devices(self, namespace: str) -> bool:
        """Whether trainers there may lend without a ResourceClaim."""
        return not {"*", namespace}.isdisjoint(self.visible_devices_namespaces)

    @property
    def namespaces(self) -> tuple[str, ...]:
        """All namespaces that are watched, each once."""
        return tuple(dict.fromkeys((self.namespace, *self.trainer_namespaces)))


def _required(env: Mapping[str, str], name: str, hint: str) -> str:
    value = env.get(name, "").strip()
    if not value:
        raise ValueError(f"{name} is not set: set it to {hint}")
    return value


def _number(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name, "").strip()
    try:
        value = float(text) if text else default
    except ValueError:
        raise ValueError(f"{name} is {text!r}: set it to a number") from None
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} is {text!r}: set it to a number above 0")
    return value


def _boolean(env: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = env.get(name, "").strip().lower()
    if text and text not in _TRUE | _FALSE:
        raise ValueError(f"{name} is {text!r}: set it to true or false")
    return text in _TRUE if text else default


def _one_of(env: Mapping[str, str], name: str, choices: tuple[str, ...], *, default: str) -> str:
    text = env.get(name, "").strip().lower() or default
    if text not in choices:
        raise ValueError(f"{name} is {text!r}: set it to {', '.join(choices[:-1])} or {choices[-1]}")
    return text


def _signs(env: Mapping[str, str]) -> tuple[Sign, ...]:
    try:
        return signs_with(env.get("PEARL_NODE_NOTICES", "").strip())
    except ValueError as error:
        raise ValueError(f"PEARL_NODE_NOTICES (operator.nodeNotices of the chart), {error}") from None


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def from_env(env: Mapping[str, str] | None = None) -> Settings:
    """Reads the settings.

    Raises:
        ValueError: A variable is missing or wrong; the message names it and what to set it to.
    """
    env = os.environ if env is None else env
    namespace = _required(env, "PEARL_NAMESPACE", "the release namespace")
    return Settings(
        namespace=namespace,
        gateway_image=_required(env, "PEARL_GATEWAY_IMAGE", "the image of the gateways"),
        trainer_namespaces=_listed(env.get("PEARL_TRAINER_NAMESPACES", "")),
        visible_devices_namespaces=_listed(env.get("PEARL_VISIBLE_DEVICES_NAMESPACES", "*")),
        cluster_scoped=_boolean(env, "PEARL_CLUSTER_SCOPED", default=True),
        operator_url=env.get("PEARL_OPERATOR_URL", "").strip()
        or f"http://pearl-operator.{namespace}.svc:{names.PORT_OPERATOR}",
        gateway_service_account=env.get("PEARL_GATEWAY_SERVICE_ACCOUNT", "").strip() or "pearl-gateway",
        lease_name=env.get("PEARL_LEASE_NAME", "").strip() or "pearl-operator",
        lease_seconds=_number(env, "PEARL_LEASE_SECONDS", 15.0),
        identity=env.get("PEARL_IDENTITY", "").strip() or socket.gethostname(),
        port=int(_number(env, "PEARL_PORT", names.PORT_OPERATOR)),
        call_timeout_seconds=_number(env, "PEARL_CALL_TIMEOUT_SECONDS", 6.0),
        look_seconds=_number(env, "PEARL_LOOK_SECONDS", 2.0),
        node_notices=_signs(env),
        log_level=_one_of(env, "PEARL_LOG_LEVEL", _LEVELS, default="info"),
        debug_ring=int(_number(env, "PEARL_DEBUG_RING", 50)),
    )
