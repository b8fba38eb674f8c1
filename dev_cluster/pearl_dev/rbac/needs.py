"""What code needs each right, and what nobody may do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pearl_dev.rbac.matrix import Right, Where

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OPERATOR: Final = "pearl-operator"
GATEWAY: Final = "pearl-gateway"
CRDS: Final = "pearl-crds"
"""Of the hook that upgrades the CRDs; it lives for the hook only."""
_PACKAGES: Final = {OPERATOR: "pearl_operator", CRDS: "pearl_operator", GATEWAY: "pearl_gateway"}
_DEFINITIONS: Final = "customresourcedefinitions.apiextensions.k8s.io"
_LEASE: Final = ("pearl-operator",)
_KEYS: Final = ("pearl-operator-keys",)


@dataclass(frozen=True, slots=True)
class Need:
    """Rights that one module needs on one resource."""

    account: str
    where: Where
    resource: str
    verbs: tuple[str, ...]
    module: str
    why: str
    names: tuple[str, ...] = ()

    def rights(self) -> Iterator[Right]:
        """One for each verb."""
        return (Right(self.account, self.where, self.resource, verb, self.names) for verb in self.verbs)


def _needs(account: str, where: Where, *rows: tuple[str, str, str, str]) -> Iterator[Need]:
    """`resource` or `resource=NAME`, verbs, module, reason."""
    package = _PACKAGES[account]
    for resource, verbs, module, why in rows:
        plural, _, name = resource.partition("=")
        names = (name,) if name else ()
        yield Need(account, where, plural, tuple(verbs.split()), f"{package}.{module}", why, names)


NEEDS: Final = (
    *_needs(
        OPERATOR,
        Where.RELEASE,
        ("pearlrollouts.pearl.dev", "list watch", "watch", "follows them"),
        ("pearlrollouts.pearl.dev", "list", "resync", "compares the index with the cluster"),
        ("pearlrollouts.pearl.dev", "get", "validate", "reads again before a deletion"),
        ("pearlrollouts.pearl.dev", "get", "report", "reads again after a conflict"),
        ("pearlrollouts.pearl.dev", "get", "loans.follower", "whether a loan's rollout is there"),
        ("pearlrollouts.pearl.dev", "list", "uninstall", "names of what to delete"),
        ("pearlrollouts.pearl.dev/status", "patch", "report", "writes the status"),
        ("gpuloans.pearl.dev", "list watch", "watch", "follows them"),
        ("gpuloans.pearl.dev", "list", "resync", "compares the index with the cluster"),
        ("gpuloans.pearl.dev", "get create delete", "loans.store", "enrols trainers"),
        ("gpuloans.pearl.dev", "list", "uninstall", "names of what to delete"),
        ("gpuloans.pearl.dev/status", "patch", "loans.store", "writes the status"),
        ("pods", "list watch", "watch", "follows those of rollouts"),
        ("pods", "list", "resync", "compares the index with the cluster"),
        ("pods", "get create patch delete", "act", "makes, labels and removes workers"),
        ("pods", "get", "validate", "reads again before a deletion"),
        ("pods", "create", "preflight", "asks whether a pod would be taken"),
        ("pods", "get", "loans.enroller", "reads the trainer that calls"),
        ("pods", "get create delete", "loans.store", "makes and removes borrowers"),
        ("pods", "list delete", "uninstall", "cleans up"),
        ("deployments.apps", "get create patch", "children", "keeps the gateway"),
        ("deployments.apps", "get patch list delete", "uninstall", "stops the operator, cleans up"),
        ("services", "create patch", "children", "keeps the gateway's address"),
        ("services", "list delete", "uninstall", "cleans up"),
        ("poddisruptionbudgets.policy", "create patch", "children", "keeps the budget of drains"),
        ("poddisruptionbudgets.policy", "list delete", "uninstall", "cleans up"),
        ("horizontalpodautoscalers.autoscaling", "list", "scaling", "notices who else scales a gateway"),
        ("secrets", "create", "keys", "makes the release's key"),
        ("secrets", "create patch", "children", "hands out the tokens of a rollout"),
        ("secrets", "create patch delete", "loans.store", "hands out the tokens of a loan"),
        ("secrets", "delete", "uninstall", "cleans up"),
        ("secrets=pearl-operator-keys", "get", "keys", "reads the release's key"),
        ("events", "create", "report", "tells what was decided"),
        ("leases.coordination.k8s.io", "create", "lease", "makes its Lease"),
        ("leases.coordination.k8s.io=pearl-operator", "get patch", "lease", "holds its Lease"),
        ("leases.coordination.k8s.io=pearl-operator", "list watch", "watch", "whether watching works"),
        ("leases.coordination.k8s.io=pearl-operator", "delete", "uninstall", "cleans up"),
        ("resourceclaims.resource.k8s.io", "get", "loans.devices", "which GPUs a trainer holds"),
    ),
    *_needs(
        OPERATOR,
        Where.TRAINERS,
        ("gpuloans.pearl.dev", "list watch", "watch", "follows them"),
        ("gpuloans.pearl.dev", "list", "resync", "compares the index with the cluster"),
        ("gpuloans.pearl.dev", "get create delete", "loans.store", "enrols trainers"),
        ("gpuloans.pearl.dev", "list", "uninstall", "names of what to delete"),
        ("gpuloans.pearl.dev/status", "patch", "loans.store", "writes the status"),
        ("pods", "list watch", "watch", "follows borrowers"),
        ("pods", "list", "resync", "compares the index with the cluster"),
        ("pods", "get patch", "act", "labels borrowers"),
        ("pods", "get", "loans.enroller", "reads the trainer that calls"),
        ("pods", "get", "loans.follower", "whether a trainer is there"),
        ("pods", "get create delete", "loans.store", "makes and removes borrowers"),
        ("pods", "list delete", "uninstall", "cleans up"),
        ("secrets", "create patch delete", "loans.store", "hands out the tokens of a loan"),
        ("secrets", "delete", "uninstall", "cleans up"),
        ("pearlrollouts.pearl.dev", "list watch", "watch", "every watch is opened in every namespace"),
        (
            "leases.coordination.k8s.io=pearl-operator",
            "list watch",
            "watch",
            "every watch is opened in every namespace",
        ),
        ("resourceclaims.resource.k8s.io", "get", "loans.devices", "which GPUs a trainer holds"),
    ),
    *_needs(
        OPERATOR,
        Where.CLUSTER,
        ("nodes", "list watch", "watch", "which nodes end"),
        ("nodes", "list", "resync", "compares the index with the cluster"),
        ("tokenreviews.authentication.k8s.io", "create", "loans.identity", "who a trainer is"),
        ("resourceslices.resource.k8s.io", "list", "loans.devices", "UUIDs of GPUs behind a claim"),
        ("deviceclasses.resource.k8s.io", "list", "loans.devices", "which kinds of claims there are"),
    ),
    *_needs(
        CRDS,
        Where.CLUSTER,
        (f"{_DEFINITIONS}=pearlrollouts.pearl.dev", "get patch", "upgrade_crds", "upgrades it"),
        (f"{_DEFINITIONS}=gpuloans.pearl.dev", "get patch", "upgrade_crds", "upgrades it"),
    ),
    *_needs(
        GATEWAY,
        Where.RELEASE,
        ("pods", "list watch", "cluster", "whom to route to"),
        ("pearlrollouts.pearl.dev", "list watch", "cluster", "routing parameters of its own"),
    ),
    *_needs(GATEWAY, Where.TRAINERS, ("pods", "list watch", "cluster", "borrowers to route to")),
)


TAKES_AWAY: Final[dict[str, Callable[[Right], bool]]] = {
    "rbac.clusterScoped": lambda right: right.where is Where.CLUSTER,
    "sharedClaims.enabled": lambda right: right.resource.startswith(("resourceclaims.", "deviceclasses.")),
    "crds.upgrade": lambda right: right.account == CRDS,
}
"""Values of the chart that take rights away where they are false, and which."""


def _never(account: str, where: Where, resource: str, verbs: str) -> Iterator[Right]:
    return (Right(account, where, resource, verb) for verb in verbs.split())


NEVER: Final = (
    *_never(OPERATOR, Where.RELEASE, "secrets", "get list watch"),
    *_never(OPERATOR, Where.TRAINERS, "secrets", "get list watch"),
    *_never(OPERATOR, Where.RELEASE, "pearlrollouts.pearl.dev", "create patch update delete deletecollection"),
    *_never(OPERATOR, Where.RELEASE, "pods/exec", "create"),
    *_never(OPERATOR, Where.RELEASE, "serviceaccounts/token", "create"),
    *_never(OPERATOR, Where.RELEASE, "roles.rbac.authorization.k8s.io", "create patch update escalate bind"),
    *_never(OPERATOR, Where.TRAINERS, "deployments.apps", "get create patch delete"),
    *_never(OPERATOR, Where.TRAINERS, "resourceclaims.resource.k8s.io", "list create patch delete"),
    *_never(OPERATOR, Where.CLUSTER, "secrets", "get list watch create"),
    *_never(OPERATOR, Where.CLUSTER, "pods", "get list watch create delete"),
    *_never(OPERATOR, Where.CLUSTER, "nodes", "patch update delete"),
    *_never(OPERATOR, Where.CLUSTER, _DEFINITIONS, "create patch update delete"),
    *_never(CRDS, Where.CLUSTER, _DEFINITIONS, "list create update delete"),
    *_never(CRDS, Where.CLUSTER, "secrets", "get list watch create"),
    *_never(CRDS, Where.RELEASE, "pods", "get list create delete"),
    *_never(GATEWAY, Where.RELEASE, "secrets", "get list watch create"),
    *_never(GATEWAY, Where.RELEASE, "pods", "create patch update delete"),
    *_never(GATEWAY, Where.RELEASE, "pearlrollouts.pearl.dev/status", "patch update"),
    *_never(GATEWAY, Where.TRAINERS, "gpuloans.pearl.dev", "get list watch"),
    *_never(GATEWAY, Where.CLUSTER, "nodes", "get list"),
    *_never(GATEWAY, Where.CLUSTER, "pods", "list"),
)
"""What must be denied; in the cluster: `CLUSTER` means a namespace that the release does not know."""
