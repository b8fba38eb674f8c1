"""Counts of a run. Rates leave the warm-up out: only what ends after it counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl_planner.types import Activity, Role, Shape, WorkerState, Zone
from pearl_simulator.types import ShapeSpan

if TYPE_CHECKING:
    from pearl_simulator.cluster.clock import Clock
    from pearl_simulator.cluster.pods import Pods
    from pearl_simulator.types import Scenario

_SERVING = (WorkerState.READY, WorkerState.UNREADY)


class Tally:
    """Sums since the end of the warm-up, and the shapes of the fleet from the start."""

    __slots__ = (
        "_clock",
        "finished",
        "generated",
        "measuring",
        "prefilled_before",
        "progress_before",
        "recomputed",
        "shapes",
        "turns",
    )

    def __init__(self, scenario: Scenario, clock: Clock) -> None:
        self._clock = clock
        self.measuring = scenario.warmup_seconds <= 0
        self.finished = 0
        self.generated = 0
        self.turns = 0
        self.recomputed = 0
        self.prefilled_before = 0
        self.progress_before = 0.0
        self.shapes: list[ShapeSpan] = []

    def turn(self, generated: int) -> None:
        """A turn is complete."""
        if self.measuring:
            self.turns += 1
            self.generated += generated

    def fleet(self, pods: Pods) -> None:
        """The serving fleet may have another shape now."""
        serving = [
            pod.acked_role
            for pod in pods.by_name.values()
            if pod.state in _SERVING and pod.acked_activity is Activity.ACTIVE
        ]
        shape = Shape(serving.count(Role.COLOCATED), serving.count(Role.PREFILL), serving.count(Role.DECODE))
        gpus = tuple((zone, pods.held_gpus(zone)) for zone in Zone)
        if self.shapes and self.shapes[-1].start_seconds == self._clock.now:
            self.shapes.pop()
        if self.shapes and self.shapes[-1].shape == shape and self.shapes[-1].gpus == gpus:
            return
        self.shapes.append(ShapeSpan(self._clock.now, shape, gpus))
