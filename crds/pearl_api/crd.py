"""The CustomResourceDefinitions, made from the models and the rules."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from pearl_api.loan import GPULoan
from pearl_api.names import GROUP, VERSION
from pearl_api.rollout import PearlRollout
from pearl_api.rules import ITEMS, LOAN_RULES, ROLLOUT_RULES, Rule
from pearl_api.schema import Schema, structural_schema, without_defaults

REVISION_MARK = "Schema revision"
"""Precedes the schema's hash in its description, which every authenticated client can read (OpenAPI): by it the
operator notices CRDs of another version."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column that `kubectl get` prints."""

    name: str
    path: str
    kind: str = "string"
    priority: int = 0
    """0 = always, 1 = only with `-o wide`."""

    def manifest(self) -> dict[str, Any]:
        """As an entry of `additionalPrinterColumns`."""
        entry: dict[str, Any] = {"name": self.name, "type": self.kind, "jsonPath": self.path}
        return {**entry, "priority": self.priority} if self.priority else entry


@dataclass(frozen=True, slots=True)
class Resource:
    """One custom resource: its model, how it is called and what is shown of it."""

    model: type[BaseModel]
    kind: str
    plural: str
    short_names: tuple[str, ...]
    rules: tuple[Rule, ...]
    columns: tuple[Column, ...]
    list_maps: Mapping[tuple[str, ...], str]
    """Lists (by path) whose entries are told apart by one field: server-side apply merges them by it.

    Only lists that are never applied empty after they had entries: the API server makes null of such a list.
    """

    @property
    def name(self) -> str:
        """Name of the CustomResourceDefinition."""
        return f"{self.plural}.{GROUP}"


_AGE = Column("Age", ".metadata.creationTimestamp", "date")

ROLLOUT = Resource(
    model=PearlRollout,
    kind="PearlRollout",
    plural="pearlrollouts",
    short_names=("pr",),
    rules=ROLLOUT_RULES,
    columns=(
        Column("Mode", ".status.mode"),
        Column("P", ".status.workers.prefill", "integer"),
        Column("D", ".status.workers.decode", "integer"),
        Column("C", ".status.workers.colocated", "integer"),
        Column("GPUs", ".status.gpus", "integer"),
        Column("Borrowed", ".status.workers.borrowed", "integer"),
        Column("Elastic", ".status.workers.elastic", "integer"),
        Column("Ready", ".status.ready"),
        Column("Reason", ".status.lastDecision.reason"),
        _AGE,
        Column("Message", ".status.lastDecision.message", priority=1),
    ),
    list_maps={("status", "conditions"): "type"},
)

LOAN = Resource(
    model=GPULoan,
    kind="GPULoan",
    plural="gpuloans",
    short_names=("gl",),
    rules=LOAN_RULES,
    columns=(
        Column("Phase", ".status.phase"),
        Column("Epoch", ".status.epoch", "integer"),
        Column("GPUs", ".status.gpus", "integer"),
        Column("Rollout", ".spec.rolloutRef.name"),
        _AGE,
        Column("Node", ".spec.node", priority=1),
        Column("Reason", ".status.reason", priority=1),
    ),
    list_maps={("status", "conditions"): "type"},
)

RESOURCES = (ROLLOUT, LOAN)


def crd(resource: Resource) -> dict[str, Any]:
    """The CustomResourceDefinition of `resource`, ready to be applied."""
    schema = object_schema(resource)
    schema["description"] += f" {REVISION_MARK} {revision(resource)}."
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": resource.name},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": resource.kind,
                "listKind": f"{resource.kind}List",
                "plural": resource.plural,
                "singular": resource.kind.lower(),
                "shortNames": list(resource.short_names),
                "categories": ["pearl"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [column.manifest() for column in resource.columns],
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def object_schema(resource: Resource) -> Schema:
    """The whole object's schema, with rules, list types and the usual object metadata."""
    schema = structural_schema(resource.model)
    status = without_defaults(schema["properties"]["status"])
    schema["properties"] = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        "spec": schema["properties"]["spec"],
        "status": status,
    }
    for path, key in resource.list_maps.items():
        _at(schema, path).update({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]})
    for rule in resource.rules:
        _at(schema, rule.path).setdefault("x-kubernetes-validations", []).append(rule.manifest())
    return schema


def revision(resource: Resource) -> str:
    """Twelve hex digits that change with anything in the schema."""
    return hashlib.sha256(json.dumps(object_schema(resource), sort_keys=True).encode()).hexdigest()[:12]


def revision_in(description: str) -> str | None:
    """The revision that the description of a published schema names; None where it names none."""
    _, mark, rest = description.rpartition(REVISION_MARK)
    return rest.strip(" .") if mark else None


def _at(schema: Schema, path: tuple[str, ...]) -> Schema:
    for name in path:
        if name == ITEMS:
            schema = schema["items"]
            continue
        if name not in schema.get("properties", {}):
            raise ValueError(f"no field {'.'.join(path)} in the schema: correct the path of the rule or list type")
        schema = schema["properties"][name]
    return schema
