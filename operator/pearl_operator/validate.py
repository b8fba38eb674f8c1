"""The last look before something is taken away: reads from the API server what the decision rested on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl_api.names import Activity
from pearl_operator import kinds
from pearl_operator.errors import Conflict, OperatorError
from pearl_operator.facts import pod_fact
from pearl_planner.types import WorkerState

if TYPE_CHECKING:
    from pearl_operator.facts import PodFact
    from pearl_operator.look import Look
    from pearl_operator.ports import Kube
    from pearl_operator.sources import Sources
    from pearl_planner.types import DeleteWorker, Worker

_BUSY = (WorkerState.READY, WorkerState.UNREADY)
"""States in which a worker may hold requests."""


async def deletion(action: DeleteWorker, look: Look, kube: Kube, sources: Sources) -> PodFact | None:
    """The pod to delete, or None where it is gone already.

    Raises:
        Conflict: Something that the decision rested on is different now; the message says what.
    """
    await _same_generation(look, kube)
    worker = next((each for each in look.snapshot.workers if each.uid == action.uid), None)
    namespace = look.rollout.key.namespace
    body = await kube.get(kinds.POD, action.pod, namespace)
    pod = pod_fact(body) if body is not None else None
    if pod is None or pod.address.uid != action.uid:
        return None
    if worker is not None and worker.state in _BUSY and not await _drained(pod, worker, look, sources):
        raise Conflict(f"{action.pod} is not drained", seconds=0.5)
    return pod


async def _same_generation(look: Look, kube: Kube) -> None:
    body = await kube.get(kinds.ROLLOUT, look.rollout.key.name, look.rollout.key.namespace)
    meta = (body or {}).get("metadata", {})
    if meta.get("uid") != look.rollout.uid or meta.get("deletionTimestamp"):
        raise Conflict(f"PearlRollout {look.rollout.key} is going away")
    if meta.get("generation") != look.rollout.generation:
        raise Conflict(f"spec of {look.rollout.key} changed since the decision")


async def _drained(pod: PodFact, worker: Worker, look: Look, sources: Sources) -> bool:
    """Not routed to any more, and empty by a fresh count; past the drain deadline an unknown or old count will do."""
    if pod.activity == Activity.ACTIVE:
        return False
    overdue = (worker.draining_seconds or 0.0) >= look.spec.policy.deadlines.drain_seconds
    if overdue:
        return True
    try:
        return await sources.in_flight(pod.address.uid) == 0
    except OperatorError:
        return False
