"""The rights of each ServiceAccount, read from the rendered chart: who may do what to which resource, and where."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from pearl_dev.chart import NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TRAINERS: Final = "train-a"
"""The one trainer namespace with which the chart is rendered here."""


class Where(StrEnum):
    """Where a right holds."""

    RELEASE = "release namespace"
    TRAINERS = "each of `trainerNamespaces`"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One verb on one resource."""

    account: str
    where: Where
    resource: str
    """`plural`, `plural/subresource`, with `.group` behind it outside the core group."""
    verb: str
    names: tuple[str, ...] = ()
    """Only objects of these names; empty = all."""


def rights(objects: Sequence[dict[str, Any]]) -> set[Right]:
    """Every right that the rendered bindings give to a ServiceAccount."""
    roles = {_key(item): item for item in objects if item["kind"] in {"Role", "ClusterRole"}}
    found = set()
    for binding in objects:
        if binding["kind"] not in {"RoleBinding", "ClusterRoleBinding"}:
            continue
        where = _where(binding)
        namespace = None if where is Where.CLUSTER else binding["metadata"]["namespace"]
        reference = binding["roleRef"]
        role = roles[reference["kind"], namespace if reference["kind"] == "Role" else None, reference["name"]]
        for subject in binding["subjects"]:
            found |= {Right(subject["name"], where, *each) for each in _of(role)}
    return found


def _of(role: dict[str, Any]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    yield resource_name(group, resource), verb, tuple(rule.get("resourceNames", ()))


def resource_name(group: str, resource: str) -> str:
    """As kubectl writes it: `deployments.apps`, `gpuloans.pearl.dev/status`."""
    plural, slash, subresource = resource.partition("/")
    return f"{plural}.{group}{slash}{subresource}" if group else resource


def _key(role: dict[str, Any]) -> tuple[str, str | None, str]:
    namespace = role["metadata"]["namespace"] if role["kind"] == "Role" else None
    return role["kind"], namespace, role["metadata"]["name"]


def _where(binding: dict[str, Any]) -> Where:
    if binding["kind"] == "ClusterRoleBinding":
        return Where.CLUSTER
    return Where.RELEASE if binding["metadata"]["namespace"] == NAMESPACE else Where.TRAINERS
