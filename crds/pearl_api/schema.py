"""Turns a Pydantic model into a *structural* schema, the dialect of JSON schema that CRDs accept.

What differs from Pydantic's own JSON schema, and why:

- references are written out, since a CRD knows no `$ref`, and titles go, since they only repeat the names;
- an optional field (`X | None`) is the schema of X and is not nullable: absent is the one spelling of "not given",
  which keeps rules (`has(self.x)`) and field ownership simple. Writers leave `None` out (`exclude_none=True`);
- the default of a nested model is written out in full, because the API server checks rules against it as it stands;
- free-form objects (pod templates) keep unknown fields; models do not (the API server prunes or refuses them);
- `exclusiveMinimum` is a flag beside `minimum`, as in OpenAPI 3.0;
- a number or one of some words is `x-kubernetes-int-or-string`; which ones are allowed is a rule (`pearl_api.rules`).
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

_KEPT = (
    "type",
    "description",
    "enum",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
)


def structural_schema(model: type[BaseModel]) -> Schema:
    """The structural schema of `model`, by its wire (camelCase) names.

    Raises:
        ValueError: the model uses something that a CRD cannot express; the message names the field.
    """
    raw = model.model_json_schema(by_alias=True)
    return _convert(raw, raw.get("$defs", {}), model.__name__)


def without_defaults(schema: Schema) -> Schema:
    """The same schema with no defaults at any depth: what nobody reported stays unknown, not 0."""
    kept = {key: value for key, value in schema.items() if key != "default"}
    if "properties" in kept:
        kept["properties"] = {name: without_defaults(field) for name, field in kept["properties"].items()}
    if "items" in kept:
        kept["items"] = without_defaults(kept["items"])
    return kept


def filled(schema: Schema, value: Any) -> Any:
    """`value` with the schema's defaults filled in, as the API server does it."""
    if not isinstance(value, dict):
        return value
    result = dict(value)
    for name, field in schema.get("properties", {}).items():
        if name not in result and "default" in field:
            result[name] = field["default"]
        if name in result:
            result[name] = filled(field, result[name])
    return result


def _convert(node: Mapping[str, Any], defs: Mapping[str, Any], where: str) -> Schema:
    node = _resolve(node, defs, where)
    out: Schema = {key: node[key] for key in _KEPT if key in node}
    if "description" in out:
        out["description"] = _one_line(out["description"])
    if "const" in node:
        out["enum"] = [node["const"]]
    _exclusive_bounds(node, out)
    if "x-kubernetes-int-or-string" in node:
        out["x-kubernetes-int-or-string"] = True
    if node.get("type") == "object":
        _object(node, defs, out, where)
    if node.get("type") == "array":
        out["items"] = _convert(node["items"], defs, f"{where}[]")
        out["x-kubernetes-list-type"] = "atomic"
    if node.get("default") is not None:
        out["default"] = _default(node["default"], out, where)
    if "type" not in out and "x-kubernetes-int-or-string" not in out:
        raise ValueError(f"{where}: a CRD field needs one type, this has {sorted(node)}")
    return out


def _resolve(node: Mapping[str, Any], defs: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Follows references and unions until one schema is left; siblings of a reference win."""
    resolved = dict(node)
    while "$ref" in resolved or "anyOf" in resolved:
        if "$ref" in resolved:
            target = defs[str(resolved.pop("$ref")).removeprefix("#/$defs/")]
            resolved = {**target, **resolved}
            continue
        options = [option for option in resolved.pop("anyOf") if option.get("type") != "null"]
        if len(options) == 1:
            resolved = {**options[0], **resolved}
        elif {option.get("type") for option in options} == {"string", "integer"}:
            resolved["x-kubernetes-int-or-string"] = True
        else:
            raise ValueError(f"{where}: a CRD field cannot be one of several types")
    return resolved


def _object(node: Mapping[str, Any], defs: Mapping[str, Any], out: Schema, where: str) -> None:
    if "properties" in node:
        out["properties"] = {
            name: _convert(field, defs, f"{where}.{name}") for name, field in node["properties"].items()
        }
        if node.get("required"):
            out["required"] = sorted(node["required"])
    elif isinstance(node.get("additionalProperties"), dict):
        out["additionalProperties"] = _convert(node["additionalProperties"], defs, f"{where}{{}}")
    else:
        out["x-kubernetes-preserve-unknown-fields"] = True


def _exclusive_bounds(node: Mapping[str, Any], out: Schema) -> None:
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if exclusive in node:
            out[bound] = node[exclusive]
            out[exclusive] = True


def _default(default: Any, schema: Schema, where: str) -> Any:
    if not isinstance(default, dict) or "properties" not in schema:
        return default
    own = filled(schema, {})
    if _without_empty(default) != _without_empty(own):
        raise ValueError(f"{where}: the default of a nested model must be the model's own defaults")
    return own


def _without_empty(value: Any) -> Any:
    """Drops what means "not given" at any depth: None and empty collections."""
    if not isinstance(value, dict):
        return value
    kept = {key: _without_empty(inner) for key, inner in value.items()}
    return {key: inner for key, inner in kept.items() if inner not in (None, {}, [])}


def _one_line(text: str) -> str:
    return " ".join(text.split())
