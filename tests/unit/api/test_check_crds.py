"""What the operator says when the cluster's CRDs are not its own."""

from __future__ import annotations

from typing import Any

from pearl_api.crd import RESOURCES, crd
from pearl_operator.check_crds import problems


def published(**descriptions: str) -> dict[str, Any]:
    """An OpenAPI document as the API server publishes it for our CRDs."""
    schemas = {}
    for resource in RESOURCES:
        schema = crd(resource)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        kind = {"group": "pearl.dev", "version": "v1alpha1", "kind": resource.kind}
        schemas[f"dev.pearl.v1alpha1.{resource.kind}"] = {
            "description": descriptions.get(resource.kind, schema["description"]),
            "x-kubernetes-group-version-kind": [kind],
        }
    return {"components": {"schemas": schemas}}


def test_the_crds_of_this_version_are_accepted() -> None:
    assert problems(published()) == []


def test_crds_of_another_version_are_named_with_what_to_do() -> None:
    (sentence,) = problems(published(PearlRollout="A fleet. Schema revision 0123456789ab."))
    assert sentence.startswith("pearlrollouts.pearl.dev has schema revision 0123456789ab, this version needs ")
    assert sentence.endswith("helm show crds CHART | kubectl apply --server-side --force-conflicts -f -")


def test_missing_crds_are_named() -> None:
    assert [sentence.split()[0] for sentence in problems({})] == ["pearlrollouts.pearl.dev", "gpuloans.pearl.dev"]
