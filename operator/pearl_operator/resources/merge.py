"""Merges a pod template into a pod as `kubectl` would: lists of named things by name, other lists replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_KEYS: Final = {
    "containers": ("name",),
    "initContainers": ("name",),
    "ephemeralContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "imagePullSecrets": ("name",),
    "resourceClaims": ("name",),
    "claims": ("name", "request"),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "hostAliases": ("ip",),
    "ports": ("containerPort", "protocol"),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
}
"""Merge keys of the lists of a PodSpec, as the Kubernetes API defines them."""
_DEFAULTS: Final = {"protocol": "TCP"}
_APPENDED: Final = {"tolerations", "envFrom"}
"""Lists without a merge key where a user's entries come in addition to ours."""
_ONE_SOURCE: Final = {"env", "volumes"}
"""Lists whose entries have a name and one source: another source takes the place of the first."""


def merge(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """A new dict: `overlay` over `base`. A None in the overlay removes the key.

    Neither argument is changed; values are shared with the arguments, so the result is for reading or for the API.
    """
    merged = dict(base)
    for key, value in overlay.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge_value(key, merged.get(key), value)
    return merged


def _merge_value(key: str, base: Any, overlay: Any) -> Any:
    if isinstance(base, dict) and isinstance(overlay, dict):
        return merge(base, overlay)
    if isinstance(base, list) and isinstance(overlay, list):
        if key in _KEYS:
            return _merge_list(base, overlay, _KEYS[key], one_source=key in _ONE_SOURCE)
        if key in _APPENDED:
            return [*base, *(each for each in overlay if each not in base)]
    return overlay


def _merge_list(
    base: list[dict[str, Any]], overlay: list[dict[str, Any]], keys: tuple[str, ...], *, one_source: bool
) -> list[dict[str, Any]]:
    merged = {_identity(each, keys): each for each in base}
    for each in overlay:
        identity = _identity(each, keys)
        known = merged.get(identity, {})
        replaced = one_source and any(value is not None for name, value in each.items() if name not in keys)
        kept = {name: value for name, value in known.items() if name in each} if replaced else known
        merged[identity] = merge(kept, each)
    return list(merged.values())


def _identity(entry: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(entry.get(key, _DEFAULTS.get(key)) for key in keys)
