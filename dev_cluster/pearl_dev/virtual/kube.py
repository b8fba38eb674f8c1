"""An in-memory API server on virtual time.

It knows resourceVersion, UID preconditions, generation, field ownership (enough for server-side apply of labels) and
owner references; events reach watchers a moment later, as through a watch.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import operator
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from pearl_operator import kinds
from pearl_operator.clock import to_rfc3339
from pearl_operator.errors import AlreadyExists, Conflict, NotFound, Refused, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pearl_dev.virtual.clock import VirtualClock
    from pearl_operator.kinds import Kind

Object = dict[str, Any]
Objects = list[Object]
Body = TypeVar("Body")

WATCH_SECONDS = 0.02
STOP_SECONDS = 1.0
GC_SECONDS = 3.0


class Killed(BaseException):
    """The operator process dies here."""


def clone(body: Body) -> Body:
    """A copy as it comes over the wire: whatever is no JSON fails here."""
    copy: Body = json.loads(json.dumps(body))
    return copy


def deep_merge(base: Object, overlay: Object) -> Object:
    """`base` with the values of `overlay`, map by map."""
    merged = dict(base)
    for key, value in overlay.items():
        known = merged.get(key)
        merged[key] = deep_merge(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return merged


def without_leaves(base: Object, leaves: Object) -> Object:
    """`base` without the leaf paths of `leaves`."""
    left = dict(base)
    for key, value in leaves.items():
        if isinstance(value, dict) and isinstance(left.get(key), dict):
            left[key] = without_leaves(left[key], value)
        else:
            left.pop(key, None)
    return left


@dataclass
class FakeKube:
    """All objects of the cluster, and who watches them."""

    clock: VirtualClock
    objects: dict[tuple[str, str | None, str], Object] = field(default_factory=dict)
    watchers: list[Callable[[str, Kind, Object], None]] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    """`verb kind name` of every write that had an effect."""
    kill_after: int | None = None
    """The process dies right after this many further writes."""
    refuse: Callable[[Kind, Object], str | None] = lambda _kind, _body: None
    refuse_apply: Callable[[Kind, Object], str | None] = lambda _kind, _body: None
    forbidden: set[str] = field(default_factory=set)
    """Plurals that may not be listed."""
    status_conflicts: int = 0
    """So many further status writes meet a newer object."""
    down: bool = False
    dead: bool = False
    """The operator was killed; nothing that it still tries to do happens."""
    review: Callable[[Object], Object] | None = None
    """TokenReview: from its spec to its status."""
    _owned: dict[tuple[Any, ...], Object] = field(default_factory=dict)
    _events: deque[tuple[Callable[[str, Kind, Object], None], str, Kind, Object]] = field(default_factory=deque)
    _numbers: Any = field(default_factory=lambda: itertools.count(1))

    # --- what the operator calls

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object | None:
        """As `ports.Kube`."""
        self._check_up()
        found = self.objects.get((kind.plural, namespace, name))
        return clone(found)

    async def list(
        self,
        kind: Kind,
        namespace: str | None = None,
        labels: Mapping[str, str] | None = None,
        *,
        fields: Mapping[str, str] | None = None,
        heads: bool = False,
    ) -> Objects:
        """As `ports.Kube`, without field selectors."""
        self._check_up()
        if fields:
            raise NotImplementedError("field selectors")
        if kind.plural in self.forbidden:
            raise Refused(f"{kind.plural} is forbidden")
        return [
            clone({"metadata": each["metadata"]} if heads else each)
            for each in self.of(kind)
            if namespace in (None, each["metadata"].get("namespace"))
            and all(
                key in each["metadata"].get("labels", {}) and value in ("", each["metadata"]["labels"][key])
                for key, value in (labels or {}).items()
            )
        ]

    async def dry_run_create(self, kind: Kind, body: Object) -> None:
        """As `ports.Kube`."""
        self._check_up()
        sentence = self.refuse(kind, body)
        if sentence is not None:
            raise Refused(sentence)

    async def create(self, kind: Kind, body: Object) -> Object:
        """As `ports.Kube`."""
        await self.dry_run_create(kind, body)
        if kind is kinds.TOKEN_REVIEW and self.review is not None:
            return {"status": self.review(body["spec"])}
        meta = body["metadata"]
        key = (kind.plural, meta.get("namespace"), meta["name"])
        if key in self.objects:
            raise AlreadyExists(f"{kind.plural} {meta['name']} already exists")
        stored = self.store(kind, body)
        self._wrote("create", kind, meta["name"])
        return clone(stored)

    async def apply(self, kind: Kind, body: Object, *, manager: str, force: bool = True) -> Object:
        """As `ports.Kube`: server-side apply."""
        del force
        self._check_up()
        sentence = self.refuse_apply(kind, body)
        if sentence is not None:
            raise Refused(sentence)
        meta = body["metadata"]
        key = (kind.plural, meta.get("namespace"), meta["name"])
        known = self.objects.get(key)
        if "uid" in meta and (known is None or known["metadata"]["uid"] != meta["uid"]):
            raise Conflict("Precondition failed: UID in precondition differs")
        if known is None and kind is kinds.POD:
            raise Refused("spec.containers: Required value")
        version = meta.get("resourceVersion")
        if known is not None and version is not None and version != known["metadata"]["resourceVersion"]:
            raise Conflict("the object has been modified")
        content = {
            name: value for name, value in body.items() if name in ("spec", "data", "type", "immutable", "status")
        }
        content["metadata"] = {
            name: value for name, value in meta.items() if name in ("labels", "annotations", "ownerReferences")
        }
        if known is None:
            stored = self.store(kind, {**content, "metadata": {**content["metadata"], **_names(meta)}})
        else:
            before = self._only_of(key, manager)
            changed = deep_merge(without_leaves(known, before), content)
            changed["metadata"] = {**known["metadata"], **changed["metadata"]}
            if "labels" in known["metadata"] or "labels" in content["metadata"]:
                labels = without_leaves(
                    known["metadata"].get("labels", {}), before.get("metadata", {}).get("labels", {})
                )
                changed["metadata"]["labels"] = labels | content["metadata"].get("labels", {})
            if changed == known:
                return clone(known)
            fields = [entry for entry in known["metadata"].get("managedFields", []) if entry["manager"] != manager]
            changed["metadata"]["managedFields"] = [
                *fields,
                {"manager": manager, "time": to_rfc3339(self.clock.now(), digits="seconds")},
            ]
            stored = self.store(kind, changed)
        self._owned[*key, manager] = content
        self._wrote("apply", kind, meta["name"])
        return clone(stored)

    async def apply_status(self, kind: Kind, body: Object, *, manager: str) -> Object:
        """As `ports.Kube`: replaces the whole status."""
        del manager
        self._check_up()
        meta = body["metadata"]
        known = self.objects.get((kind.plural, meta.get("namespace"), meta["name"]))
        if known is None:
            raise NotFound(meta["name"])
        if self.status_conflicts:
            self.status_conflicts -= 1
            raise Conflict("the object has been modified")
        if meta.get("resourceVersion") not in (None, known["metadata"]["resourceVersion"]):
            raise Conflict("the object has been modified")
        stored = self.store(kind, {**known, "status": body["status"]})
        self._wrote("status", kind, meta["name"])
        return clone(stored)

    async def delete(
        self,
        kind: Kind,
        name: str,
        namespace: str | None,
        *,
        uid: str | None = None,
        grace_seconds: int | None = None,
    ) -> None:
        """As `ports.Kube`."""
        del grace_seconds
        self._check_up()
        known = self.objects.get((kind.plural, namespace, name))
        if known is None:
            return
        if uid not in (None, known["metadata"]["uid"]):
            raise Conflict("Precondition failed: UID")
        self.remove(kind, name, namespace)
        self._wrote("delete", kind, name)

    # --- what the rest of the cluster does

    def store(self, kind: Kind, body: Object) -> Object:
        """Writes as if somebody else did, without counting; sets uid, versions and generation."""
        meta = body["metadata"]
        key = (kind.plural, meta.get("namespace"), meta["name"])
        known = self.objects.get(key)
        number = str(next(self._numbers))
        stored = clone(body)
        generation = 1 if known is None else known["metadata"]["generation"]
        if known is not None and known.get("spec") != stored.get("spec"):
            generation += 1
        stored["metadata"] |= {
            "uid": known["metadata"]["uid"] if known else f"uid-{number}",
            "resourceVersion": number,
            "generation": generation,
            "creationTimestamp": known["metadata"]["creationTimestamp"] if known else to_rfc3339(self.clock.now()),
        }
        self.objects[key] = stored
        self._emit("MODIFIED" if known else "ADDED", kind, stored)
        return stored

    def remove(self, kind: Kind, name: str, namespace: str | None) -> None:
        """A pod first terminates; everything else is gone at once, with what it owns."""
        known = self.objects[kind.plural, namespace, name]
        if kind is kinds.POD:
            if "deletionTimestamp" not in known["metadata"]:
                meta = {**known["metadata"], "deletionTimestamp": to_rfc3339(self.clock.now())}
                self.store(kind, {**known, "metadata": meta})
                asyncio.get_running_loop().call_later(STOP_SECONDS, self.vanish, kind, name, namespace)
            return
        self.vanish(kind, name, namespace)

    def patch(self, kind: Kind, name: str, namespace: str | None, change: Object) -> None:
        """A merge patch by somebody else."""
        self.store(kind, deep_merge(self.objects[kind.plural, namespace, name], change))

    def scale(self, name: str, namespace: str, replicas: int, *, manager: str) -> None:
        """What an autoscaler or `kubectl scale` does to a Deployment."""
        key = (kinds.DEPLOYMENT.plural, namespace, name)
        change: Object = {"spec": {"replicas": replicas}}
        known = self.objects[key]["metadata"].get("managedFields", [])
        fields = {"manager": manager, "subresource": "scale", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
        kept = [entry for entry in known if entry["manager"] != manager]
        self._owned[*key, manager] = change
        self.patch(kinds.DEPLOYMENT, name, namespace, {**change, "metadata": {"managedFields": [*kept, fields]}})

    def _only_of(self, key: tuple[str, str | None, str], manager: str) -> Object:
        """What this manager owns and no other does; giving that up removes it."""
        alone = self._owned.get((*key, manager), {})
        for (*owned, other), fields in self._owned.items():
            if tuple(owned) == key and other != manager:
                alone = without_leaves(alone, fields)
        return alone

    def of(self, kind: Kind) -> Objects:
        """All of a kind, in the order of their names."""
        found = [(str(key), each) for key, each in self.objects.items() if key[0] == kind.plural]
        return [each for _, each in sorted(found, key=operator.itemgetter(0))]

    def vanish(self, kind: Kind, name: str, namespace: str | None) -> None:
        """It is gone at once; what it owns follows."""
        known = self.objects.pop((kind.plural, namespace, name), None)
        if known is None:
            return
        for owned in [each for each in self._owned if each[:3] == (kind.plural, namespace, name)]:
            del self._owned[owned]
        self._emit("DELETED", kind, known)
        asyncio.get_running_loop().call_later(GC_SECONDS, self._collect, known["metadata"]["uid"])

    def _collect(self, owner: str) -> None:
        """The garbage collector."""
        for plural, where, child in list(self.objects):
            body = self.objects.get((plural, where, child))
            owners = (body or {}).get("metadata", {}).get("ownerReferences", [])
            if owner in {each["uid"] for each in owners}:
                self.remove(KIND_OF[plural], child, where)

    def _wrote(self, verb: str, kind: Kind, name: str) -> None:
        self.writes.append(f"{verb} {kind.kind} {name}")
        if self.kill_after is not None:
            self.kill_after -= 1
            if self.kill_after <= 0:
                self.kill_after, self.dead = None, True
                raise Killed(self.writes[-1])

    def _emit(self, event: str, kind: Kind, body: Object) -> None:
        for watcher in self.watchers:
            self._events.append((watcher, event, kind, clone(body)))
            asyncio.get_running_loop().call_later(WATCH_SECONDS, self._deliver)

    def _deliver(self) -> None:
        """In the order of the writes, also where several fall on the same instant."""
        watcher, event, kind, body = self._events.popleft()
        watcher(event, kind, body)

    def _check_up(self) -> None:
        if self.dead:
            raise Killed
        if self.down:
            raise Unavailable("the API server is down")


def _names(meta: Object) -> Object:
    return {name: meta[name] for name in ("name", "namespace") if name in meta}


KIND_OF = {
    kind.plural: kind
    for kind in (
        kinds.POD,
        kinds.NODE,
        kinds.SECRET,
        kinds.SERVICE,
        kinds.EVENT,
        kinds.DEPLOYMENT,
        kinds.AUTOSCALER,
        kinds.DISRUPTION_BUDGET,
        kinds.ROLLOUT,
        kinds.LOAN,
        kinds.LEASE,
    )
}
