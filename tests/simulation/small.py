"""A tiny workload and fleet whose times a person can work out: 10 ms per decode step, 1 ms per prefilled token."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pearl_planner.choice.decide import Decision
from pearl_planner.engine.model import EngineTable
from pearl_planner.facts import sizes
from pearl_planner.fleet.shapes import allowed_shapes
from pearl_planner.prediction.predict import Forecast
from pearl_planner.types import Prediction, Reason, Shape
from pearl_simulator.run import run
from pearl_simulator.types import Calibration, Costs, Feeding, Fleet, Router, Scenario, Script, Training, Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pearl_planner.types import Loan, Policy, Snapshot
    from pearl_simulator.types import Result

TABLE = EngineTable(
    name="small/test",
    decode_fixed_seconds=0.010,
    decode_per_sequence_seconds=0.0,
    decode_per_context_token_seconds=0.0,
    prefill_fixed_seconds=0.0,
    prefill_per_token_seconds=0.001,
    prefill_per_token_pair_seconds=0.0,
    kv_bytes_per_token=1.0,
    kv_capacity_tokens=100_000,
    transfer_bytes_per_second=1e15,
    transfer_fixed_seconds=0.5,
)
NOTHING = Costs(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def turn(appended: int = 100, generated: int = 101, wait: float = 1.0, **changes: object) -> Turn:
    return replace(Turn(appended, generated, generated, 0.0, wait), **changes)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Same:
    """The same trajectories in every batch, after a reset of 1 s; `make(group, member)` gives the turns."""

    make: Callable[[int, int], tuple[Turn, ...]]
    groups: int = 1
    group_size: int = 1
    name: str = "same"

    def batch(self, step: int, seed: int) -> Sequence[Script]:  # noqa: ARG002
        return [
            Script(group, member, 1.0, self.make(group, member))
            for group in range(self.groups)
            for member in range(self.group_size)
        ]


@dataclass(frozen=True)
class Drawn:
    """Short trajectories with a heavy tail, one in eight five times as long."""

    groups: int = 4
    group_size: int = 2
    name: str = "drawn"

    def batch(self, step: int, seed: int) -> Sequence[Script]:
        chance = random.Random(f"{seed}/{step}")
        return [
            Script(
                number // self.group_size,
                number % self.group_size,
                chance.uniform(0.0, 2.0),
                tuple(
                    turn(chance.randint(1, 60), chance.randint(1, 40), chance.expovariate(1.0))
                    for _ in range(chance.choice([1, 1, 2, 2, 3, 3, 4, 12]))
                ),
            )
            for number in range(self.groups * self.group_size)
        ]


@dataclass(frozen=True)
class Always:
    """One shape whatever happens; loans are taken or not."""

    shape: Shape
    local_append_tokens: int = 0
    borrow: bool = True

    def decide(self, snapshot: Snapshot, policy: Policy) -> Decision:
        room = sizes(snapshot)
        present, many = room.with_elastic(room.elastic_high), room.room(room.elastic_high)
        shape = self.shape if self.shape in allowed_shapes(many, policy) else Shape(colocated=many.colocated)
        forecast = Forecast(Prediction(shape, 1.0, None, 0.0, feasible=True), self.local_append_tokens)
        return Decision(present, shape, Reason.APPLIED, "always", (forecast.prediction,), forecast)

    def answer_loan(
        self,
        snapshot: Snapshot,  # noqa: ARG002
        policy: Policy,  # noqa: ARG002
        loan: Loan,  # noqa: ARG002
        count: int,  # noqa: ARG002
        added: int,  # noqa: ARG002
    ) -> tuple[bool, str]:
        return self.borrow, "always"


def scenario(*turns: Turn, workers: int = 1, **changes: object) -> Scenario:
    """One group of one trajectory, `workers` reserved workers of one GPU, transitions cost nothing, one batch."""
    base = Scenario(
        name="small",
        workload=Same(lambda _group, _member: turns),
        calibration=Calibration("small", TABLE),
        training=Training(10.0, Feeding.BARRIER, 0),
        horizon_seconds=10_000.0,
        fleet=Fleet(1, workers, 0, 0),
        costs=NOTHING,
        router=Router(window=None),
        max_batches=1,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def makespan(result: Result) -> float:
    return result.batches[0].ready_seconds - 1.0  # without the reset


def simulate(one: Scenario, shape: Shape, *, local: int = 0, seed: int = 1) -> Result:
    return run(one, Always(shape, local), seed, rule_name="always")
