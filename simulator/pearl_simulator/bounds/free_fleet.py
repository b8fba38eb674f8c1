"""What feed and trainer allow when no trajectory ever waits for another: a run with a worker for each of them.

The batches, the window, the staleness bound and the trainer are those of the scenario; every start, flip, wake and
weight load takes no time, and nothing interferes. It is tighter than `bound` where trajectories wait for each other's
versions (refill), and no strict bound: with other durations other groups complete first, which now and then is luck.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pearl_simulator.bounds.bound import in_flight
from pearl_simulator.rules import make_rule
from pearl_simulator.run import run
from pearl_simulator.types import Costs, Fleet

if TYPE_CHECKING:
    from pearl_simulator.types import Result, Scenario

NO_COSTS = Costs(
    start_seconds=0.0, wake_seconds=0.0, sleep_seconds=0.0, flip_seconds=0.0, weights_seconds=0.0, notice_seconds=0.0
)


def free_fleet(scenario: Scenario, seed: int) -> Result:
    """The run; compare its rates (`extra["equivalent_trajectories"]` over `seconds`) with those of a rule."""
    per = scenario.fleet.gpus_per_worker
    alone = replace(
        scenario,
        fleet=Fleet(per, per * in_flight(scenario), 0, 0),
        costs=NO_COSTS,
        calibration=replace(scenario.calibration, interference_seconds=0.0, service_noise=0.0),
        capacity=(),
        failures=(),
        look_seconds=scenario.horizon_seconds,  # nothing is ever decided
    )
    return run(alone, make_rule("roll", {}), seed, rule_name="free fleet")
