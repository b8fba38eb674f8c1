"""What the chart lets each ServiceAccount do: what the code needs, and no more."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pearl_operator
from pearl_dev.rbac.matrix import TRAINERS, Right, Where, resource_name, rights
from pearl_dev.rbac.needs import CRDS, GATEWAY, NEEDS, NEVER, TAKES_AWAY
from pearl_operator import kinds
from pearl_operator.settings import from_env

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Render = Callable[..., list[dict[str, Any]]]

VALUES: list[dict[str, Any]] = [{}, {"rbac": {"clusterScoped": False}}, {"sharedClaims": {"enabled": False}}]
VERBS = {
    "get": ("get",),
    "list": ("list",),
    "create": ("create",),
    "dry_run_create": ("create",),
    "apply": ("patch",),
    "apply_status": ("patch",),
    "delete": ("delete",),
}
CALL = re.compile(rf"kube\.({'|'.join(VERBS)})\((?:replace\()?kinds\.([A-Z_]+)")


def rules(objects: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for item in objects:
        if item["kind"] in {"Role", "ClusterRole"}:
            yield from item["rules"]


def test_every_right_is_needed_by_code_and_every_need_is_a_right(render: Render) -> None:
    needed = {right for need in NEEDS for right in need.rights()}
    assert rights(render(trainerNamespaces=[TRAINERS])) == needed


@pytest.mark.parametrize("value", TAKES_AWAY)
def test_the_values_that_take_rights_away_take_these_and_no_other(render: Render, value: str) -> None:
    section, name = value.split(".")
    everything = rights(render(trainerNamespaces=[TRAINERS]))
    left = rights(render(trainerNamespaces=[TRAINERS], **{section: {name: False}}))
    assert everything - left == {right for right in everything if TAKES_AWAY[value](right)}
    assert everything > left


def test_the_code_that_is_said_to_need_a_right_speaks_of_its_resource() -> None:
    plurals = {
        resource_name(kind.group, kind.plural): name
        for name, kind in vars(kinds).items()
        if name.isupper() and isinstance(kind, kinds.Kind)
    }
    silent = []
    for need in NEEDS:
        source = inspect.getsource(importlib.import_module(need.module))
        plural = need.resource.partition("/")[0]
        spoken = f"kinds.{plurals[plural]}" if need.account != GATEWAY else plural.partition(".")[0][:-1]
        if spoken not in source:
            silent.append((need.module, need.resource))
    assert silent == []


def test_every_call_of_the_operator_has_its_right() -> None:
    granted = {(need.module, need.resource.partition("/")[0], verb) for need in NEEDS for verb in need.verbs}
    root = Path(pearl_operator.__path__[0])
    wanted = set()
    for path in root.rglob("*.py"):
        module = ".".join(("pearl_operator", *path.relative_to(root).with_suffix("").parts))
        for call, name in CALL.findall(path.read_text()):
            kind = getattr(kinds, name)
            wanted |= {(module, resource_name(kind.group, kind.plural), verb) for verb in VERBS[call]}
    assert len(wanted) > 20
    assert wanted - granted == set()


@pytest.mark.parametrize("values", VALUES, ids=str)
def test_no_wildcard_and_no_secret_is_read_but_by_its_name(render: Render, values: dict[str, Any]) -> None:
    found = list(rules(render(trainerNamespaces=[TRAINERS], **values)))
    assert found
    for rule in found:
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        assert "nonResourceURLs" not in rule
        if "secrets" in rule["resources"] and {"get", "list", "watch"} & set(rule["verbs"]):
            assert rule["verbs"] == ["get"]
            assert rule["resourceNames"] == ["pearl-operator-keys"]


@pytest.mark.parametrize("values", VALUES, ids=str)
def test_what_must_be_denied_is_not_granted(render: Render, values: dict[str, Any]) -> None:
    granted = rights(render(trainerNamespaces=[TRAINERS], **values))
    allowed = {(each.account, each.where, each.resource, each.verb) for each in granted if not each.names}
    assert [each for each in NEVER if (each.account, each.where, each.resource, each.verb) in allowed] == []


def test_without_cluster_scope_rights_are_in_the_listed_namespaces_only_and_no_other_is_watched(render: Render) -> None:
    values = {"rbac": {"clusterScoped": False}, "trainerNamespaces": [TRAINERS, "rollouts"]}
    objects = render(**values)
    assert not {"ClusterRole", "ClusterRoleBinding"} & {item["kind"] for item in objects}
    roles = {item["metadata"]["namespace"] for item in objects if item["kind"] in {"Role", "RoleBinding"}}
    assert roles == {"rollouts", TRAINERS}
    narrowed = rights(objects)
    everything = rights(render(trainerNamespaces=[TRAINERS]))
    assert everything - narrowed == {each for each in everything if each.where is Where.CLUSTER}
    (deployment,) = [item for item in objects if item["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    environment = {entry["name"]: entry.get("value", "rollouts") for entry in container["env"]}
    settings = from_env(environment)
    assert settings.cluster_scoped is False
    assert set(settings.namespaces) == roles, "what `watch` and `resync` look at"


def test_without_rbac_create_nothing_is_granted(render: Render) -> None:
    assert rights(render(rbac={"create": False}, trainerNamespaces=[TRAINERS])) == set()


def test_no_other_service_account_has_a_right(render: Render) -> None:
    granted: set[Right] = rights(render(trainerNamespaces=[TRAINERS]))
    assert {each.account for each in granted} == {"pearl-operator", "pearl-gateway", CRDS}
