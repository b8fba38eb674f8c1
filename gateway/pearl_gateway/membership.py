"""Where the fleet's facts come from: a watch on pods in a cluster, or a file on a laptop and in tests.

Addresses come only from here and are used only through `fleet`: a pod that comes back has a new one.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any, Protocol

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
    from pathlib import Path

    from pearl_gateway.gateway import Routing

_LOG = logging.getLogger(__name__)
_BACKOFF_SECONDS = (0.1, 0.2, 0.5)
_WATCH_SECONDS = 300
_GONE = 410
_FILE_SECONDS = 0.25


class Membership(Protocol):
    """Keeps a fleet up to date until it is cancelled."""

    async def run(self, fleet: Fleet, known: Callable[[], None]) -> None:
        """Feed `fleet`; call `known` whenever a complete list was taken over."""


class FileMembership:
    """Workers from a JSON file, looked at again whenever it changes.

    The file is a list of objects with `url` and optionally `pod`, `uid`, `agentUrl`, `role`, `roleEpoch`, `activity`,
    `ready` and `borrowed`; what is missing means a colocated, active, ready worker.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    async def run(self, fleet: Fleet, known: Callable[[], None]) -> None:
        """See `Membership`; a file that cannot be read changes nothing and is reported once per change."""
        seen: int | None = None
        while True:
            stamp = self._path.stat().st_mtime_ns if self._path.exists() else None
            if stamp != seen:
                seen = stamp
                try:
                    fleet.replace(read_workers(self._path.read_text()))
                    known()
                except (OSError, ValueError) as error:
                    _LOG.warning("%s: %s", self._path, error)
            await asyncio.sleep(_FILE_SECONDS)


def read_workers(text: str) -> list[WorkerFacts]:
    """Workers of a static file.

    Raises:
        ValueError: not a list of objects with `url`, or a field cannot be meant.
    """
    entries = json.loads(text)
    if not isinstance(entries, list) or not all(isinstance(one, dict) and one.get("url") for one in entries):
        raise ValueError('write a list of objects with `url`, for example [{"url": "http://127.0.0.1:8000"}]')
    return [_from_entry(index, entry) for index, entry in enumerate(entries)]


def _from_entry(index: int, entry: Mapping[str, Any]) -> WorkerFacts:
    pod = str(entry.get("pod") or f"worker-{index}")
    return WorkerFacts(
        uid=str(entry.get("uid") or pod),
        pod=pod,
        url=str(entry["url"]).rstrip("/"),
        agent_url=entry.get("agentUrl"),
        role=Role(entry.get("role", Role.COLOCATED)),
        role_epoch=int(entry.get("roleEpoch", 0)),
        activity=Activity(entry.get("activity", Activity.ACTIVE)),
        ready=bool(entry.get("ready", True)),
        borrowed=bool(entry.get("borrowed", False)),
    )


class PodMembership:
    """Worker pods of one rollout in its namespace, or its borrower pods in a trainer's, by list and watch."""

    def __init__(self, core: Any, rollout: str, namespace: str, rollout_namespace: str) -> None:
        self._core = core
        self._namespace = namespace
        labels = {LABEL_ROLLOUT: rollout, LABEL_COMPONENT: COMPONENT_WORKER}
        if namespace != rollout_namespace:
            labels[LABEL_ROLLOUT_NAMESPACE] = rollout_namespace
        self._selector = ",".join(f"{key}={value}" for key, value in labels.items())
        self._mine: set[str] = set()

    async def run(self, fleet: Fleet, known: Callable[[], None]) -> None:
        """See `Membership`."""

        async def listed() -> str:
            pods = await _raw(
                self._core.list_namespaced_pod_without_preload_content(
                    self._namespace, label_selector=self._selector, _request_timeout=30.0
                )
            )
            facts = [pod_facts(pod) for pod in pods["items"]]
            for uid in self._mine - {fact.uid for fact in facts}:
                fleet.remove(uid)
            for fact in facts:
                fleet.upsert(fact)
            self._mine = {fact.uid for fact in facts}
            known()
            return str(pods["metadata"]["resourceVersion"])

        def changed(kind: str, pod: dict[str, Any]) -> None:
            fact = pod_facts(pod)
            if kind == "DELETED":
                self._mine.discard(fact.uid)
                fleet.remove(fact.uid)
            else:
                self._mine.add(fact.uid)
                fleet.upsert(fact)

        await _list_and_watch(
            f"pods in {self._namespace}",
            listed,
            self._core.list_namespaced_pod,
            (self._namespace,),
            {"label_selector": self._selector},
            changed,
        )


