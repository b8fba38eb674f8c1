"""kopf as the watch layer: `on.event` only, so nothing is written, no finalizer is set, and deletion never waits.

Every event goes into the index. The operator's own Lease is watched too: it changes every few seconds, so the age of
the last event tells whether watching works at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import kopf

from pearl_api import names
from pearl_operator import kinds
from pearl_operator.index import key_of
from pearl_operator.unstored import NoDifferences, NoProgress
from pearl_operator.watch_calls import session_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pearl_operator.calls import Calls
    from pearl_operator.index import Index
    from pearl_operator.kinds import Kind
    from pearl_operator.settings import Settings

_WATCH_SECONDS: Final = 300  # whole seconds, as the API server wants them


def build_registry(index: Index, settings: Settings, calls: Calls) -> kopf.OperatorRegistry:
    """Handlers of one operator process; a registry of its own, no global one."""
    registry = kopf.OperatorRegistry()
    watched = [kinds.ROLLOUT, kinds.POD, kinds.LOAN]
    if settings.cluster_scoped:
        watched.append(kinds.NODE)
    for kind in watched:
        _feed(registry, index, kind)

    @kopf.on.event(kinds.LEASE.group, kinds.LEASE.version, kinds.LEASE.plural, registry=registry, id="heartbeat")
    async def heartbeat(**_: Any) -> None:
        index.touch()

    @kopf.on.login(registry=registry, id="login")
    async def login(**kwargs: Any) -> kopf.AiohttpSession | None:
        found = kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)
        return None if found is None else session_of(found, calls)

    return registry


def _feed(registry: kopf.OperatorRegistry, index: Index, kind: Kind) -> None:

    @kopf.on.event(kind.group, kind.version, kind.plural, registry=registry, id=f"index-{kind.plural}")
    async def feed(event: Mapping[str, Any], **_: Any) -> None:
        index.touch()
        body = dict(event["object"])
        if event["type"] == "DELETED":
            index.forget(kind, key_of(kind, body["metadata"]), body["metadata"].get("uid"))
        else:
            index.put(kind, body)


def kopf_settings(settings: Settings) -> kopf.OperatorSettings:
    """Server-side selectors, quick reconnects, and nothing of kopf's that writes."""
    tuned = kopf.OperatorSettings()
    tuned.scanning.disabled = True  # no rights on CRDs and namespaces
    tuned.peering.standalone = True  # the Lease keeps operators apart
    tuned.posting.enabled = False
    tuned.persistence.diffbase_storage = NoDifferences()
    tuned.persistence.progress_storage = NoProgress()
    tuned.watching.server_timeout = _WATCH_SECONDS
    tuned.watching.client_timeout = _WATCH_SECONDS + 30
    tuned.watching.connect_timeout = 5.0
    tuned.watching.label_selectors["v1", "pods"] = names.LABEL_ROLLOUT
    tuned.watching.field_selectors[kinds.LEASE.group, kinds.LEASE.version, kinds.LEASE.plural] = (
        f"metadata.name={settings.lease_name}"
    )
    tuned.networking.error_backoffs = [0.1, 0.2, 0.5, 1, 2]
    tuned.networking.request_timeout = 30.0
    tuned.execution.max_workers = 1
    return tuned
