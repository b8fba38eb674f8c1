"""The page `docs/reference/rbac.md`."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

from pearl_api.reference import table
from pearl_dev.rbac.matrix import Right, Where
from pearl_dev.rbac.needs import CRDS, GATEWAY, NEEDS, NEVER, OPERATOR, TAKES_AWAY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_GENERATED: Final = "<!-- Generated from pearl_dev.rbac by `make docs`; change that, not this file. -->\n\n# RBAC"
_INTRO: Final = """Every right of every ServiceAccount that the chart makes, and the code that needs it; tests compare
both with the chart as helm renders it. Where the last column names a value, the right goes with it.
`rbac.clusterScoped: false` leaves Roles in the release namespace and in `trainerNamespaces`, and no other namespace is
ever watched.

No rule has a wildcard. Of Secrets only the one with the release's key may be read. The others are written: `patch` is
server-side apply, whose answer holds the object, so whoever has the operator's token can read a Secret whose name they
know, but find none."""
_ACCOUNTS: Final = {
    OPERATOR: "The operator, and the pod that cleans up before `helm uninstall`.",
    CRDS: "The pod that upgrades the CRDs before `helm install` and `helm upgrade`; its rights go with it.",
    GATEWAY: "The gateways of all rollouts of the release.",
}
_NONE: Final = """## Workers and trainers

They have no right at all. Worker pods, borrowers too, mount no ServiceAccount token
(`automountServiceAccountToken: false`). A trainer pod mounts a token of the audience `pearl`, which the API server does
not take; the operator has it reviewed to learn which pod calls."""
_ORDER: Final = ("get", "list", "watch", "create", "patch", "delete")


def page() -> str:
    """Markdown, one table for each ServiceAccount."""
    needed = {right for need in NEEDS for right in need.rights()}
    parts = [_GENERATED, _INTRO]
    for account, whose in _ACCOUNTS.items():
        header = ("where", "resource", "verbs", "needed by", "goes with")
        rows = _rows([each for each in needed if each.account == account])
        parts += [f"## {account}", whose, table(header, rows)]
    parts += [_NONE, "## Denied", _DENIED, table(("who", "where", "resource", "verbs"), _denied())]
    return "\n\n".join(parts) + "\n"


_DENIED: Final = (
    "Tests ask the API server for each of these and expect a no; *cluster* here means other namespaces too."
)


def _rows(needed: list[Right]) -> Iterator[tuple[str, ...]]:
    places = list(Where)
    needed.sort(key=lambda each: (places.index(each.where), each.resource, each.names, _ORDER.index(each.verb)))
    for (where, resource, names), each in groupby(needed, key=lambda each: (each.where, each.resource, each.names)):
        row = list(each)
        goes = ", ".join(f"`{value}: false`" for value, takes in TAKES_AWAY.items() if all(map(takes, row)))
        only = "".join(f", only `{name}`" for name in names)
        verbs = ", ".join(right.verb for right in row)
        yield str(where), f"`{resource}`{only}", verbs, _needed_by(row), goes


def _needed_by(row: list[Right]) -> str:
    """Modules with their reasons."""
    needs = [need for need in NEEDS if set(need.rights()) & set(row)]
    return "; ".join(f"`{need.module.partition('.')[2]}` {need.why}" for need in needs)


def _denied() -> Iterable[tuple[str, ...]]:
    for (account, where, resource), each in groupby(NEVER, key=lambda each: (each.account, each.where, each.resource)):
        yield account, str(where), f"`{resource}`", ", ".join(right.verb for right in each)