class RolloutWatch:
    """Follows the own PearlRollout for the parameters that the operator sets."""

    def __init__(self, custom: Any, rollout: str, namespace: str, routing: Routing) -> None:
        self._custom = custom
        self._where = (GROUP, VERSION, namespace, "pearlrollouts")
        self._name = rollout
        self._routing = routing

    async def run(self) -> None:
        """Until cancelled."""
        selector = {"field_selector": f"metadata.name={self._name}"}

        async def listed() -> str:
            found = await self._custom.list_namespaced_custom_object(*self._where, **selector, _request_timeout=30.0)
            for rollout in found["items"]:
                apply_rollout(rollout, self._routing)
            return str(found["metadata"]["resourceVersion"])

        def changed(kind: str, rollout: dict[str, Any]) -> None:
            if kind != "DELETED":
                apply_rollout(rollout, self._routing)

        await _list_and_watch(
            f"PearlRollout {self._name}",
            listed,
            self._custom.list_namespaced_custom_object,
            self._where,
            selector,
            changed,
        )


def apply_rollout(rollout: Mapping[str, Any], routing: Routing) -> None:
    """Take over what the PearlRollout says; what it does not say stays as it is."""
    said = (rollout.get("status") or {}).get("routing")
    if said is not None:
        routing.local_append_tokens = int(said.get("localAppendTokens", routing.local_append_tokens))
        window = said.get("inFlightWindow")
        routing.window = None if window is None else int(window)
    weights = (rollout.get("spec") or {}).get("weights") or {}
    routing.max_staleness = int(weights.get("maxStaleness", routing.max_staleness))


def pod_facts(pod: Mapping[str, Any]) -> WorkerFacts:
    """Facts of a worker pod. A pod that is being deleted gets nothing new; unknown labels mean colocated and active."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    labels = metadata.get("labels") or {}
    address = status.get("podIP")
    host = f"[{address}]" if address and ":" in address else address
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or [])
    activity = Activity(labels.get(LABEL_ACTIVITY, Activity.ACTIVE))
    if metadata.get("deletionTimestamp") and activity is Activity.ACTIVE:
        activity = Activity.DRAINING
    return WorkerFacts(
        uid=metadata["uid"],
        pod=metadata["name"],
        url=f"http://{host}:{PORT_ENGINE}" if host else None,
        agent_url=f"http://{host}:{PORT_AGENT}" if host else None,
        role=Role(labels.get(LABEL_ROLE, Role.COLOCATED)),
        role_epoch=int(labels.get(LABEL_ROLE_EPOCH, "0")),
        activity=activity,
        ready=ready,
        borrowed=labels.get(LABEL_ZONE) == Zone.BORROWED,
    )


async def _raw(call: Awaitable[Any]) -> dict[str, Any]:
    """A list as plain dicts: no models are built for what is only read once."""
    response = await call
    body: dict[str, Any] = json.loads(await response.read())
    if response.status != 200:  # noqa: PLR2004 - these calls do not raise by themselves
        raise OSError(f"{response.status}: {body.get('message')}")
    return body


async def _list_and_watch(
    what: str,
    listed: Callable[[], Awaitable[str]],
    lister: Any,
    args: tuple[str, ...],
    kwargs: dict[str, str],
    changed: Callable[[str, dict[str, Any]], None],
) -> None:
    """List, then watch from there; after any error list again through the same code."""
    from kubernetes.aio import watch  # noqa: PLC0415 - seconds of imports that a laptop without a cluster does not need

    failures = 0
    while True:
        try:
            version = await listed()
            failures = 0
            while True:
                async with watch.Watch(return_type="object") as watcher:
                    async for event in watcher.stream(
                        lister,
                        *args,
                        **kwargs,
                        resource_version=version,
                        allow_watch_bookmarks=True,
                        timeout_seconds=_WATCH_SECONDS,
                        _request_timeout=_WATCH_SECONDS + 30.0,
                    ):
                        found = event["raw_object"] if "raw_object" in event else event["object"]
                        if event["type"] == "ERROR":
                            raise OSError(f"watch ended: {found.get('message')}")  # noqa: TRY301 - one way to list again
                        version = found["metadata"]["resourceVersion"]
                        if event["type"] != "BOOKMARK":
                            changed(event["type"], found)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - the supervised boundary: whatever it is, list again
            pause = _BACKOFF_SECONDS[min(failures, len(_BACKOFF_SECONDS) - 1)]
            failures += 1
            _LOG.warning("%s: %r; listing again in %.1f s", what, error, pause)
            await asyncio.sleep(pause)
