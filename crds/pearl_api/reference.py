"""The reference pages: fields, conditions, reasons, endpoints and labels, written from models and docstrings."""

import ast
import inspect
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from pydantic import BaseModel

from pearl_api import names, tokens
from pearl_api.crd import RESOURCES, Resource, object_schema
from pearl_api.reasons import CONDITION_REASONS, CONDITIONS, DECISIONS
from pearl_api.schema import Schema, structural_schema, without_defaults
from pearl_api.wire import gateway, loans, weights, worker

_GENERATED = "<!-- Generated from pearl_api by `make docs`; change the models, not this file. -->\n\n"


def pages() -> dict[str, str]:
    """Page name → Markdown."""
    bodies = {
        **{resource.kind.lower(): _resource_page(resource) for resource in RESOURCES},
        "conditions": _conditions_page(),
        "decision-reasons": _decisions_page(),
        "wire": _wire_page(),
        "labels": _labels_page(),
    }
    bodies["README"] = _index_page(bodies)
    return {name: _GENERATED + body for name, body in bodies.items()}


def _index_page(bodies: Mapping[str, str]) -> str:
    titles = ((name, body.splitlines()[0].removeprefix("# ")) for name, body in bodies.items())
    listed = "".join(f"- [{title}]({name}.md)\n" for name, title in titles)
    loans_api = "- [Loan API, OpenAPI 3.1](loan-api.json), served at `/v1/loans/openapi.json`\n"
    gateway_api = "- [Gateway, OpenAPI 3.1](gateway-api.json), served by it at `/openapi.json`\n"
    metrics = "- [Metrics](metrics.md) of operator, gateway and worker agent\n"
    rights = "- [RBAC](rbac.md): what each ServiceAccount may do, and the code that needs it\n"
    return f"# Reference\n\n{listed}{metrics}{rights}{loans_api}{gateway_api}"


def _resource_page(resource: Resource) -> str:
    schema = object_schema(resource)
    parts = [
        f"# {resource.kind}",
        schema["description"],
        f"`{names.API_VERSION}`, namespaced; `kubectl get {resource.plural}`, short: {' '.join(resource.short_names)}.",
        "## spec",
        _field_table(schema["properties"]["spec"], "spec"),
        "## status",
        "Written by the operator. A field that is absent is unknown.",
        _field_table(schema["properties"]["status"], "status"),
        "## Rules",
        "Checked by the API server on every write, beside the bounds above:",
        "\n".join(f"- {rule.message}" for rule in resource.rules),
        "## Columns",
        table(("column", "from"), ((column.name, f"`{column.path}`") for column in resource.columns)),
    ]
    return "\n\n".join(parts) + "\n"


def _conditions_page() -> str:
    parts = ["# Conditions of a PearlRollout", "All are always present; reason `Unknown`: it could not be observed."]
    for condition, meaning in CONDITIONS.items():
        rows = ((f"`{reason}`", text) for reason, text in CONDITION_REASONS[condition].items())
        parts += [f"## {condition}", meaning, table(("reason", "meaning"), rows)]
    return "\n\n".join(parts) + "\n"


def _decisions_page() -> str:
    reasons = table(("reason", "meaning"), ((f"`{reason}`", text) for reason, text in DECISIONS.items()))
    intro = "`status.lastDecision.reason` of a PearlRollout; the message beside it gives the numbers."
    return f"# Decision reasons\n\n{intro}\n\n{reasons}\n"


def _wire_page() -> str:
    parts = ["# Wire", "What the processes say to each other, by receiver. Field names are camelCase JSON."]
    for title, module in (("Gateway", gateway), ("Worker agent", worker), ("Loan API", loans), ("Weights", weights)):
        parts += [f"## {title}", inspect.getdoc(module) or ""]
        for model in _models_of(module):
            schema = structural_or_loose(model)
            parts += [f"### {model.__name__}", schema.get("description", ""), _field_table(schema, "")]
    parts += ["## Tokens", inspect.getdoc(tokens) or ""]
    return "\n\n".join(parts) + "\n"


