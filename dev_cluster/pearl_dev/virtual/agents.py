"""Agents of simulated workers behind the operator's port."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pearl_api import names
from pearl_api.wire.worker import LoanState, WorkerPhase, WorkerState
from pearl_operator import kinds
from pearl_operator.errors import Unavailable

if TYPE_CHECKING:
    from pearl_api.wire.worker import ActivityRequest, GrantRequest
    from pearl_dev.virtual.data_plane import DataPlane
    from pearl_dev.virtual.kube import Object
    from pearl_operator.ports import PodAddress, RolloutKey


@dataclass
class SimulatedAgents:
    """As `ports.Agents`."""

    plane: DataPlane

    async def state(self, rollout: RolloutKey, pod: PodAddress) -> WorkerState:
        """A borrower tells of its loan, any other worker whether it serves."""
        del rollout
        borrower = self.plane.borrowers.get(pod.name)
        if borrower is not None and borrower.uid == pod.uid:
            return borrower.state()
        body = self.plane.kube.objects.get((kinds.POD.plural, pod.namespace, pod.name))
        if body is None or body["metadata"]["uid"] != pod.uid:
            raise Unavailable("the pod is gone")
        phase = WorkerPhase.READY if _is_ready(body) else WorkerPhase.STARTING
        return WorkerState(pod_uid=pod.uid, phase=phase, activity=names.Activity.ACTIVE, engine_starts=1)

    async def set_activity(self, rollout: RolloutKey, pod: PodAddress, request: ActivityRequest) -> WorkerState:
        """The simulated gateway follows the label; the agent has nothing to do."""
        del request
        return await self.state(rollout, pod)

    async def grant(self, rollout: RolloutKey, pod: PodAddress, request: GrantRequest) -> LoanState:
        """Starts or wakes the borrower's engine."""
        borrower = self.plane.borrowers.get(pod.name)
        if borrower is not None:
            borrower.grant(request.epoch)
        loan = (await self.state(rollout, pod)).loan
        if loan is None:
            raise Unavailable(f"{pod.name} is no borrower")
        return loan


def _is_ready(body: Object) -> bool:
    conditions = (body.get("status") or {}).get("conditions") or []
    return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)
