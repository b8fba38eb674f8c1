"""Elastic GPUs over time: notices, falls and rises of a capacity trace, and failures of engines.

A fall takes GPUs that nobody uses first. Beyond them its victims are drawn by the seed among the pods that hold elastic
GPUs, `notice_seconds` ahead; from the notice on nothing new is placed there. At the fall what is left of them is gone.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from pearl_planner.types import WorkerState, Zone
from pearl_simulator.cluster.clock import SimulationError

if TYPE_CHECKING:
    from pearl_simulator.cluster.clock import Clock
    from pearl_simulator.cluster.pods import Pod, Pods
    from pearl_simulator.types import CapacityChange, Scenario


class SpotMarket:
    """How many elastic GPUs there are, and how many may be used by new pods."""

    def __init__(self, scenario: Scenario) -> None:
        first = [change for change in scenario.capacity if change.at_seconds <= 0]
        self._highest = scenario.fleet.elastic_max_gpus
        self.gpus = self._clip(first[-1].elastic_gpus) if first else self._highest
        self.falls: dict[int, int] = {}
        """Noticed falls by their place in the trace → GPUs after them."""

    @property
    def placeable_gpus(self) -> int:
        """What new pods may hold together with those that stay."""
        return min([self.gpus, *self.falls.values()])

    def _clip(self, gpus: int) -> int:
        return max(0, min(gpus, self._highest))

    def change(self, index: int, gpus: int) -> None:
        """The capacity is this from now on."""
        self.falls.pop(index, None)
        self.gpus = self._clip(gpus)

    def notice(self, index: int, gpus: int) -> None:
        """It will fall to this."""
        self.falls[index] = self._clip(gpus)


class Spot:
    """Plays the trace and the failures onto the pods."""

    def __init__(self, scenario: Scenario, seed: int, clock: Clock, pods: Pods) -> None:
        self._scenario = scenario
        self._seed = seed
        self._clock = clock
        self._pods = pods
        for index, change in enumerate(scenario.capacity):
            if change.at_seconds > 0:
                before = scenario.capacity[index - 1].elastic_gpus if index else scenario.fleet.elastic_max_gpus
                if change.elastic_gpus < before:
                    clock.at(change.at_seconds - scenario.costs.notice_seconds, self._notice, (index, change))
                clock.at(change.at_seconds, self._change, (index, change))
        for index, failure in enumerate(scenario.failures):
            clock.at(failure.at_seconds, self._fail, index)

    def _notice(self, coming: tuple[int, CapacityChange]) -> None:
        index, change = coming
        market = self._pods.market
        market.notice(index, change.elastic_gpus)
        for pod in self._victims(market.placeable_gpus, f"notice {index}"):
            pod.gone_at = change.at_seconds
        self._pods.wake()

    def _change(self, coming: tuple[int, CapacityChange]) -> None:
        index, change = coming
        market = self._pods.market
        market.change(index, change.elastic_gpus)
        now = self._clock.now + 1e-9
        self._pods.lose([pod for pod in self._pods.by_name.values() if pod.gone_at is not None and pod.gone_at <= now])
        self._pods.lose(self._victims(market.gpus, f"change {index}", noticed=True))
        held = self._pods.held_gpus(Zone.ELASTIC)
        if held > market.gpus:
            raise SimulationError(f"{held} elastic GPUs are held after a fall to {market.gpus}")

    def _victims(self, gpus: int, purpose: str, *, noticed: bool = False) -> list[Pod]:
        """Elastic pods that hold more than `gpus` together, drawn by the seed."""
        holders = [
            pod
            for pod in self._pods.by_name.values()
            if pod.zone is Zone.ELASTIC and pod.held_since is not None and (noticed or pod.gone_at is None)
        ]
        random.Random(f"{self._seed}/{purpose}").shuffle(holders)  # noqa: S311 - a simulation
        held = sum(pod.gpus for pod in holders)
        victims = []
        while held > gpus:
            victims.append(holders.pop())
            held -= victims[-1].gpus
        return victims

    def _fail(self, index: int) -> None:
        serving = [
            pod
            for pod in self._pods.by_name.values()
            if pod.state is WorkerState.READY and pod.zone is not Zone.BORROWED
        ]
        if serving:
            serving.sort(key=lambda pod: pod.name)
            self._pods.fail(random.Random(f"{self._seed}/failure {index}").choice(serving))  # noqa: S311 - a simulation
