"""The operator of the simulated cluster: looks, calls `plan()` with the rule, and does what it says.

A look happens `look_seconds` after the last one at the latest, and on what would wake the operator (pods, loans,
notices, acknowledgements, a drained worker, a consumed batch), at least a second after the last one.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from pearl_planner.plan import plan
from pearl_planner.types import (
    AnswerLoan,
    CreateWorker,
    DeleteWorker,
    Memory,
    SetRole,
)
from pearl_simulator.cluster.view import View, policy_of

if TYPE_CHECKING:
    from pearl_planner.rule import Rule
    from pearl_planner.types import Action, Plan, Target
    from pearl_simulator.cluster.world import World
    from pearl_simulator.types import Scenario

LOOK_GAP_SECONDS = 1.0


class Control:
    """Target and memory from look to look."""

    def __init__(self, scenario: Scenario, world: World, rule: Rule) -> None:
        self._scenario = scenario
        self._world = world
        self._rule = rule
        self._view = View(scenario, world)
        self._policy = policy_of(scenario)
        self._target: Target | None = None
        self._memory = Memory()
        self._last_look = -LOOK_GAP_SECONDS
        self._next_look = 0.0
        self.plan_seconds = 0.0
        self.looks = 0
        self.decisions: list[tuple[float, str, str]] = []
        self.reasons: dict[str, int] = {}
        world.clock.at(0.0, self._due, 0.0)

    def wake(self) -> None:
        """Something happened: look soon."""
        self._look_at(max(self._world.clock.now, self._last_look + LOOK_GAP_SECONDS))

    def _look_at(self, time: float) -> None:
        if time < self._next_look - 1e-9:
            self._next_look = time
            self._world.clock.at(time, self._due, time)

    def _due(self, planned: float) -> None:
        if planned == self._next_look:
            self._look()

    def _look(self) -> None:
        now = self._world.clock.now
        self._last_look, self.looks = now, self.looks + 1
        self._next_look = now + self._scenario.look_seconds
        self._world.clock.at(self._next_look, self._due, self._next_look)
        snapshot = self._view.snapshot(self._target, self._memory)
        started = perf_counter()
        result = plan(snapshot, self._policy, self._rule)
        self.plan_seconds += perf_counter() - started
        if result.target is not None and (self._target is None or result.target.id != self._target.id):
            self.decisions.append((now, result.reason.value, result.message))
        self.reasons[result.reason.value] = self.reasons.get(result.reason.value, 0) + 1
        self._target, self._memory = result.target, result.memory
        self._apply_routing(result)
        for action in result.actions:
            self._do(action, result)
        if result.actions:
            self.wake()
        self._world.feed.pump()

    def _apply_routing(self, result: Plan) -> None:
        if self._scenario.router.window is None:
            self._world.feed.window = result.routing.in_flight_window
        if self._scenario.router.local_append:
            self._world.router.local_append_tokens = result.routing.local_append_tokens

    def _do(self, action: Action, result: Plan) -> None:
        pods = self._world.pods
        if isinstance(action, CreateWorker):
            pods.create(action.slot, result.target.id if result.target else 0)
        elif isinstance(action, DeleteWorker):
            pods.delete(action.pod)
        elif isinstance(action, SetRole):
            pods.set_role(action)
        elif isinstance(action, AnswerLoan):
            self._world.lender.answer(action)
        else:
            pods.set_activity(action)
