"""The Secrets: one key of the release, and the tokens of a rollout that derive from it, one Secret per holder."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

from pearl_api import names, tokens
from pearl_operator.resources import common

if TYPE_CHECKING:
    from pearl_operator.facts import RolloutFact
    from pearl_operator.ports import Object

KEY_FIELD: Final = "key"
"""Name of the release's key in the data of its Secret."""


def release_secret(namespace: str, key: str) -> Object:
    """The release's key; created once and never changed."""
    labels = {"app.kubernetes.io/name": "pearl", "app.kubernetes.io/managed-by": "pearl-operator"}
    meta = {"name": names.RELEASE_SECRET, "namespace": namespace, "labels": labels}
    return {**_opaque(meta, {KEY_FIELD: key}), "immutable": True}


def derived_secrets(rollout: RolloutFact, key: str) -> list[Object]:
    """What workers, gateway and clients mount."""
    name = rollout.key.name
    derived = {purpose: tokens.derive(key, purpose) for purpose in ("agent", "engine", "gateway", "client")}
    return [
        _secret(rollout, names.worker_secret(name), _pick(derived, "agent", "engine")),
        _secret(rollout, names.gateway_secret(name), _pick(derived, "agent", "engine", "gateway", "client")),
        _secret(rollout, names.client_secret(name), {"token": derived["client"]}),
    ]


def _pick(derived: dict[str, str], *purposes: str) -> dict[str, str]:
    return {purpose: derived[purpose] for purpose in purposes}


def _secret(rollout: RolloutFact, name: str, data: dict[str, str]) -> Object:
    return _opaque(common.metadata(rollout, name, "secret"), data)


def _opaque(metadata: dict[str, Any], data: dict[str, str]) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "type": "Opaque",
        "data": {name: base64.b64encode(value.encode()).decode() for name, value in data.items()},
    }
