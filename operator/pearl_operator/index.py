"""What the watches saw, as small facts; every change wakes the loop of its rollout.

An index is stale by design: it may lag behind the API server, never run ahead of it. Objects that this process
wrote are put in as the API server returned them, and an older event about them is ignored, so that a loop never
acts twice on what it did itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from pearl_api import names
from pearl_operator import kinds
from pearl_operator.facts import (
    LoanFact,
    NodeFact,
    PodFact,
    RolloutFact,
    loan_fact,
    node_fact,
    pod_fact,
    rollout_fact,
)
from pearl_operator.policy import gpu_products
from pearl_operator.ports import Object, RolloutKey

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pearl_operator.kinds import Kind
    from pearl_operator.ports import Clock

Fact = RolloutFact | PodFact | NodeFact | LoanFact
Key = RolloutKey | tuple[str, str] | str


def _nobody(_: RolloutKey) -> None:
    """Before there are loops."""


def is_older(version: str, than: str) -> bool:
    """True where resourceVersion `version` is certainly older; versions that are no numbers are not compared."""
    return version.isdigit() and than.isdigit() and int(version) < int(than)


@dataclass(slots=True)
class Index:
    """The facts of one operator process. Only its event loop touches them.

    Args:
        clock: For the age of the watches.
        wake: Called with the rollout that a change concerns.
    """

    clock: Clock
    wake: Callable[[RolloutKey], None] = _nobody
    rollouts: dict[RolloutKey, RolloutFact] = field(default_factory=dict)
    pods: dict[tuple[str, str], PodFact] = field(default_factory=dict)
    nodes: dict[str, NodeFact] = field(default_factory=dict)
    loans: dict[tuple[str, str], LoanFact] = field(default_factory=dict)
    last_event_at: float | None = None
    """Monotonic time of the last event of any watch; the operator's own Lease keeps one coming."""
    _gpu_products: tuple[str, ...] | None = field(default=None, init=False)
    """None = some node changed since they were collected."""
    _pods_of: dict[tuple[RolloutKey, str], list[PodFact]] = field(default_factory=dict, init=False)
    """By rollout and component, as far as somebody asked since the last change; a look of one rollout need not go
    through the pods of all."""

    _borrowers: tuple[PodFact, ...] | None = field(default=None, init=False)
    """None = some pod of a loan changed since they were collected."""

    def touch(self) -> None:
        """A watch delivered something."""
        self.last_event_at = self.clock.monotonic()

    def put(self, kind: Kind, body: Object) -> Fact | None:
        """Takes in an object as the API server sent it; None for one that is not ours."""
        fact, key = _READERS[kind](body), key_of(kind, body["metadata"])
        table = self.table(kind)
        known: Fact | None = table.get(key)
        if fact is None:  # lost its labels, or cannot be read
            self.forget(kind, key)
            return None
        if known is not None and _is_outdated(fact, known):
            return known
        if isinstance(fact, PodFact) and isinstance(known, PodFact) and known.address.uid == fact.address.uid:
            fact = replace(fact, deleting=fact.deleting or known.deleting)
        table[key] = fact
        self._changed(known, fact)
        if known is None or _matter(known) != _matter(fact):
            self._wake_for(fact)
        return fact

    def forget(self, kind: Kind, key: Key, uid: str | None = None) -> None:
        """An object is gone; one of the same name with another UID is not meant."""
        known = self.table(kind).get(key)
        if known is not None and (uid is None or _uid(known) in (None, uid)):
            del self.table(kind)[key]
            self._changed(known)
            self._wake_for(known)

    def table(self, kind: Kind) -> dict[Any, Any]:
        """The facts of one kind by `key_of`."""
        tables: dict[Kind, dict[Any, Any]] = {
            kinds.ROLLOUT: self.rollouts,
            kinds.POD: self.pods,
            kinds.NODE: self.nodes,
            kinds.LOAN: self.loans,
        }
        return tables[kind]

    def uid_of(self, rollout: RolloutKey) -> str | None:
        """UID of a PearlRollout; None where there is none."""
        found = self.rollouts.get(rollout)
        return found.uid if found is not None else None

    def put_pod(self, body: Object) -> None:
        """A pod that this process wrote or read."""
        self.put(kinds.POD, body)

    def put_rollout(self, body: Object) -> RolloutFact:
        """A PearlRollout that this process wrote or read."""
        fact = self.put(kinds.ROLLOUT, body)
        if not isinstance(fact, RolloutFact):
            raise TypeError(f"not a PearlRollout: {body.get('kind')}")
        return fact

    def put_loan(self, body: Object) -> LoanFact | None:
        """A GPULoan that this process wrote or read."""
        fact = self.put(kinds.LOAN, body)
        return fact if isinstance(fact, LoanFact) else None

    def mark_deleting(self, namespace: str, name: str, uid: str) -> None:
        """This process asked for its deletion; the event that says so is on its way."""
        known = self.pods.get((namespace, name))
        if known is not None and known.address.uid == uid:
            self.pods[namespace, name] = replace(known, deleting=True)
            self._changed(known)

    def pods_of(self, rollout: RolloutKey, component: str) -> list[PodFact]:
        """Pods of one component, by slot and incarnation."""
        known = self._pods_of.get((rollout, component))
        if known is None:
            found = (pod for pod in self.pods.values() if pod.rollout == rollout and pod.component == component)
            known = sorted(found, key=lambda pod: (pod.rank, pod.address.name))
            if known:  # what is empty never changes for the last time
                self._pods_of[rollout, component] = known
        return list(known)

    def workers_of(self, rollout: RolloutKey) -> list[PodFact]:
        """Its worker pods, borrowers included."""
        return self.pods_of(rollout, names.COMPONENT_WORKER)

    def borrowers(self) -> tuple[PodFact, ...]:
        """Pods of loans, of all rollouts."""
        if self._borrowers is None:
            self._borrowers = tuple(pod for pod in self.pods.values() if pod.loan)
        return self._borrowers

    def loans_of(self, rollout: RolloutKey) -> list[LoanFact]:
        """Its loans, by name."""
        found = (loan for loan in self.loans.values() if loan.rollout == rollout)
        return sorted(found, key=lambda loan: (loan.namespace, loan.name))

    def gpu_products(self) -> tuple[str, ...]:
        """The GPU products of all nodes; every look asks, and a thousand nodes hardly ever change."""
        if self._gpu_products is None:
            self._gpu_products = gpu_products(self.nodes.values())
        return self._gpu_products

    def _changed(self, *facts: Fact | None) -> None:
        for fact in facts:
            if isinstance(fact, PodFact):
                self._pods_of.pop((fact.rollout, fact.component), None)
                if fact.loan:
                    self._borrowers = None

    def _wake_for(self, fact: Fact) -> None:
        if isinstance(fact, RolloutFact):
            self.wake(fact.key)
        elif isinstance(fact, NodeFact):
            self._gpu_products = None
            for rollout in sorted({pod.rollout for pod in self.pods.values() if pod.node == fact.name}):
                self.wake(rollout)
        else:
            self.wake(fact.rollout)


