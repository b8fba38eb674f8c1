"""The bound: worked out by hand for equal trajectories, and never beaten by any rule."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pearl_planner.engine.model import EngineTable
from pearl_simulator.bounds.bound import bound, in_flight, mean_workers
from pearl_simulator.bounds.free_fleet import free_fleet
from pearl_simulator.rules import make_rule
from pearl_simulator.run import run
from pearl_simulator.types import (
    Calibration,
    CapacityChange,
    Feeding,
    Fleet,
    Router,
    Scenario,
    Script,
    Training,
    Turn,
)
from pearl_simulator.workloads.presets import random_workload

if TYPE_CHECKING:
    from collections.abc import Sequence

TABLE = EngineTable(
    name="test/gpu",
    decode_fixed_seconds=0.010,
    decode_per_sequence_seconds=0.001,
    decode_per_context_token_seconds=0.0,
    prefill_fixed_seconds=0.0,
    prefill_per_token_seconds=0.001,
    prefill_per_token_pair_seconds=0.0,
)


@dataclass(frozen=True)
class Equal:
    """Every trajectory: reset 1 s, 1000 tokens of prompt, 1001 generated, reward 2 s."""

    name: str = "equal"
    groups: int = 2
    group_size: int = 4

    def batch(self, step: int, seed: int) -> Sequence[Script]:
        del step, seed
        turn = Turn(1000, 1001, 1001, 0.0, 2.0)
        return [
            Script(group, member, 1.0, (turn,)) for group in range(self.groups) for member in range(self.group_size)
        ]


def scenario(update: float, feeding: Feeding, **changes: object) -> Scenario:
    plain = Scenario(
        "hand",
        Equal(),
        Calibration("hand", TABLE),
        Training(update, feeding),
        1000.0,
        Fleet(2, 4, 0, 0),
        router=Router(window=None),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_after_a_barrier_a_batch_takes_its_longest_trajectory_and_the_update() -> None:
    many = scenario(10.0, Feeding.BARRIER, fleet=Fleet(2, 40, 0, 0))
    # alone: 1 + 1000 · 1 ms of prompt + 1000 steps of 11 ms + 2 = 15 s; with the update 25 s for 8 trajectories
    found = bound(many, 0)
    assert found.terms["critical path"] == pytest.approx(8 / 25 * 3600)
    assert found.terms["trainer"] == pytest.approx(8 / 10 * 3600)
    assert found.binds == "critical path"
    assert found.trajectories_per_hour == found.terms["critical path"]


def test_with_few_workers_the_work_binds() -> None:
    # Two workers, 16 trajectories in flight (staleness 1), no update to speak of. Per trajectory at price x: prompt
    # (1 + x)/4 s (shared by four), waiting 3x, decode 1000 · (√0.001 + √(0.010·x))², since 1 ms + 10 ms·x + 2√(…).
    # Supply 2 + 16·x. Decoding 8 at a time x = 0.1·1/10² … the best price is found by trying here.
    def rate(price: float) -> float:
        each = 1.0 + 10.0 * price + 2.0 * (10.0 * price) ** 0.5 + (1 + price) / 4 + 3 * price
        return (2 + 16 * price) / each

    least = min(rate(10 ** (k / 100)) for k in range(-400, 200))
    found = bound(scenario(1e-3, Feeding.REFILL), 0)
    assert found.binds == "work"
    assert found.trajectories_per_hour == pytest.approx(least * 3600, rel=2e-3)
    # It lies below both of its ends: work alone 2/1.25 per s, Little's law alone 16/(3.25 + 11)
    assert least < min(2 / 1.25, 16 / 14.25)


def test_capacity_is_counted_in_whole_workers_over_the_horizon() -> None:
    trace = (CapacityChange(0.0, 3), CapacityChange(250.0, 6), CapacityChange(2000.0, 0))
    some = scenario(1.0, Feeding.REFILL, fleet=Fleet(2, 4, 6, 0), capacity=trace)
    assert mean_workers(some) == pytest.approx(2 + 0.25 * 1 + 0.75 * 3)


def test_the_window_limits_what_is_in_flight() -> None:
    assert in_flight(scenario(1.0, Feeding.REFILL)) == 16
    assert in_flight(scenario(1.0, Feeding.REFILL, router=Router(window=12))) == 12
    assert in_flight(scenario(1.0, Feeding.BARRIER, router=Router(window=12))) == 8


def test_what_runs_alone_in_the_simulator_takes_what_the_bound_says() -> None:
    many = scenario(10.0, Feeding.BARRIER, max_batches=4, horizon_seconds=1e4)
    alone = free_fleet(many, 0)
    spans = [batch.ready_seconds - batch.opened_seconds for batch in alone.batches]
    assert spans == pytest.approx([15.0] * 4, abs=0.1)


@settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.generate],
)
@given(
    seed=st.integers(0, 10_000),
    feeding=st.sampled_from(list(Feeding)),
    update=st.sampled_from([0.5, 20.0]),
    gpus=st.sampled_from([(2, 0, 0), (4, 4, 0), (2, 4, 4)]),
    window=st.sampled_from([None, 8, 16]),
    name=st.sampled_from(["rlboost+", "verl-lend", "ratio:1P1D", "schedule", "pearl-paper"]),
)
def test_no_rule_beats_it(  # noqa: PLR0913, PLR0917 - what is drawn
    seed: int, feeding: Feeding, update: float, gpus: tuple[int, int, int], window: int | None, name: str
) -> None:
    drawn = replace(random_workload(seed), groups=2, group_size=4, reward_seconds=1.0)
    some = scenario(
        update,
        feeding,
        workload=drawn,
        calibration=Calibration("test", replace(TABLE, prefill_per_token_seconds=2e-5)),
        fleet=Fleet(2, *gpus),
        router=Router(window=window),
        horizon_seconds=900.0,
    )
    found = bound(some, seed)
    result = run(some, make_rule(name, {}), seed, rule_name=name)
    allowed = found.trajectories_per_hour * result.seconds / 3600 + found.slack_trajectories
    assert result.finished_trajectories <= allowed
    if feeding is Feeding.BARRIER:  # whole batches need no slack but the update that is still to come
        consumed = result.batches[-1].consumed_seconds if result.batches else 0.0
        least = 8 * len(result.batches) / (consumed + update) if consumed else 0.0
        whole = bound(replace(some, max_batches=max(len(result.batches), 1)), seed)
        assert least * 3600 <= whole.trajectories_per_hour * (1 + 1e-6)
