"""Gauges of rollouts whose label sets come and go with what is observed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import Gauge

if TYPE_CHECKING:
    from collections.abc import Mapping

    from prometheus_client import CollectorRegistry

    from pearl_operator.ports import RolloutKey

ROLLOUT: Final = ("rollout_namespace", "rollout")
"""Labels of everything about one rollout."""


class Counted:
    """Numbers by some labels; what was counted before and is no more becomes 0."""

    def __init__(self, name: str, meaning: str, by: tuple[str, ...], registry: CollectorRegistry) -> None:
        self._gauge = Gauge(name, meaning, (*ROLLOUT, *by), registry=registry)
        self._seen: dict[RolloutKey, set[tuple[str, ...]]] = {}

    def set(self, key: RolloutKey, counts: Mapping[tuple[str, ...], float]) -> None:
        """All of a rollout."""
        seen = self._seen.setdefault(key, set())
        seen.update(counts)
        for labels in seen:
            self._gauge.labels(key.namespace, key.name, *labels).set(counts.get(labels, 0))

    def forget(self, key: RolloutKey) -> None:
        """The rollout is gone."""
        for labels in self._seen.pop(key, set()):
            self._gauge.remove(key.namespace, key.name, *labels)


class Known:
    """A number that may be unknown; then there is no series."""

    def __init__(self, name: str, meaning: str, by: tuple[str, ...], registry: CollectorRegistry) -> None:
        self._gauge = Gauge(name, meaning, (*ROLLOUT, *by), registry=registry)

    def set(self, key: RolloutKey, value: float | None, *by: str) -> None:
        """For these labels."""
        labels = (key.namespace, key.name, *by)
        if value is None:
            self._gauge.remove(*labels)
        else:
            self._gauge.labels(*labels).set(value)

    def forget(self, key: RolloutKey) -> None:
        """The rollout is gone."""
        self._gauge.remove_by_labels(dict(zip(ROLLOUT, (key.namespace, key.name), strict=True)))