def _labels_page() -> str:
    documented = list(_documented_constants(names))
    parts = ["# Labels, ports and names"]
    for title, prefixes in (
        ("Labels and annotations", ("LABEL_", "ANNOTATION_")),
        ("Ports", ("PORT_",)),
        ("Field managers", ("FIELD_",)),
        ("Objects of a release", ("RELEASE_",)),
    ):
        rows = [(f"`{value}`", text) for name, value, text in documented if name.startswith(prefixes)]
        parts += [f"## {title}", table(("value", "meaning"), rows)]
    functions = (names.worker_secret, names.gateway_secret, names.client_secret, names.gateway_name)
    rows = [(f"`{function('NAME')}`", inspect.getdoc(function) or "") for function in functions]
    rows.append((f"`{names.worker_pod('NAME', 3, 0)}`", inspect.getdoc(names.worker_pod) or ""))
    rows.append((f"`{names.borrower_pod('TRAINER', 0)}`", inspect.getdoc(names.borrower_pod) or ""))
    parts += ["## Objects of a rollout called NAME", table(("name", "what"), rows)]
    return "\n\n".join(parts) + "\n"


def structural_or_loose(model: type[BaseModel]) -> Schema:
    """The schema of a wire message, without defaults of counters that only say "nothing yet"."""
    return without_defaults(structural_schema(model))


def _models_of(module: ModuleType) -> Iterable[type[BaseModel]]:
    for member in vars(module).values():
        if inspect.isclass(member) and issubclass(member, BaseModel) and member.__module__ == module.__name__:
            yield member


def _field_table(schema: Schema, prefix: str) -> str:
    rows = [
        (f"`{path}`", _type_of(field), _default_of(field, required=required), _description_of(field))
        for path, field, required in _walk(schema, prefix)
    ]
    return table(("field", "type", "default", "meaning"), rows)


def _walk(schema: Schema, prefix: str) -> Iterable[tuple[str, Schema, bool]]:
    required = schema.get("required", [])
    for name, field in schema.get("properties", {}).items():
        path = f"{prefix}.{name}" if prefix else name
        yield path, field, name in required
        inner, suffix = (field["items"], "[]") if field.get("type") == "array" else (field, "")
        yield from _walk(inner, path + suffix)


def _type_of(field: Schema) -> str:
    if "x-kubernetes-int-or-string" in field:
        return "integer or string"
    kind = str(field["type"])
    if kind == "array":
        return f"list of {_type_of(field['items'])}"
    if kind == "object" and isinstance(field.get("additionalProperties"), dict):
        return f"map to {_type_of(field['additionalProperties'])}"
    if "enum" in field:
        return " \\| ".join(f"`{word}`" for word in field["enum"])
    return kind


def _default_of(field: Schema, *, required: bool) -> str:
    if required:
        return "required"
    if "default" not in field or field.get("properties"):
        return ""
    return f"`{field['default']}`"


def _description_of(field: Schema) -> str:
    limits = _limits_of(field)
    return " ".join(part for part in (field.get("description", ""), f"({limits})" if limits else "") if part)


def _limits_of(field: Schema) -> str:
    low, high = field.get("minimum"), field.get("maximum")
    parts = []
    if low is not None:
        parts.append(f"{'>' if field.get('exclusiveMinimum') else '≥'} {low}")
    if high is not None:
        parts.append(f"≤ {high}")
    return ", ".join(parts)


def _documented_constants(module: ModuleType) -> Iterable[tuple[str, Any, str]]:
    """(name, value, docstring below it) of the module's upper-case constants."""
    body = ast.parse(inspect.getsource(module)).body
    for statement, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id, getattr(module, statement.target.id), _docstring(following)


def _docstring(statement: ast.stmt | None) -> str:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return " ".join(str(statement.value.value).split())
    return ""


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(cell.replace("\n", " ") for cell in row) + " |" for row in rows]
    return "\n".join(lines)
