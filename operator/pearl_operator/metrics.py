"""What the operator says of itself to Prometheus; label sets of a rollout go when it goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from pearl_operator.look import serves
from pearl_planner.types import WorkerState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pearl_api.conditions import Condition
    from pearl_operator.look import Look
    from pearl_operator.ports import RolloutKey
    from pearl_planner.types import Action

_ROLLOUT = ("rollout_namespace", "rollout")
_STATUSES = ("True", "False", "Unknown")


class Metrics:
    """All series of one operator process, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._look_seconds = Histogram(
            "pearl_look_seconds",
            "Duration of one look at a rollout: observe, plan, act, report.",
            _ROLLOUT,
            registry=self.registry,
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
        )
        self._failures = Counter(
            "pearl_look_failures", "Looks that ended with an error.", (*_ROLLOUT, "error"), registry=self.registry
        )
        self._actions = Counter("pearl_actions", "Actions carried out.", (*_ROLLOUT, "action"), registry=self.registry)
        self._workers = Gauge(
            "pearl_workers",
            "Workers by zone, role and state.",
            (*_ROLLOUT, "zone", "role", "state"),
            registry=self.registry,
        )
        self._serving = Gauge(
            "pearl_workers_serving", "Workers that turns are routed to.", _ROLLOUT, registry=self.registry
        )
        self._target = Gauge("pearl_target_id", "Number of the present target.", _ROLLOUT, registry=self.registry)
        self._gateway_age = Gauge(
            "pearl_gateway_statistics_age_seconds", "Age of the gateway's statistics.", _ROLLOUT, registry=self.registry
        )
        self._condition = Gauge(
            "pearl_condition",
            "1 for the present status (True, False, Unknown) of each condition, 0 for the others.",
            (*_ROLLOUT, "type", "status"),
            registry=self.registry,
        )
        self._model_scale = Gauge(
            "pearl_model_scale",
            "Measured over predicted step time, of all workers or of those that only decode; 1 = as the table says.",
            (*_ROLLOUT, "steps"),
            registry=self.registry,
        )
        self.watch_age = Gauge(
            "pearl_watch_age_seconds", "Time since any watch delivered an event.", registry=self.registry
        )
        self.lease_remaining = Gauge(
            "pearl_lease_remaining_seconds", "How long this process may still write.", registry=self.registry
        )
        self._states: dict[RolloutKey, set[tuple[str, str, str]]] = {}

    def began(self, key: RolloutKey) -> None:
        """A rollout is looked at from now on; its looks count from 0, else one that never ends well is not seen."""
        self._look_seconds.labels(key.namespace, key.name)

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
        self._scale(key, "all", look.plan.memory.model_scale)
        self._scale(key, "decode", look.plan.memory.decode_scale)
        self._count_workers(look)

    def reported(self, key: RolloutKey, conditions: Iterable[Condition]) -> None:
        """The conditions that a rollout has now."""
        for condition in conditions:
            for status in _STATUSES:
                labels = (key.namespace, key.name, condition.type.value, status)
                self._condition.labels(*labels).set(status == condition.status)

    def _scale(self, key: RolloutKey, steps: str, scale: float | None) -> None:
        labels = (key.namespace, key.name, steps)
        if scale is not None:
            self._model_scale.labels(*labels).set(scale)
        else:  # forgotten with its table
            self._model_scale.remove_by_labels(dict(zip((*_ROLLOUT, "steps"), labels, strict=True)))

    def _count_workers(self, look: Look) -> None:
        key = look.rollout.key
        counts = dict.fromkeys(self._states.get(key, set()), 0)
        for worker in look.snapshot.workers:
            state = (worker.zone.value, worker.role.value, WorkerState(worker.state).value)
            counts[state] = counts.get(state, 0) + 1
        for state, count in counts.items():
            self._workers.labels(key.namespace, key.name, *state).set(count)
        self._states[key] = set(counts)

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
            self._failures,
            self._actions,
            self._workers,
            self._serving,
            self._target,
            self._gateway_age,
            self._condition,
            self._model_scale,
        ):
            family.remove_by_labels(matching)
        self._states.pop(key, None)
