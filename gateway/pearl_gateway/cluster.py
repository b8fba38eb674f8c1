"""What the cluster says: worker pods and the own PearlRollout, each by list and watch.

After any error the list is read again through the same code, so nothing is missed that a broken watch did not tell.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar

from pearl_api import tokens
from pearl_api.names import (
    COMPONENT_WORKER,
    GROUP,
    LABEL_ACTIVITY,
    LABEL_COMPONENT,
    LABEL_ROLE,
    LABEL_ROLE_EPOCH,
    LABEL_ROLLOUT,
    LABEL_ROLLOUT_NAMESPACE,
    LABEL_ZONE,
    PORT_AGENT,
    PORT_ENGINE,
    VERSION,
    Activity,
    Role,
    Zone,
)
from pearl_gateway.fleet import Fleet, WorkerFacts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from pearl_gateway.gateway import Routing

E = TypeVar("E", bound=StrEnum)
_LOG = logging.getLogger(__name__)
_BACKOFF_SECONDS = (0.1, 0.2, 0.5)
_WATCH_SECONDS = 300
_LIST_SECONDS = 30.0


class PodMembership:
    """Worker pods of one rollout in its namespace, or its borrower pods in a trainer's."""

    def __init__(self, core: Any, rollout: str, namespace: str, rollout_namespace: str) -> None:
        self._core = core
        self._namespace = namespace
        labels = {LABEL_ROLLOUT: rollout, LABEL_COMPONENT: COMPONENT_WORKER}
        if namespace != rollout_namespace:
            labels[LABEL_ROLLOUT_NAMESPACE] = rollout_namespace
        self._home = rollout_namespace
        self._selector = ",".join(f"{key}={value}" for key, value in labels.items())
        self._mine: set[str] = set()

    async def run(self, fleet: Fleet, known: Callable[[], None]) -> None:
        """See `Membership`."""

        async def listed() -> str:
            pods = await self._list()
            facts = [pod_facts(pod, self._home) for pod in pods["items"]]
            for uid in self._mine - {fact.uid for fact in facts}:
                fleet.remove(uid)
            for fact in facts:
                fleet.upsert(fact)
            self._mine = {fact.uid for fact in facts}
            known()
            return str(pods["metadata"]["resourceVersion"])

        def changed(kind: str, pod: dict[str, Any]) -> None:
            fact = pod_facts(pod, self._home)
            if kind == "DELETED":
                self._mine.discard(fact.uid)
                fleet.remove(fact.uid)
            else:
                self._mine.add(fact.uid)
                fleet.upsert(fact)

        args = {"namespace": self._namespace, "label_selector": self._selector}
        what = _Watched(f"pods in {self._namespace}", self._core.list_namespaced_pod, args)
        await _list_and_watch(what, listed, changed)

    async def _list(self) -> dict[str, Any]:
        """The list as plain dicts: no models are built for what is only read once."""
        response = await self._core.list_namespaced_pod_without_preload_content(
            self._namespace, label_selector=self._selector, _request_timeout=_LIST_SECONDS
        )
        body: dict[str, Any] = json.loads(await response.read())
        if response.status != HTTPStatus.OK:
            # This form of the call does not raise by itself.
            raise OSError(f"{response.status}: {body.get('message')}")
        return body


class RolloutWatch:
    """Follows the own PearlRollout for the parameters that the operator sets."""

    def __init__(self, custom: Any, rollout: str, namespace: str, routing: Routing) -> None:
        self._custom = custom
        self._where = {"group": GROUP, "version": VERSION, "namespace": namespace, "plural": "pearlrollouts"}
        self._where["field_selector"] = f"metadata.name={rollout}"
        self._name = rollout
        self._routing = routing

    async def run(self) -> None:
        """Until cancelled."""

        async def listed() -> str:
            found = await self._custom.list_namespaced_custom_object(**self._where, _request_timeout=_LIST_SECONDS)
            for rollout in found["items"]:
                apply_rollout(rollout, self._routing)
            return str(found["metadata"]["resourceVersion"])

        def changed(kind: str, rollout: dict[str, Any]) -> None:
            if kind != "DELETED":
                apply_rollout(rollout, self._routing)

        what = _Watched(f"PearlRollout {self._name}", self._custom.list_namespaced_custom_object, self._where)
        await _list_and_watch(what, listed, changed)


