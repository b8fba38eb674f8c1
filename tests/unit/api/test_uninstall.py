"""The chart's pre-delete hook against a Kubernetes made of dicts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pearl_operator import kinds
from pearl_operator.settings import Settings
from pearl_operator.uninstall import Uninstall

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pearl_operator.kinds import Kind

SETTINGS = Settings(namespace="pearl", gateway_image="i", trainer_namespaces=("trainers", "pearl"))


@dataclass
class DictKube:
    """Stores objects; pods go only once `clock` has moved, as real ones end."""

    objects: dict[tuple[str, str, str], dict[str, Any]] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    ending: list[tuple[str, str, str]] = field(default_factory=list)

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        return self.objects.get((kind.plural, namespace or "", name))

    async def list(
        self, kind: Kind, namespace: str | None = None, labels: Mapping[str, str] | None = None
    ) -> list[dict[str, Any]]:
        assert kind is not kinds.SECRET, "nobody may list Secrets"

        def fits(own: Mapping[str, str]) -> bool:
            return all(key in own and value in ("", own[key]) for key, value in (labels or {}).items())

        return [
            item
            for (plural, where, _), item in self.objects.items()
            if plural == kind.plural and where == namespace and fits(item["metadata"]["labels"])
        ]

    async def apply(self, kind: Kind, body: dict[str, Any], *, manager: str, force: bool = True) -> dict[str, Any]:
        assert (kind, manager, force) == (kinds.DEPLOYMENT, "pearl-uninstall", True)
        self.log.append(f"replicas {body['spec']['replicas']}")
        self.ending += [key for key in self.objects if key[0] == "pods" and key[2].startswith("operator")]
        return body

    async def delete(self, kind: Kind, name: str, namespace: str | None, **_: Any) -> None:
        key = (kind.plural, namespace or "", name)
        self.log.append(f"delete {kind.plural}/{name}")
        if kind is kinds.POD:
            self.ending.append(key)
        else:
            self.objects.pop(key, None)

    async def sleep(self, seconds: float) -> None:
        assert seconds > 0
        while self.ending:
            self.objects.pop(self.ending.pop(), None)

    def names(self) -> set[str]:
        return {name for _, _, name in self.objects}


async def test_everything_of_the_rollouts_goes_and_what_is_not_ours_stays() -> None:
    kube = DictKube()
    ours = {"app.kubernetes.io/managed-by": "pearl-operator", "pearl.dev/rollout": "r"}
    borrowed = {**ours, "pearl.dev/rollout-namespace": "pearl"}
    elsewhere = {**ours, "pearl.dev/rollout-namespace": "another-release"}
    for kind, name, namespace, own in (
        (kinds.DEPLOYMENT, "pearl-operator", "pearl", {}),
        (kinds.POD, "operator-1", "pearl", {"app.kubernetes.io/name": "pearl-operator"}),
        (kinds.POD, "r-w0-0", "pearl", ours),
        (kinds.DEPLOYMENT, "r-gateway", "pearl", ours),
        (kinds.SERVICE, "r-gateway", "pearl", ours),
        (kinds.SECRET, "pearl-operator-keys", "pearl", {}),
        (kinds.SECRET, "r-pearl-worker", "pearl", ours),
        (kinds.SECRET, "r-pearl-gateway", "pearl", ours),
        (kinds.SECRET, "r-pearl-client", "pearl", ours),
        (kinds.DISRUPTION_BUDGET, "r-workers", "pearl", ours),
        (kinds.LEASE, "pearl-operator", "pearl", {}),
        (kinds.POD, "t-borrower-0", "trainers", borrowed),
        (kinds.SECRET, "t-pearl-worker", "trainers", {"pearl.dev/loan": "t"}),
        (kinds.SECRET, "other-pearl-worker", "trainers", {"pearl.dev/loan": "other"}),
        (kinds.POD, "of-another-release", "trainers", elsewhere),
        (kinds.SECRET, "of-the-user", "pearl", {}),
        (kinds.ROLLOUT, "r", "pearl", {}),
        (kinds.LOAN, "t", "trainers", {"pearl.dev/rollout-namespace": "pearl"}),
        (kinds.LOAN, "other", "trainers", {"pearl.dev/rollout-namespace": "another-release"}),
    ):
        kube.objects[kind.plural, namespace, name] = {
            "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}", "labels": own}
        }
    deleted = await Uninstall(kube, kube, SETTINGS).run()  # type: ignore[arg-type]
    assert deleted == 10
    assert kube.names() == {
        *("pearl-operator", "of-the-user", "r", "t"),
        *("of-another-release", "other-pearl-worker", "other"),
    }
    assert ("leases", "pearl", "pearl-operator") not in kube.objects
    assert kube.log[0] == "replicas 0"  # else the operator would make everything anew
