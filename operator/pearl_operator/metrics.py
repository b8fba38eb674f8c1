"""What the operator says of itself to Prometheus; label sets of a rollout go when it goes."""

from __future__ import annotations

from collections import Counter as Count
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from pearl_operator.gauges import ROLLOUT, Counted, Known
from pearl_operator.look import serves
from pearl_operator.plan_metrics import PlanMetrics
from pearl_planner.types import WorkerState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pearl_api.conditions import Condition
    from pearl_operator.dcgm import GpuUse
    from pearl_operator.look import Look
    from pearl_operator.ports import RolloutKey
    from pearl_planner.types import Action, Worker

_STATUSES = ("True", "False", "Unknown")


class Metrics:
    """All series of one operator process, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._look_seconds = Histogram(
            "pearl_look_seconds",
            "Duration of one look at a rollout: observe, plan, act, report.",
            ROLLOUT,
            registry=self.registry,
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
        )
        self._reaction_seconds = Histogram(
            "pearl_reaction_seconds",
            "From a change that wakes a rollout's loop until each write that the next look sends, without what the "
            "API server was waited for meanwhile.",
            ROLLOUT,
            registry=self.registry,
            buckets=(0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5),
        )
        self._failures = Counter(
            "pearl_look_failures", "Looks that ended with an error.", (*ROLLOUT, "error"), registry=self.registry
        )
        self._actions = Counter("pearl_actions", "Actions carried out.", (*ROLLOUT, "action"), registry=self.registry)
        self._workers = Counted(
            "pearl_workers", "Workers by zone, role and state.", ("zone", "role", "state"), self.registry
        )
        self._serving = Gauge(
            "pearl_workers_serving", "Workers that turns are routed to.", ROLLOUT, registry=self.registry
        )
        self._target = Gauge("pearl_target_id", "Number of the present target.", ROLLOUT, registry=self.registry)
        self._gateway_age = Gauge(
            "pearl_gateway_statistics_age_seconds", "Age of the gateway's statistics.", ROLLOUT, registry=self.registry
        )
        self._condition = Gauge(
            "pearl_condition",
            "1 for the present status (True, False, Unknown) of each condition, 0 for the others.",
            (*ROLLOUT, "type", "status"),
            registry=self.registry,
        )
        self._condition_reason = Counted(
            "pearl_condition_reason",
            "1 for the present reason of each condition, 0 for those before; see conditions.md.",
            ("type", "reason"),
            self.registry,
        )
        self._model_scale = Known(
            "pearl_model_scale",
            "Measured over predicted step time, of all workers or of those that only decode; 1 = as the table says.",
            ("steps",),
            self.registry,
        )
        self._gpu_busy = Known(
            "pearl_worker_gpu_busy",
            "Share of the time in which the workers' GPUs compute, 0 to 1, their mean; absent where DCGM tells none.",
            ("zone", "role"),
            self.registry,
        )
        self._gpu_memory = Known(
            "pearl_worker_gpu_memory_bytes",
            "Used memory of a worker's GPUs together, mean of the workers; absent where DCGM tells none.",
            ("zone", "role"),
            self.registry,
        )
        self._plans = PlanMetrics(self.registry)
        self.watch_age = Gauge(
            "pearl_watch_age_seconds", "Time since any watch delivered an event.", registry=self.registry
        )
        self.lease_remaining = Gauge(
            "pearl_lease_remaining_seconds", "How long this process may still write.", registry=self.registry
        )

    def began(self, key: RolloutKey) -> None:
        """A rollout is looked at from now on; its looks count from 0, else one that never ends well is not seen."""
        self._look_seconds.labels(key.namespace, key.name)

    def reacted(self, key: RolloutKey, seconds: float) -> None:
        """A change led to a write."""
        self._reaction_seconds.labels(key.namespace, key.name).observe(seconds)

    def looked(self, look: Look, seconds: float) -> None:
        """A complete look."""
        key = look.rollout.key
        labels = (key.namespace, key.name)
        self._look_seconds.labels(*labels).observe(seconds)
        self._serving.labels(*labels).set(sum(1 for worker in look.snapshot.workers if serves(worker)))
        if look.plan.target is not None:
            self._target.labels(*labels).set(look.plan.target.id)
        age = look.snapshot.measurements.gateway_age_seconds
        if age is not None:
            self._gateway_age.labels(*labels).set(age)
        self._model_scale.set(key, look.plan.memory.model_scale, "all")
        self._model_scale.set(key, look.plan.memory.decode_scale, "decode")
        self._workers.set(key, Count(_state(worker) for worker in look.snapshot.workers))
        self._plans.looked(look)
        self._gpus(look)

    def _gpus(self, look: Look) -> None:
        groups: dict[tuple[str, str], list[GpuUse]] = {}
        for worker in look.snapshot.workers:
            use = look.samples.gpus.get(worker.uid)
            if use is not None:
                groups.setdefault((worker.zone.value, worker.role.value), []).append(use)
        for family in (self._gpu_busy, self._gpu_memory):
            family.forget(look.rollout.key)
        for by, uses in groups.items():
            self._gpu_busy.set(look.rollout.key, _mean(use.busy for use in uses), *by)
            self._gpu_memory.set(look.rollout.key, _mean(use.memory_bytes for use in uses), *by)

    def reported(self, key: RolloutKey, conditions: Iterable[Condition]) -> None:
        """The conditions that a rollout has now."""
        present = list(conditions)
        for condition in present:
            for status in _STATUSES:
                labels = (key.namespace, key.name, condition.type.value, status)
                self._condition.labels(*labels).set(status == condition.status)
        self._condition_reason.set(key, {(each.type.value, each.reason.value): 1.0 for each in present})

    def look_failed(self, key: RolloutKey, error: Exception) -> None:
        """A look that ended with an error."""
        self._failures.labels(key.namespace, key.name, type(error).__name__).inc()

    def acted(self, key: RolloutKey, action: Action) -> None:
        """An action was carried out."""
        self._actions.labels(key.namespace, key.name, type(action).__name__).inc()

    def forget(self, key: RolloutKey) -> None:
        """Drops the series of a rollout that is gone."""
        matching = {"rollout_namespace": key.namespace, "rollout": key.name}
        for family in (
            self._look_seconds,
            self._reaction_seconds,
            self._failures,
            self._actions,
            self._serving,
            self._target,
            self._gateway_age,
            self._condition,
        ):
            family.remove_by_labels(matching)
        for of_rollout in (
            self._workers,
            self._condition_reason,
            self._model_scale,
            self._gpu_busy,
            self._gpu_memory,
            self._plans,
        ):
            of_rollout.forget(key)


def _state(worker: Worker) -> tuple[str, str, str]:
    return worker.zone.value, worker.role.value, WorkerState(worker.state).value


def _mean(values: Iterable[float | None]) -> float | None:
    """Of those that are known; None = none is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