_READERS: Final[dict[Kind, Callable[[Object], Fact | None]]] = {
    kinds.ROLLOUT: rollout_fact,
    kinds.POD: pod_fact,
    kinds.NODE: node_fact,
    kinds.LOAN: loan_fact,
}


def key_of(kind: Kind, meta: Mapping[str, Any]) -> Key:
    """Under which key an object with this metadata is indexed."""
    if kind == kinds.NODE:
        return str(meta["name"])
    if kind == kinds.ROLLOUT:
        return RolloutKey(meta["namespace"], meta["name"])
    return (str(meta["namespace"]), str(meta["name"]))


def _uid(fact: Fact) -> str | None:
    if isinstance(fact, PodFact):
        return fact.address.uid
    return None if isinstance(fact, NodeFact) else fact.uid


def _is_outdated(fact: Fact, known: Fact) -> bool:
    if isinstance(fact, NodeFact) or isinstance(known, NodeFact) or _uid(fact) != _uid(known):
        return False
    return is_older(fact.resource_version, known.resource_version)


def _matter(fact: Fact) -> object:
    """What a loop must look at: of a rollout what a user can change, of the others everything but the version."""
    if isinstance(fact, RolloutFact):
        return (fact.uid, fact.generation, fact.deleting, fact.hold)
    return fact if isinstance(fact, NodeFact) else replace(fact, resource_version="")
