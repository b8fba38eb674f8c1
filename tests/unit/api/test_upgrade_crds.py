"""The chart's pre-upgrade hook, and objects that were stored under another schema."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from pearl_api.crd import LOAN, RESOURCES, ROLLOUT, crd, revision
from pearl_operator import kinds
from pearl_operator.errors import Conflict
from pearl_operator.facts import loan_fact, rollout_fact
from pearl_operator.upgrade_crds import DowngradeError, UpgradeCrds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pearl_operator.kinds import Kind

ROLLOUTS, LOANS = ROLLOUT.name, LOAN.name


@dataclass
class Definitions:
    """The CRDs of a cluster, as Helm installed them."""

    stored: dict[str, dict[str, Any]] = field(default_factory=dict)
    applied: list[str] = field(default_factory=list)

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        assert (kind, namespace) == (kinds.CRD, None)
        return deepcopy(self.stored.get(name))

    async def apply(self, kind: Kind, body: dict[str, Any], *, manager: str) -> dict[str, Any]:
        assert (kind, manager) == (kinds.CRD, "pearl-crds")
        name = body["metadata"]["name"]
        if body["metadata"]["resourceVersion"] != self.stored[name]["metadata"]["resourceVersion"]:
            raise Conflict(name)
        self.stored[name] = body
        self.applied.append(name)
        return body


def schema(definition: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def aged(definition: dict[str, Any]) -> dict[str, Any]:
    """As an older release had it: `spec.idle` or `spec.access` is missing, and the revision is another."""
    old = schema(definition)
    old["description"] = "A fleet. Schema revision 0123456789ab."
    del old["properties"]["spec"]["properties"][
        "idle" if "idle" in old["properties"]["spec"]["properties"] else "access"
    ]
    return definition


@pytest.fixture
def cluster() -> Definitions:
    made = Definitions()
    for resource in RESOURCES:
        definition = crd(resource)
        definition["metadata"]["resourceVersion"] = "7"
        definition["status"] = {"storedVersions": ["v1alpha1"]}
        made.stored[resource.name] = definition
    return made


async def upgrade(cluster: Definitions) -> list[str]:
    return await UpgradeCrds(cluster).run()  # type: ignore[arg-type]


async def test_crds_of_this_version_are_left_alone(cluster: Definitions) -> None:
    said = await upgrade(cluster)
    assert [sentence.split()[0] for sentence in said] == [ROLLOUTS, LOANS]
    assert cluster.applied == []


async def test_crds_of_an_older_release_are_upgraded(cluster: Definitions) -> None:
    aged(cluster.stored[ROLLOUTS])
    said = await upgrade(cluster)
    assert said[0] == f"{ROLLOUTS} upgraded from schema revision 0123456789ab to {revision(ROLLOUT)}"
    assert cluster.applied == [ROLLOUTS]
    assert schema(cluster.stored[ROLLOUTS]) == schema(crd(ROLLOUT))


def with_field(there: dict[str, Any]) -> None:
    schema(there)["properties"]["spec"]["properties"]["tomorrow"] = {"type": "string"}


def with_field_in_a_list(there: dict[str, Any]) -> None:
    condition = schema(there)["properties"]["status"]["properties"]["conditions"]["items"]
    condition["properties"]["severity"] = {"type": "string"}


def with_enum_value(there: dict[str, Any]) -> None:
    schema(there)["properties"]["spec"]["properties"]["mode"]["enum"].append("Quantum")


def with_version(there: dict[str, Any]) -> None:
    there["status"]["storedVersions"].append("v1beta1")


@pytest.mark.parametrize(
    ("newer", "named"),
    [
        (with_field, "spec.tomorrow"),
        (with_field_in_a_list, "status.conditions[].severity"),
        (with_enum_value, "spec.mode=Quantum"),
        (with_version, "version v1beta1"),
    ],
)
async def test_what_a_newer_release_knows_is_not_taken_away(cluster: Definitions, newer: Any, named: str) -> None:
    newer(cluster.stored[ROLLOUTS])
    aged(cluster.stored[LOANS])
    with pytest.raises(DowngradeError) as caught:
        await upgrade(cluster)
    sentence = str(caught.value)
    assert sentence.startswith(f"{ROLLOUTS} in the cluster is of a newer release: it has {named}, which this version")
    assert "Upgrade to that release, or, if no object uses them, apply" in sentence
    assert cluster.applied == []  # all or none


async def test_missing_crds_are_named(cluster: Definitions) -> None:
    del cluster.stored[LOANS]
    with pytest.raises(DowngradeError, match=r"gpuloans\.pearl\.dev is not installed.*helm show crds"):
        await upgrade(cluster)


async def test_a_crd_that_somebody_else_changed_meanwhile_is_looked_at_anew(cluster: Definitions) -> None:
    aged(cluster.stored[ROLLOUTS])
    get = cluster.get

    async def late(kind: Kind, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        there = await get(kind, name, namespace)
        cluster.stored[name]["metadata"]["resourceVersion"] = "8"
        return there

    cluster.get = late  # type: ignore[method-assign]
    with pytest.raises(Conflict):
        await upgrade(cluster)
    assert cluster.applied == []


META = {"name": "r", "namespace": "pearl", "uid": "u"}
OLD_ROLLOUT: dict[str, Any] = {
    "metadata": META,
    "spec": {
        "model": {"name": "tiny", "uri": "/models/tiny"},
        "engine": {"image": "example/worker:1"},
        "capacity": {"reserved": {"gpus": 2}},
    },
    "status": {
        "mode": "Colocated",
        "target": {
            "id": 3,
            "generation": 1,
            "slots": [{"slot": 0, "zone": "reserved", "role": "colocated", "incarnation": 0}],
            "reason": "Applied",
            "startedAt": "2026-01-01T00:00:00Z",
            "deadline": "2026-01-01T00:10:00Z",
        },
    },
}
OLD_LOAN: dict[str, Any] = {
    "metadata": META,
    "spec": {
        "trainer": {"name": "t", "uid": "u"},
        "node": "n",
        "gpus": ["GPU-1"],
        "rolloutRef": {"name": "r", "namespace": "pearl"},
    },
    "status": {"epoch": 4, "phase": "Serving", "slots": [{"pod": "t-borrower-0"}]},
}


def objects(body: dict[str, Any], path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the objects inside are."""
    yield path
    for name, value in body.items():
        if isinstance(value, dict):
            yield from objects(value, (*path, name))
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            yield from objects(value[0], (*path, name, 0))


