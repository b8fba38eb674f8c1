"""`python -m pearl_operator.upgrade_crds`: the chart's pre-upgrade hook, since Helm never upgrades the folder `crds/`.

Applies this version's CRDs over the cluster's. What a newer release knows is never taken away: fields, enum values or
stored versions that are missing here are a refusal, because the API server would drop them from stored objects.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pearl_api.crd import RESOURCES, crd, revision, revision_in
from pearl_operator import kinds
from pearl_operator.calls import Calls
from pearl_operator.clock import SystemClock
from pearl_operator.errors import OperatorError, RetryAfter
from pearl_operator.kube import KubeClient, load_client

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pearl_api.crd import Resource
    from pearl_operator.ports import Kube, Object

MANAGER: Final = "pearl-crds"
_HOW: Final = "helm show crds CHART | kubectl apply --server-side --force-conflicts -f -"
_NAMED: Final = 5
_TIMEOUT_SECONDS: Final = 10.0


class DowngradeError(Exception):
    """The cluster's CRD is of a newer release; the message says what to do."""


@dataclass(frozen=True, slots=True)
class UpgradeCrds:
    """One run; may be repeated."""

    kube: Kube

    async def run(self) -> list[str]:
        """Applies the CRDs that differ, all or none; one sentence for each.

        Raises:
            DowngradeError: one is of a newer release, or is missing.
            OperatorError: the API server refuses or does not answer.
        """
        stored = [await self._stored(resource) for resource in RESOURCES]
        refusals = [
            said for there, resource in zip(stored, RESOURCES, strict=True) if (said := refusal(there, resource))
        ]
        if refusals:
            raise DowngradeError("\n".join(refusals))
        return [await self._apply(there, resource) for there, resource in zip(stored, RESOURCES, strict=True)]

    async def _stored(self, resource: Resource) -> Object:
        there = await self.kube.get(kinds.CRD, resource.name)
        if there is None:
            raise DowngradeError(f"{resource.name} is not installed, and this hook only upgrades: {_HOW}")
        return there

    async def _apply(self, there: Object, resource: Resource) -> str:
        before, wanted = _revision_of(there), revision(resource)
        if before == wanted:
            return f"{resource.name} is of this version already (schema revision {wanted})"
        ours = crd(resource)
        # Whoever upgraded it meanwhile is not overwritten: that is a conflict, and looked at anew.
        ours["metadata"]["resourceVersion"] = there["metadata"]["resourceVersion"]
        await self.kube.apply(kinds.CRD, ours, manager=MANAGER)
        return f"{resource.name} upgraded from schema revision {before} to {wanted}"


def refusal(there: Object, resource: Resource) -> str | None:
    """Why our CRD may not take the place of the stored one; None where it may."""
    ours = crd(resource)
    versions = {version["name"] for version in ours["spec"]["versions"]}
    newer = [f"version {name}" for name in _stored_versions(there) if name not in versions]
    known = set(_paths(_schema_of(ours)))
    newer += [path for path in _paths(_schema_of(there)) if path not in known]
    if not newer:
        return None
    more = f" and {len(newer) - _NAMED} more" if len(newer) > _NAMED else ""
    return (
        f"{resource.name} in the cluster is of a newer release: it has {', '.join(newer[:_NAMED])}{more}, which this "
        f"version does not know and the API server would drop from stored objects. Upgrade to that release, or, if no "
        f"object uses them, apply this version's CRDs by hand: {_HOW}"
    )


def _stored_versions(there: Object) -> list[str]:
    return list((there.get("status") or {}).get("storedVersions") or [])


def _schema_of(definition: Object) -> dict[str, Any]:
    """Of the version that is stored."""
    version = next(each for each in definition["spec"]["versions"] if each.get("storage"))
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return schema


def _revision_of(definition: Object) -> str | None:
    return revision_in(str(_schema_of(definition).get("description", "")))


def _paths(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Every field of a structural schema and every value of its enums: `spec.mode`, `spec.mode=Auto`."""
    if path:
        yield path
    yield from (f"{path}={value}" for value in schema.get("enum") or ())
    for name, field in (schema.get("properties") or {}).items():
        yield from _paths(field, f"{path}.{name}" if path else name)
    for inner, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(inner), dict):
            yield from _paths(schema[inner], path + mark)


async def _until_done() -> list[str]:
    clock = SystemClock()
    async with await load_client() as api:
        upgrade = UpgradeCrds(KubeClient(api, Calls(clock), timeout_seconds=_TIMEOUT_SECONDS))
        while True:  # the Job's deadline bounds it
            try:
                return await upgrade.run()
            except RetryAfter as error:
                sys.stderr.write(f"trying again: {error}\n")
                await clock.sleep(error.seconds)


def main() -> int:
    """0 = the CRDs are this version's; 1 = refused, with what to do on stderr."""
    try:
        done = asyncio.run(_until_done())
    except (OperatorError, DowngradeError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write("\n".join(done) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
