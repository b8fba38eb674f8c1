"""From a Pydantic model to a structural schema."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from pearl_api.base import Model
from pearl_api.crd import LOAN, RESOURCES, ROLLOUT, crd, object_schema, revision, revision_in
from pearl_api.rollout import GatewaySpec
from pearl_api.schema import filled, structural_schema


class Inner(Model):
    size: int = Field(default=3, gt=0, le=9, description="How\n  many.")


class Outer(Model):
    """An example."""

    kind: Literal["a", "b"] = "a"
    inner: Inner = Inner()
    maybe: Inner | None = None
    window: Literal["Auto"] | Annotated[int, Field(ge=1)] = "Auto"
    free: dict[str, Any] | None = None
    words: list[Annotated[str, Field(max_length=5)]] = Field(max_length=2)


def test_a_model_becomes_a_structural_schema() -> None:
    size = {"type": "integer", "description": "How many.", "minimum": 0, "exclusiveMinimum": True, "maximum": 9}
    inner = {"type": "object", "properties": {"size": {**size, "default": 3}}}
    assert structural_schema(Outer) == {
        "type": "object",
        "description": "An example.",
        "required": ["words"],
        "properties": {
            "kind": {"type": "string", "enum": ["a", "b"], "default": "a"},
            "inner": {**inner, "default": {"size": 3}},
            "maybe": inner,
            "window": {"x-kubernetes-int-or-string": True, "default": "Auto"},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            "words": {
                "type": "array",
                "maxItems": 2,
                "x-kubernetes-list-type": "atomic",
                "items": {"type": "string", "maxLength": 5},
            },
        },
    }


def test_a_field_of_several_types_is_refused_by_name() -> None:
    class Odd(Model):
        field: list[str] | int

    with pytest.raises(ValueError, match=r"Odd\.field: a CRD field cannot be one of several types"):
        structural_schema(Odd)


def test_a_nested_default_that_differs_from_the_models_own_is_refused() -> None:
    class Odd(Model):
        inner: Inner = Inner(size=5)

    with pytest.raises(ValueError, match=r"Odd\.inner: the default of a nested model must be the model's own"):
        structural_schema(Odd)


def test_defaults_are_filled_in_below_what_is_given() -> None:
    assert filled(structural_schema(Outer), {"inner": {}, "words": ["x"]}) == {
        "kind": "a",
        "inner": {"size": 3},
        "window": "Auto",
        "words": ["x"],
    }


def everywhere(schema: dict[str, Any]) -> list[dict[str, Any]]:
    nested = [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]
    return [schema, *(found for inner in nested for found in everywhere(inner))]


def test_a_gateway_has_one_to_sixteen_processes() -> None:
    spec = object_schema(ROLLOUT)["properties"]["spec"]["properties"]["gateway"]["properties"]["processes"]
    assert (spec["default"], spec["minimum"], spec["maximum"]) == (1, 1, 16)
    for count in (0, 17):
        with pytest.raises(ValueError, match="processes"):
            GatewaySpec(processes=count)


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.kind)
def test_a_status_never_holds_what_nobody_reported(resource: Any) -> None:
    assert not [field for field in everywhere(object_schema(resource)["properties"]["status"]) if "default" in field]


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.kind)
def test_every_field_that_a_user_writes_says_what_it_means(resource: Any) -> None:
    fields = everywhere(object_schema(resource)["properties"]["spec"])[1:]
    named = [field for field in fields if "properties" not in field and "items" not in field and "enum" not in field]
    silent = [field for field in named if not field.get("description")]
    # Entries of lists are described by their list.
    assert {tuple(field) for field in silent} <= {
        ("type", "maxLength"),
        ("type", "maxLength", "x-kubernetes-validations"),
    }


def test_conditions_are_told_apart_by_type_and_no_list_that_may_become_empty_is_merged() -> None:
    """Applying an empty list over entries of one's own leaves null there, which the schema does not allow."""
    status = object_schema(ROLLOUT)["properties"]["status"]["properties"]
    assert status["conditions"]["x-kubernetes-list-map-keys"] == ["type"]
    merged = {path for resource in RESOURCES for path in merged_lists(object_schema(resource), ())}
    assert merged == {("status", "conditions")}


def merged_lists(schema: dict[str, Any], path: tuple[str, ...]) -> list[tuple[str, ...]]:
    here = [path] if schema.get("x-kubernetes-list-type") == "map" else []
    parts = schema.get("properties", {}).items()
    inside = merged_lists(schema["items"], path) if "items" in schema else []
    return [*here, *inside, *(found for name, part in parts for found in merged_lists(part, (*path, name)))]


def test_a_published_schema_names_its_revision_and_revisions_differ() -> None:
    version = crd(ROLLOUT)["spec"]["versions"][0]
    assert revision_in(version["schema"]["openAPIV3Schema"]["description"]) == revision(ROLLOUT)
    assert revision(ROLLOUT) != revision(LOAN)
    assert revision_in("a schema of somebody else") is None
