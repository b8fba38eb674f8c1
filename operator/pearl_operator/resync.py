"""Lists what the watches should have told, at start and once a minute: a silent watch is healed and noticed."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pearl_api import names
from pearl_operator import kinds
from pearl_operator.errors import OperatorError
from pearl_operator.facts import NodeFact
from pearl_operator.index import key_of
from pearl_operator.ports import RolloutKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pearl_operator.index import Fact, Index, Key
    from pearl_operator.kinds import Kind
    from pearl_operator.ports import Clock, Kube, Object
    from pearl_operator.settings import Settings

log = logging.getLogger("pearl.resync")

EVERY_SECONDS = 60.0
_MOST_READ_ALONE = 16
"""Objects that are read one by one before all are listed."""


@dataclass(slots=True)
class Resync:
    """Compares the index with the API server."""

    kube: Kube
    index: Index
    clock: Clock
    settings: Settings
    rounds: int = field(default=0, init=False)
    """Complete rounds so far."""
    repairs: dict[str, int] = field(default_factory=dict, init=False)
    """By plural: rounds in a row that found something its watch had not told of."""

    async def run(self) -> None:
        """For ever; the first round is `once`, before any loop starts."""
        while True:
            await self.clock.sleep(EVERY_SECONDS)
            try:
                await self.once()
            except OperatorError as error:
                log.warning("resync postponed", extra={"error": str(error)})

    async def once(self) -> None:
        """One round over all kinds and namespaces."""
        missed = Counter[str]()
        for namespace in self.settings.namespaces:
            missed[kinds.POD.plural] += await self._round(kinds.POD, namespace, {names.LABEL_ROLLOUT: ""})
            missed[kinds.LOAN.plural] += await self._round(kinds.LOAN, namespace)
        if self.settings.cluster_scoped:
            missed[kinds.NODE.plural] += await self._round(kinds.NODE, None)
        missed[kinds.ROLLOUT.plural] += await self._round(kinds.ROLLOUT, self.settings.namespace)
        self.rounds += 1
        if self.rounds > 1:  # the first one fills the index
            self.repairs = {plural: self.repairs.get(plural, 0) + 1 for plural, count in missed.items() if count}
        if self.repairs:
            log.info("resync", extra={"repaired": dict(missed)})

    async def _round(self, kind: Kind, namespace: str | None, labels: Mapping[str, str] | None = None) -> int:
        """Puts what is there and forgets what was known before the list and is not in it; returns what was lacking."""
        table = self.index.table(kind)
        before = {key: fact for key, fact in table.items() if _namespace_of(key) == namespace}
        lacking = 0
        present = set()
        for body in await self._present(kind, namespace, labels, before):
            key = key_of(kind, body["metadata"])
            present.add(key)
            if _is_known(before.get(key), body):
                continue
            told = table.get(key)  # meanwhile, perhaps
            fact = self.index.put(kind, body)
            lacking += fact is not None and _differs(told, fact)
        for key in before.keys() - present:
            if table.get(key) is before[key]:
                self.index.forget(kind, key)
                lacking += 1
        return lacking

    async def _present(
        self, kind: Kind, namespace: str | None, labels: Mapping[str, str] | None, before: Mapping[Any, Fact]
    ) -> list[Object]:
        """What is there; of pods in versions that are known only the metadata, a fifth of a list of thousands."""
        if kind is not kinds.POD or not before:
            return await self.kube.list(kind, namespace, labels)
        heads = await self.kube.list(kind, namespace, labels, heads=True)
        present = {key_of(kind, head["metadata"]): head for head in heads}
        other = [key for key, head in present.items() if not _is_known(before.get(key), head)]
        if len(other) > _MOST_READ_ALONE:
            return await self.kube.list(kind, namespace, labels)
        for key in other:
            body = await self.kube.get(kind, present[key]["metadata"]["name"], namespace)
            if body is None:
                del present[key]
            else:
                present[key] = body
        return list(present.values())


def _is_known(before: Fact | None, body: Object) -> bool:
    """Whether the very same version is indexed, so that it need not be read again."""
    if before is None or isinstance(before, NodeFact):
        return False
    version: str | None = body["metadata"].get("resourceVersion")
    return before.resource_version == version


def _differs(before: Fact | None, after: Fact) -> bool:
    """Whether the watch was behind."""
    if before is None or isinstance(before, NodeFact) or isinstance(after, NodeFact):
        return before is None
    return before.resource_version != after.resource_version


def _namespace_of(key: Key) -> str | None:
    if isinstance(key, RolloutKey):
        return key.namespace
    return key[0] if isinstance(key, tuple) else None
