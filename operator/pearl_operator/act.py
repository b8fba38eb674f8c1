"""Carries out one action of a plan; every write names the pod by UID, or a name that only one pod can have."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pearl_api import names
from pearl_api.wire.worker import ActivityRequest
from pearl_operator import kinds, validate
from pearl_operator.errors import AlreadyExists, Conflict, NotFound, Refused
from pearl_operator.facts import pod_fact
from pearl_operator.resources.worker import worker_pod
from pearl_planner.types import (
    Activity,
    AnswerLoan,
    CreateWorker,
    DeleteWorker,
    SetActivity,
    SetRole,
)

if TYPE_CHECKING:
    from pearl_operator.facts import PodFact, RolloutFact
    from pearl_operator.index import Index
    from pearl_operator.look import Look
    from pearl_operator.ports import Agents, Kube, RolloutKey
    from pearl_operator.sources import Sources
    from pearl_planner.types import Action, Loan

log = logging.getLogger("pearl.action")


class Loans(Protocol):
    """What the loop needs of the loan service."""

    async def answer(self, action: AnswerLoan, rollout: RolloutFact) -> None:
        """Grants or refuses the loan that waits."""

    async def sync(self, rollout: RolloutFact) -> None:
        """Records phases, prunes borrowers; at every look."""

    def decided(self, look: Look) -> None:
        """Hears of every decision; offers that come before the next one are answered from it."""

    def planner_loans(self, rollout: RolloutKey) -> tuple[Loan, ...]:
        """The planner's view of its loans, offers that wait included."""


@dataclass(frozen=True, slots=True)
class Actor:
    """Acts for one rollout."""

    kube: Kube
    agents: Agents
    loans: Loans
    index: Index
    sources: Sources

    async def carry_out(self, action: Action, look: Look) -> None:
        """One action, once. Repeating it after a crash is harmless.

        Raises:
            RetryAfter: Look again first.
            Refused: The API server does not take the pod; the message is its sentence.
        """
        log.info("action", extra={"rollout": str(look.rollout.key), "action": repr(action)})
        if isinstance(action, CreateWorker):
            await self._create(action, look)
        elif isinstance(action, DeleteWorker):
            await self._delete(action, look)
        elif isinstance(action, SetRole):
            pod = self._pod(action.uid)
            await self._label(pod, role=action.role.value, epoch=action.epoch, activity=pod.activity)
        elif isinstance(action, SetActivity):
            await self._set_activity(action, look)
        else:
            await self.loans.answer(action, look.rollout)

    async def _create(self, action: CreateWorker, look: Look) -> None:
        target = look.plan.target
        epoch = target.id if target is not None else 0
        body = worker_pod(look.rollout, look.spec, action.slot, role_epoch=epoch)
        try:
            stored = await self.kube.create(kinds.POD, body)
        except AlreadyExists:
            stored = await self._existing(body["metadata"]["name"], look)
        self.index.put_pod(stored)

    async def _existing(self, name: str, look: Look) -> dict[str, object]:
        """The index was stale, or an earlier rollout's pod is still terminating."""
        stored = await self.kube.get(kinds.POD, name, look.rollout.key.namespace)
        fact = pod_fact(stored) if stored is not None else None
        if stored is None or fact is None or fact.owner_uid != look.rollout.uid:
            raise Conflict(f"pod {name} belongs to something else or is going away", seconds=1.0)
        return stored

    async def _delete(self, action: DeleteWorker, look: Look) -> None:
        pod = await validate.deletion(action, look, self.kube, self.sources)
        namespace = look.rollout.key.namespace
        if pod is None:
            self.index.forget(kinds.POD, (namespace, action.pod), action.uid)
            return
        await self.kube.delete(kinds.POD, action.pod, namespace, uid=action.uid)
        self.index.mark_deleting(namespace, action.pod, action.uid)

    async def _set_activity(self, action: SetActivity, look: Look) -> None:
        """The label first, which stops the routing; then the agent, whose state is observed back."""
        pod = self._pod(action.uid)
        await self._label(pod, role=pod.role or "", epoch=pod.role_epoch, activity=action.activity.value)
        if action.activity is Activity.DRAINING:
            return
        request = ActivityRequest(
            activity=names.Activity(action.activity.value),
            deadline_seconds=look.spec.policy.deadlines.drain_seconds,
        )
        await self.agents.set_activity(look.rollout.key, pod.address, request)

    async def _label(self, pod: PodFact, *, role: str, epoch: int, activity: str) -> None:
        """All three labels in one apply, because the role manager owns exactly what it applies."""
        labels = {
            names.LABEL_ROLE: role,
            names.LABEL_ROLE_EPOCH: str(epoch),
            names.LABEL_ACTIVITY: activity,
        }
        address = pod.address
        meta = {"name": address.name, "namespace": address.namespace, "uid": address.uid, "labels": labels}
        try:
            stored = await self.kube.apply(kinds.POD, {"metadata": meta}, manager=names.FIELD_MANAGER_ROLE)
        except (Conflict, NotFound, Refused) as error:
            # Applying to a pod that is gone means creating one, which the API server refuses in several ways.
            await self._reread(pod)
            raise Conflict(f"{address.name} changed before it could be labelled: {error}", seconds=0.2) from error
        self.index.put_pod(stored)

    async def _reread(self, pod: PodFact) -> None:
        address = pod.address
        stored = await self.kube.get(kinds.POD, address.name, address.namespace)
        if stored is None or stored["metadata"]["uid"] != address.uid:
            self.index.forget(kinds.POD, (address.namespace, address.name), address.uid)
        else:
            self.index.put_pod(stored)

    def _pod(self, uid: str) -> PodFact:
        found = next((pod for pod in self.index.pods.values() if pod.address.uid == uid), None)
        if found is None:
            raise Conflict(f"pod with UID {uid} is gone", seconds=0.1)
        return found
