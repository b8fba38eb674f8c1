"""Values of the chart: each is described and typed, and whatever is none is refused by name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml

from pearl_dev.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Render = Callable[..., list[dict[str, Any]]]

OF_KUBERNETES: Final = {
    "global",
    "operator.affinity",
    "operator.podSecurityContext",
    "operator.securityContext",
    "operator.extraEnv[].valueFrom",
}
"""Objects whose fields are Helm's or Kubernetes' own."""
WRONG: Final = {"string": 7, "boolean": "yes", "integer": "many", "number": "many", "array": {"a": 1}, "object": "a"}
"""By the type that is asked for: a value of another."""


@pytest.fixture(scope="module")
def schema(request: pytest.FixtureRequest) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((request.config.rootpath / "charts/pearl/values.schema.json").read_text())
    return loaded


@pytest.fixture(scope="module")
def defaults(request: pytest.FixtureRequest) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((request.config.rootpath / "charts/pearl/values.yaml").read_text())
    return loaded


def fields(schema: dict[str, Any], node: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Path and resolved schema of every field below `node`, its own words kept."""
    for name, written in node.get("properties", {}).items():
        field = {**resolved(schema, written), **written}
        yield prefix + name, field
        yield from fields(schema, field, f"{prefix}{name}.")
        if "items" in field:
            yield from fields(schema, resolved(schema, field["items"]), f"{prefix}{name}[].")


def resolved(schema: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    target: dict[str, Any] = schema["definitions"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node
    return target


def leaves(values: Any, prefix: str = "") -> Iterator[str]:
    if not isinstance(values, dict) or not values:
        yield prefix
        return
    for name, value in values.items():
        yield from leaves(value, f"{prefix}.{name}" if prefix else name)


def test_every_value_has_a_type_and_a_description(schema: dict[str, Any]) -> None:
    lacking = [path for path, field in fields(schema, schema) if "type" not in field or not field.get("description")]
    assert lacking == []


def test_unknown_keys_are_refused_wherever_the_keys_are_ours(schema: dict[str, Any]) -> None:
    assert schema["additionalProperties"] is False
    described = dict(fields(schema, schema))
    open_ended = {
        path for path, field in described.items() if field["type"] == "object" and "additionalProperties" not in field
    }
    assert open_ended == OF_KUBERNETES
    ours = [field for field in described.values() if "properties" in field]
    assert all(field["additionalProperties"] is False for field in ours)


def test_schema_and_values_name_the_same(schema: dict[str, Any], defaults: dict[str, Any]) -> None:
    described = dict(fields(schema, schema))
    for path in leaves(defaults):
        parents = [path.rsplit(".", count)[0] for count in range(path.count(".") + 1)]
        assert any(parent in described for parent in parents), path
    without_default = {path for path in described if "[]" not in path and not has(defaults, path)}
    assert without_default == {"global", "operator.resources.claims"}


def has(values: Any, path: str) -> bool:
    for name in path.split("."):
        if not isinstance(values, dict) or name not in values:
            return False
        values = values[name]
    return True


def test_every_value_of_a_wrong_type_is_refused_by_name(render: Render, schema: dict[str, Any]) -> None:
    """All at once: the error lists every one of them."""
    described = dict(fields(schema, schema))
    typed = {path: field for path, field in described.items() if "[]" not in path and "properties" not in field}
    values: dict[str, Any] = {}
    for path, field in typed.items():
        *parents, last = path.split(".")
        place = values
        for name in parents:
            place = place.setdefault(name, {})
        place[last] = WRONG[field["type"]]
    with pytest.raises(CommandError) as refused:
        render(**values)
    assert [path for path in typed if f"at '/{path.replace('.', '/')}'" not in refused.value.output] == []


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"image": {"tag": "a tag"}}, "/image/tag"),
        ({"image": {"pullPolicy": "Sometimes"}}, "/image/pullPolicy"),
        ({"image": {"repository": "docker.io/pearl/operator:1"}}, "/image/repository"),
        ({"trainerNamespaces": ["Train_A"]}, "/trainerNamespaces/0"),
        ({"operator": {"leaseSeconds": 5}}, "/operator/leaseSeconds"),
        ({"operator": {"replicas": 2}}, "/operator: additional properties replicas"),
        ({"operator": {"resources": {"limit": {"cpu": 1}}}}, "/operator/resources: additional properties limit"),
        (
            {"operator": {"extraEnv": [{"name": "A", "vlaue": "b"}]}},
            "/operator/extraEnv/0: additional properties vlaue",
        ),
        ({"operator": {"podLabels": {"pearl.dev/component": "mine"}}}, "/operator/podLabels/pearl.dev~1component"),
        ({"commonLabels": {"app.kubernetes.io/name": "mine"}}, "/commonLabels/app.kubernetes.io~1name"),
        ({"imagePullSecrets": ["pull"]}, "/imagePullSecrets/0"),
        ({"networkPolicy": {"apiServerCIDRs": ["10.0.0.1"]}}, "/networkPolicy/apiServerCIDRs/0"),
        ({"trainerNamespace": ["a"]}, "additional properties trainerNamespace"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_value_is_refused_by_name(render: Render, values: dict[str, Any], field: str) -> None:
    with pytest.raises(CommandError) as refused:
        render(**values)
    assert field in refused.value.output.replace("'", "")