def apply_rollout(rollout: Mapping[str, Any], routing: Routing) -> None:
    """Take over what the PearlRollout says; what it does not say stays as it is."""
    said = (rollout.get("status") or {}).get("routing")
    if said is not None:
        routing.local_append_tokens = int(said.get("localAppendTokens", routing.local_append_tokens))
        window = said.get("inFlightWindow")
        routing.window = None if window is None else int(window)
    weights = (rollout.get("spec") or {}).get("weights") or {}
    routing.max_staleness = int(weights.get("maxStaleness", routing.max_staleness))
    routing.on_exceed = str(weights.get("onExceed", routing.on_exceed))
    routing.rollout = weights.get("rollout", routing.rollout)
    routing.on_update = str(weights.get("onUpdate", routing.on_update))
    routing.measured_from = str(weights.get("measuredFrom", routing.measured_from))


def pod_facts(pod: Mapping[str, Any], home: str | None = None) -> WorkerFacts:
    """Facts of a worker pod. A pod that is being deleted gets nothing new; unknown labels mean colocated and active.

    `home`: the rollout's namespace; None = the pod's. A pod elsewhere is sent no token but its loan's, whatever its
    labels are.
    """
    metadata, status = pod["metadata"], pod.get("status") or {}
    labels = metadata.get("labels") or {}
    address = status.get("podIP")
    host = f"[{address}]" if address and ":" in address else address
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or [])
    activity = _known(Activity, labels.get(LABEL_ACTIVITY), Activity.ACTIVE)
    epoch = str(labels.get(LABEL_ROLE_EPOCH, ""))
    if metadata.get("deletionTimestamp") and activity is Activity.ACTIVE:
        activity = Activity.DRAINING
    return WorkerFacts(
        uid=metadata["uid"],
        pod=metadata["name"],
        url=f"http://{host}:{PORT_ENGINE}" if host else None,
        agent_url=f"http://{host}:{PORT_AGENT}" if host else None,
        role=_known(Role, labels.get(LABEL_ROLE), Role.COLOCATED),
        role_epoch=int(epoch) if epoch.isdigit() else 0,
        activity=activity,
        ready=ready,
        borrowed=labels.get(LABEL_ZONE) == Zone.BORROWED,
        lender=tokens.lender_of(metadata, home),
    )


def _known(kind: type[E], value: Any, default: E) -> E:
    """A label's value; one that somebody mistyped must not stop the watch."""
    return kind(value) if value in list(kind) else default


@dataclass(frozen=True, slots=True)
class _Watched:
    name: str
    lister: Any
    """The client's list call that the watch repeats with `watch=true`."""
    args: dict[str, str]


async def _list_and_watch(
    what: _Watched, listed: Callable[[], Awaitable[str]], changed: Callable[[str, dict[str, Any]], None]
) -> None:
    """List, then watch from there; after any error list again through the same code. Never returns."""
    failures = 0
    while True:
        try:
            version = await listed()
            failures = 0
            while True:
                version = await _watch(what, version, changed)
        except Exception as error:  # noqa: BLE001 - the supervised boundary: whatever it is, list again
            pause = _BACKOFF_SECONDS[min(failures, len(_BACKOFF_SECONDS) - 1)]
            failures += 1
            _LOG.warning("%s: %r; listing again in %.1f s", what.name, error, pause)
            await asyncio.sleep(pause)


async def _watch(what: _Watched, version: str, changed: Callable[[str, dict[str, Any]], None]) -> str:
    """One watch until the server ends it; the version to go on from."""
    from kubernetes.aio import watch  # noqa: PLC0415 - seconds of imports that a laptop without a cluster does not need

    async with watch.Watch(return_type="object") as watcher:  # type: ignore[no-untyped-call]
        async for event in watcher.stream(
            what.lister,
            **what.args,
            resource_version=version,
            allow_watch_bookmarks=True,
            timeout_seconds=_WATCH_SECONDS,
            _request_timeout=_WATCH_SECONDS + 30.0,
        ):
            found = event.get("raw_object", event["object"])
            if event["type"] == "ERROR":
                raise OSError(f"the server ended the watch: {found.get('message')}")
            version = found["metadata"]["resourceVersion"]
            if event["type"] != "BOOKMARK":
                changed(event["type"], found)
    return version
