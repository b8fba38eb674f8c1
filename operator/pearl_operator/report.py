"""The status of a rollout: one complete value per look, applied when it says something new.

A decision is written before it is acted on. Changed conditions and counts are written at once too; changed numbers
wait a few seconds, and everything else at most a minute.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pearl_api import names
from pearl_api.conditions import ConditionReason, ConditionType
from pearl_api.rollout import (
    Decision,
    Finalist,
    PearlRolloutStatus,
    Routing,
    WeightsStatus,
    WorkerCounts,
)
from pearl_operator import kinds
from pearl_operator.clock import to_rfc3339
from pearl_operator.conditions import Verdict, conditions, shortened, stamped, unreadable
from pearl_operator.errors import Conflict, OperatorError, described
from pearl_operator.look import serves
from pearl_operator.status_codec import target_to_status
from pearl_planner.serialize import dumps
from pearl_planner.types import Reason, Role, WorkerState, Zone

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pearl_operator.facts import RolloutFact
    from pearl_operator.index import Index
    from pearl_operator.look import Look
    from pearl_operator.ports import Clock, Kube, Object
    from pearl_planner.types import Prediction, Worker

log = logging.getLogger("pearl.decision")

MAX_STATUS_BYTES: Final = 32 * 1024
_MAX_MESSAGE: Final = 2048
_NUMBERS_EVERY_SECONDS: Final = 5.0
_ALL_EVERY_SECONDS: Final = 60.0


def status_of(look: Look, previous: PearlRolloutStatus) -> PearlRolloutStatus:
    """The complete status after a look."""
    plan, workers = look.plan, look.snapshot.workers
    alive = [worker for worker in workers if worker.state is not WorkerState.TERMINATING]
    counts = _counts(alive)
    stats = look.samples.stats
    return PearlRolloutStatus(
        observed_generation=look.rollout.generation,
        mode=_mode(alive),
        workers=counts,
        gpus=sum(worker.gpus for worker in workers if _holds(worker)),
        ready=f"{counts.ready}/{counts.total}",
        target=target_to_status(plan.target) if plan.target is not None else None,
        last_decision=_decision(look, previous.last_decision),
        routing=Routing(
            local_append_tokens=plan.routing.local_append_tokens, in_flight_window=plan.routing.in_flight_window
        ),
        recommended_in_flight=plan.recommended_in_flight,
        weights=WeightsStatus(wanted=stats.weights_wanted, min=stats.weights_min, max=stats.weights_max)
        if stats is not None
        else previous.weights,
        gateway_url=look.gateway_url,
        memory=dumps(plan.memory),
        conditions=conditions(look, previous.conditions),
    )


def _holds(worker: Worker) -> bool:
    """A pod that ends holds its GPUs until it has; a borrower then does no more, and its trainer has left with them."""
    if worker.state is WorkerState.TERMINATING:
        return worker.zone is not Zone.BORROWED
    return worker.state is not WorkerState.COLD


def status_unreadable(rollout: RolloutFact, now: float) -> PearlRolloutStatus:
    """What is written where the spec cannot be read; everything else stays as it was."""
    told = unreadable(rollout.problem or "", rollout.status.conditions, generation=rollout.generation, now=now)
    return rollout.status.model_copy(update={"observed_generation": rollout.generation, "conditions": told})


def status_after_bug(rollout: RolloutFact, error: Exception, now: float) -> PearlRolloutStatus:
    """The last status with Degraded/InternalError; nothing else is known to have changed."""
    told = f"the operator failed and tries again: {described(error)}; its log has the traceback"
    bug = Verdict("True", ConditionReason.INTERNAL_ERROR, told)
    before = rollout.status.conditions
    degraded = stamped({ConditionType.DEGRADED: bug}, before, generation=rollout.generation, now=now)
    others = [condition for condition in before if condition.type is not ConditionType.DEGRADED]
    return rollout.status.model_copy(update={"conditions": [*others, *degraded]})


def _counts(alive: list[Worker]) -> WorkerCounts:
    used = [worker for worker in alive if worker.state is not WorkerState.COLD]
    roles, zones = Counter(worker.role for worker in used), Counter(worker.zone for worker in used)
    gpus = Counter[Role]()
    for worker in used:
        gpus[worker.role] += worker.gpus
    return WorkerCounts(
        prefill=roles[Role.PREFILL],
        decode=roles[Role.DECODE],
        colocated=roles[Role.COLOCATED],
        ready=sum(1 for worker in used if serves(worker)),
        total=len(used),
        reserved=zones[Zone.RESERVED],
        elastic=zones[Zone.ELASTIC],
        borrowed=zones[Zone.BORROWED],
        prefill_gpus=gpus[Role.PREFILL],
        decode_gpus=gpus[Role.DECODE],
        colocated_gpus=gpus[Role.COLOCATED],
    )


def _mode(alive: list[Worker]) -> str | None:
    roles = {worker.role for worker in alive if worker.state is not WorkerState.COLD}
    if not roles:
        return None
    if Role.COLOCATED not in roles:
        return "Disaggregated"
    return "Colocated" if roles == {Role.COLOCATED} else "Mixed"


def _decision(look: Look, previous: Decision | None) -> Decision:
    """What was decided last; being on the way to it is no decision of its own, PlanProgressing tells it."""
    plan = look.plan
    if plan.reason is Reason.PLAN_IN_PROGRESS and previous is not None and previous.shape == str(plan.shape):
        return previous
    same = previous is not None and (previous.reason, previous.shape) == (plan.reason.value, str(plan.shape))
    return Decision(
        time=previous.time if same and previous is not None else to_rfc3339(look.now),
        reason=plan.reason.value,
        message=shortened(plan.message, _MAX_MESSAGE),
        shape=str(plan.shape),
        finalists=[_finalist(each) for each in plan.finalists[:5]],
    )


def _finalist(prediction: Prediction) -> Finalist:
    return Finalist(
        shape=str(prediction.shape),
        makespan_seconds=_short(prediction.makespan_seconds),
        turns_per_second=_short(prediction.turns_per_second),
        switch_cost_seconds=_short(prediction.switch_cost_seconds),
        feasible=prediction.feasible,
        note=shortened(prediction.note, 256),
    )


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def to_wire(status: PearlRolloutStatus) -> dict[str, Any]:
    """The status as JSON within its size limit: explanations go first, never the target."""
    wire = _without_empty(status.model_dump(mode="json", by_alias=True, exclude_none=True))
    if _size(wire) > MAX_STATUS_BYTES and "lastDecision" in wire:
        wire["lastDecision"]["finalists"] = []
        wire["lastDecision"]["message"] = shortened(wire["lastDecision"]["message"], 256)
    if _size(wire) > MAX_STATUS_BYTES:
        for condition in wire["conditions"]:
            condition["message"] = shortened(condition["message"], 128)
    return wire


def _without_empty(value: dict[str, Any]) -> dict[str, Any]:
    """Leaves out empty objects: where an earlier apply owned their fields, the API server would make them null."""
    pruned = {key: _without_empty(each) if isinstance(each, dict) else each for key, each in value.items()}
    return {key: each for key, each in pruned.items() if each != {}}


def _size(wire: dict[str, Any]) -> int:
    return len(json.dumps(wire, separators=(",", ":")).encode())


@dataclass(slots=True)
class Reporter:
    """Writes the status of one rollout, and tells people about decisions."""

    kube: Kube
    index: Index
    clock: Clock
    identity: str
    _written_at: float | None = field(default=None, init=False)
    _told: tuple[Any, ...] | None = field(default=None, init=False)
    _told_scaled: str | None = field(default=None, init=False)

    async def write(self, rollout: RolloutFact, status: PearlRolloutStatus) -> RolloutFact:
        """Applies the status if it is due; the rollout as it is afterwards.

        Raises:
            Conflict: The object changed since the look began; what was decided is not written.
        """
        if not self._due(rollout.status, status):
            return rollout
        key = rollout.key
        body: Object = {
            "metadata": {"name": key.name, "namespace": key.namespace, "resourceVersion": rollout.resource_version},
            "status": to_wire(status),
        }
        try:
            stored = await self.kube.apply_status(kinds.ROLLOUT, body, manager=names.FIELD_MANAGER)
        except Conflict:
            await self._refresh(rollout)
            raise
        self._written_at = self.clock.monotonic()
        return self.index.put_rollout(stored)

    async def _refresh(self, rollout: RolloutFact) -> None:
        stored = await self.kube.get(kinds.ROLLOUT, rollout.key.name, rollout.key.namespace)
        if stored is not None:
            self.index.put_rollout(stored)

    def _due(self, before: PearlRolloutStatus, after: PearlRolloutStatus) -> bool:
        if _headlines(before) != _headlines(after):
            return True
        if self._written_at is None:  # just started: what the predecessor wrote will do for a while
            self._written_at = self.clock.monotonic()
        waited = self.clock.monotonic() - self._written_at
        if _numbers(before) != _numbers(after):
            return waited >= _NUMBERS_EVERY_SECONDS
        return before != after and waited >= _ALL_EVERY_SECONDS

    async def tell(self, look: Look) -> None:
        """One log line per decision, one Event per new target, per dropped one and per writer of our replicas."""
        await self._tell_scaled(look)
        plan = look.plan
        target_id = plan.target.id if plan.target is not None else None
        before = look.rollout.status.target
        is_new = plan.target is not None and (before is None or before.id != target_id)
        told = (target_id, plan.reason, str(plan.shape), look.abandoned)
        if told == self._told:
            return
        dropped = look.abandoned is not None and self._told is not None and self._told[3] != look.abandoned
        self._told = told
        log.info(
            "decision",
            extra={
                "rollout": str(look.rollout.key),
                "target": target_id,
                "reason": plan.reason.value,
                "shape": str(plan.shape),
                "numbers": plan.message,
                "actions": [type(action).__name__ for action in plan.actions],
                "finalists": [_finalist(each).model_dump(exclude_none=True) for each in plan.finalists[:5]],
            },
        )
        if dropped and look.abandoned is not None:
            await self._event(look.rollout, "Warning", "PlanAbandoned", look.abandoned)
        if is_new:
            await self._event(look.rollout, "Normal", plan.reason.value, plan.message)

    async def _tell_scaled(self, look: Look) -> None:
        if look.gateway_scaled == self._told_scaled:
            return
        self._told_scaled = look.gateway_scaled
        if look.gateway_scaled is not None:
            await self._event(look.rollout, "Warning", ConditionReason.GATEWAY_SCALED.value, look.gateway_scaled)

    async def _event(self, rollout: RolloutFact, kind: str, reason: str, text: str) -> None:
        """Events are for people; failing to write one is only logged."""
        now = self.clock.now()
        body: Object = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"namespace": rollout.key.namespace, "name": f"{rollout.key.name}.{round(now * 1e6):x}"},
            "involvedObject": {
                "apiVersion": names.API_VERSION,
                "kind": "PearlRollout",
                "name": rollout.key.name,
                "namespace": rollout.key.namespace,
                "uid": rollout.uid,
            },
            "type": kind,
            "reason": reason,
            "message": shortened(text, 1000),
            "source": {"component": "pearl-operator", "host": self.identity},
            "reportingComponent": "pearl.dev/operator",
            "reportingInstance": self.identity,
            "firstTimestamp": to_rfc3339(now, digits="seconds"),
            "lastTimestamp": to_rfc3339(now, digits="seconds"),
            "count": 1,
        }
        try:
            await self.kube.create(kinds.EVENT, body)
        except OperatorError as error:
            log.warning("event not written", extra={"rollout": str(rollout.key), "error": str(error)})


def _headlines(status: PearlRolloutStatus) -> tuple[Any, ...]:
    """What somebody may wait for."""
    decision = status.last_decision
    return (
        status.observed_generation,
        status.target,
        (decision.reason, decision.shape) if decision is not None else None,
        status.mode,
        status.workers,
        status.gateway_url,
        _verdicts(status),
    )


def _verdicts(status: PearlRolloutStatus) -> Iterable[tuple[Any, ...]]:
    return [(each.type, each.status, each.reason, each.observed_generation) for each in status.conditions]


def _numbers(status: PearlRolloutStatus) -> tuple[Any, ...]:
    """What the gateway and people follow; ages in the sentences about metrics are nobody's news."""
    told = [each.message for each in status.conditions if each.type is not ConditionType.METRICS_AVAILABLE]
    return (status.routing, status.recommended_in_flight, status.weights, status.gpus, status.ready, told)
