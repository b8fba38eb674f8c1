"""What was decided, what is wanted, and what is predicted, as Prometheus sees it beside what then happens."""

from __future__ import annotations

from collections import Counter as Count
from typing import TYPE_CHECKING

from prometheus_client import Counter

from pearl_operator.gauges import ROLLOUT, Counted, Known

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from pearl_operator.look import Look
    from pearl_operator.ports import RolloutKey
    from pearl_planner.types import Batch, Plan, Prediction


class PlanMetrics:
    """Series about plans, in the operator's registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._decisions = Counter(
            "pearl_decisions",
            "Looks by the reason of what they decided, see decision-reasons.md.",
            (*ROLLOUT, "reason"),
            registry=registry,
        )
        self._wanted = Counted(
            "pearl_workers_wanted", "Workers of the present target by zone and role.", ("zone", "role"), registry
        )
        self._turns = Known(
            "pearl_predicted_turns_per_second",
            "Of the shape that was decided for, as the planner predicts; absent while it predicts nothing.",
            (),
            registry,
        )
        self._rest = Known(
            "pearl_predicted_rest_seconds",
            "Until the open batch is complete, as the planner predicts; absent where shapes differ too little in it.",
            (),
            registry,
        )
        self._open = Known("pearl_batch_open_seconds", "Age of the oldest open batch.", (), registry)
        self._trajectories = Known(
            "pearl_batch_trajectories",
            "Trajectories of the oldest open batch: `wanted`, `started` and `finished` ones.",
            ("state",),
            registry,
        )
        self._deadline = Known(
            "pearl_reclaim_deadline_seconds", "spec.policy.deadlines.reclaimSeconds of the rollout.", (), registry
        )

    def looked(self, look: Look) -> None:
        """A complete look."""
        key, plan = look.rollout.key, look.plan
        self._decisions.labels(key.namespace, key.name, plan.reason.value).inc()
        slots = plan.target.slots if plan.target is not None else ()
        self._wanted.set(key, Count((slot.zone.value, slot.role.value) for slot in slots))
        predicted = _of_shape(plan)
        self._turns.set(key, None if predicted is None else predicted.turns_per_second)
        self._rest.set(key, None if predicted is None else predicted.makespan_seconds)
        self._deadline.set(key, look.spec.policy.deadlines.reclaim_seconds)
        self._batch(key, look.snapshot.batch)

    def _batch(self, key: RolloutKey, batch: Batch | None) -> None:
        self._open.set(key, None if batch is None else batch.elapsed_seconds)
        self._trajectories.set(key, None if batch is None else batch.groups * batch.group_size, "wanted")
        self._trajectories.set(key, None if batch is None else batch.started, "started")
        self._trajectories.set(key, None if batch is None else batch.finished, "finished")

    def forget(self, key: RolloutKey) -> None:
        """The rollout is gone."""
        self._decisions.remove_by_labels(dict(zip(ROLLOUT, (key.namespace, key.name), strict=True)))
        for family in (self._wanted, self._turns, self._rest, self._open, self._trajectories, self._deadline):
            family.forget(key)


def _of_shape(plan: Plan) -> Prediction | None:
    """What is predicted for the shape that was decided for."""
    return next((each for each in plan.finalists if each.shape == plan.shape), None)