def with_unknown(body: dict[str, Any], path: tuple[Any, ...]) -> dict[str, Any]:
    changed = deepcopy(body)
    inner: Any = changed
    for step in path:
        inner = inner[step]
    inner["ofAnotherRelease"] = {"a": 1}
    return changed


def test_objects_that_were_stored_before_a_field_existed_are_read() -> None:
    fact = rollout_fact(OLD_ROLLOUT)
    assert fact.problem is None
    assert fact.spec is not None
    assert fact.spec.idle.after_seconds == 1800
    assert fact.status.target is not None
    loan = loan_fact(OLD_LOAN)
    assert loan is not None
    assert (loan.status.epoch, loan.spec.access) == (4, "VisibleDevices")


@pytest.mark.parametrize("path", [path for path in objects(OLD_LOAN) if path and path != ("metadata",)], ids=str)
def test_a_loan_with_fields_of_another_release_keeps_its_epoch(path: tuple[Any, ...]) -> None:
    loan = loan_fact(with_unknown(OLD_LOAN, path))
    assert loan is not None
    assert loan == loan_fact(OLD_LOAN)


@pytest.mark.parametrize("path", list(objects(OLD_ROLLOUT["status"])), ids=str)
def test_a_status_with_fields_of_another_release_keeps_its_target(path: tuple[Any, ...]) -> None:
    fact = rollout_fact(with_unknown(OLD_ROLLOUT, ("status", *path)))
    assert fact.status == rollout_fact(OLD_ROLLOUT).status
    assert fact.status.target is not None


def test_a_wish_of_another_release_is_told_and_not_passed_over() -> None:
    fact = rollout_fact(with_unknown(OLD_ROLLOUT, ("spec", "engine")))
    assert fact.spec is None
    assert fact.problem is not None
    assert fact.problem.startswith("spec.engine.ofAnotherRelease: ")


def test_what_is_wrong_beside_an_unknown_field_is_wrong_still() -> None:
    body = with_unknown(OLD_LOAN, ("status",))
    body["status"]["epoch"] = "many"
    assert loan_fact(body) is None
