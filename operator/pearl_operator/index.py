"""What the watches saw, as small facts; every change wakes the loop of its rollout.

An index is stale by design: it may lag behind the API server, never run ahead of it. Objects that this process
wrote are put in as the API server returned them, and an older event about them is ignored, so that a loop never
acts twice on what it did itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pearl_api import names
from pearl_operator.facts import loan_fact, node_fact, pod_fact, rollout_fact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pearl_operator.facts import LoanFact, NodeFact, PodFact, RolloutFact
    from pearl_operator.ports import Clock, Object, RolloutKey

_NamespacedName = tuple[str, str]


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
    wake: Callable[[RolloutKey], None]
    rollouts: dict[RolloutKey, RolloutFact] = field(default_factory=dict)
    pods: dict[_NamespacedName, PodFact] = field(default_factory=dict)
    nodes: dict[str, NodeFact] = field(default_factory=dict)
    loans: dict[_NamespacedName, LoanFact] = field(default_factory=dict)
    last_event_at: float | None = None
    """Monotonic time of the last event of any watch; the operator's own Lease keeps one coming."""

    def touch(self) -> None:
        """A watch delivered something."""
        self.last_event_at = self.clock.monotonic()

    def put_rollout(self, body: Object) -> RolloutFact:
        """Takes in a PearlRollout; wakes its loop unless only the status changed."""
        fact = rollout_fact(body)
        known = self.rollouts.get(fact.key)
        if known is not None and known.uid == fact.uid and is_older(fact.resource_version, known.resource_version):
            return known
        self.rollouts[fact.key] = fact
        if known is None or _intent(known) != _intent(fact):
            self.wake(fact.key)
        return fact

    def drop_rollout(self, body: Object) -> None:
        """A PearlRollout is gone."""
        fact = rollout_fact(body)
        known = self.rollouts.get(fact.key)
        if known is not None and known.uid == fact.uid:
            del self.rollouts[fact.key]
            self.wake(fact.key)

    def put_pod(self, body: Object) -> PodFact | None:
        """Takes in a pod; None for a stranger."""
        fact = pod_fact(body)
        if fact is None:
            return None
        name = (fact.address.namespace, fact.address.name)
        known = self.pods.get(name)
        if known is not None and known.address.uid == fact.address.uid:
            if is_older(fact.resource_version, known.resource_version):
                return known
            fact = replace(fact, deleting=fact.deleting or known.deleting)
        self.pods[name] = fact
        if known is None or replace(known, resource_version="") != replace(fact, resource_version=""):
            self.wake(fact.rollout)
        return fact

    def drop_pod(self, body: Object) -> None:
        """A pod is gone."""
        fact = pod_fact(body)
        if fact is not None:
            self.forget_pod(fact.address.namespace, fact.address.name, fact.address.uid)

    def forget_pod(self, namespace: str, name: str, uid: str) -> None:
        """A pod is known to be gone."""
        known = self.pods.get((namespace, name))
        if known is not None and known.address.uid == uid:
            del self.pods[namespace, name]
            self.wake(known.rollout)

    def mark_deleting(self, namespace: str, name: str, uid: str) -> None:
        """This process asked for its deletion; the event that says so is on its way."""
        known = self.pods.get((namespace, name))
        if known is not None and known.address.uid == uid:
            self.pods[namespace, name] = replace(known, deleting=True)

    def put_node(self, body: Object) -> None:
        """Takes in a node; wakes the rollouts that have pods on it."""
        fact = node_fact(body)
        known = self.nodes.get(fact.name)
        if known == fact:
            return  # kubelets report every few seconds
        self.nodes[fact.name] = fact
        self._wake_pods_on(fact.name)

    def drop_node(self, body: Object) -> None:
        """A node is gone."""
        name = body["metadata"]["name"]
        if self.nodes.pop(name, None) is not None:
            self._wake_pods_on(name)

    def put_loan(self, body: Object) -> LoanFact | None:
        """Takes in a GPULoan; None where it is unreadable."""
        fact = loan_fact(body)
        if fact is None:
            return None
        name = (fact.namespace, fact.name)
        known = self.loans.get(name)
        if known is not None and known.uid == fact.uid and is_older(fact.resource_version, known.resource_version):
            return known
        self.loans[name] = fact
        self.wake(fact.rollout)
        return fact

    def drop_loan(self, body: Object) -> None:
        """A GPULoan is gone."""
        meta = body["metadata"]
        known = self.loans.get((meta["namespace"], meta["name"]))
        if known is not None and known.uid == meta["uid"]:
            del self.loans[known.namespace, known.name]
            self.wake(known.rollout)

    def pods_of(self, rollout: RolloutKey, component: str) -> list[PodFact]:
        """Pods of one component, by slot and incarnation."""
        found = (pod for pod in self.pods.values() if pod.rollout == rollout and pod.component == component)
        return sorted(found, key=lambda pod: (pod.rank, pod.address.name))

    def workers_of(self, rollout: RolloutKey) -> list[PodFact]:
        """Its worker pods, borrowers included."""
        return self.pods_of(rollout, names.COMPONENT_WORKER)

    def loans_of(self, rollout: RolloutKey) -> list[LoanFact]:
        """Its loans, by name."""
        found = (loan for loan in self.loans.values() if loan.rollout == rollout)
        return sorted(found, key=lambda loan: (loan.namespace, loan.name))

    def _wake_pods_on(self, node: str) -> None:
        self._wake_all({pod.rollout for pod in self.pods.values() if pod.node == node})

    def _wake_all(self, rollouts: Iterable[RolloutKey]) -> None:
        for rollout in sorted(rollouts):
            self.wake(rollout)


def _intent(fact: RolloutFact) -> tuple[object, ...]:
    """What a user can change; the operator's own status writes are none of it."""
    return (fact.uid, fact.generation, fact.deleting, fact.hold)
