"""`python -m pearl_operator.check_crds`: are the cluster's CRDs those of this version? Runs before the operator.

Helm installs the folder `crds/` once and never upgrades it. The schemas are read from the API server's OpenAPI
document, which needs no permission beyond being authenticated, so it works without cluster-wide RBAC too.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any

from pearl_api.crd import RESOURCES, revision, revision_in
from pearl_api.names import GROUP, VERSION
from pearl_operator.kube import load_client

if TYPE_CHECKING:
    from collections.abc import Mapping

_OPENAPI = f"/openapi/v3/apis/{GROUP}/{VERSION}"
_TIMEOUT_SECONDS = 10.0
_HOW = "apply the CRDs of this version: helm show crds CHART | kubectl apply --server-side --force-conflicts -f -"
_MISSING = 404
_TRIES = 15
_PAUSE_SECONDS = 2.0
"""The API server publishes new CRDs some seconds after they are applied."""


def problems(document: Mapping[str, Any]) -> list[str]:
    """What is wrong with the schemas of an OpenAPI document, one sentence each; empty = nothing."""
    published = {
        entry["kind"]: str(schema.get("description", ""))
        for schema in document.get("components", {}).get("schemas", {}).values()
        for entry in schema.get("x-kubernetes-group-version-kind", ())
    }
    found = []
    for resource in RESOURCES:
        if resource.kind not in published:
            found.append(f"{resource.name} is not installed: {_HOW}")
            continue
        there, wanted = revision_in(published[resource.kind]), revision(resource)
        if there != wanted:
            found.append(f"{resource.name} has schema revision {there}, this version needs {wanted}: {_HOW}")
    return found


async def read_document() -> dict[str, Any]:
    """The OpenAPI document of our group; empty where the API server has no such group."""
    api = await load_client()
    async with api:
        request = await api.param_serialize(
            "GET", _OPENAPI, header_params={"Accept": "application/json"}, auth_settings=["BearerToken"]
        )
        answer = await api.call_api(*request, _request_timeout=_TIMEOUT_SECONDS)
        raw: bytes = await answer.read()  # type: ignore[no-untyped-call]
    if answer.status == _MISSING:
        return {}
    document: dict[str, Any] = json.loads(raw)
    return document


async def lasting_problems(*, tries: int = _TRIES, pause_seconds: float = _PAUSE_SECONDS) -> list[str]:
    """`problems` of the cluster that are still there after some time."""
    found: list[str] = []
    for attempt in range(tries):
        if attempt:
            await asyncio.sleep(pause_seconds)
        found = problems(await read_document())
        if not found:
            break
    return found


def main() -> int:
    """0 = as wanted; 1 = not, with what to do on stderr."""
    found = asyncio.run(lasting_problems())
    for sentence in found:
        sys.stderr.write(sentence + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
