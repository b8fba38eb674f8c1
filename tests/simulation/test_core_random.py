"""Whatever happens to the fleet: every trajectory ends once, within the GPUs there are (the run itself checks both)."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small import TABLE, Always, Drawn

from pearl_planner.rule import PEARL
from pearl_planner.types import Shape
from pearl_simulator.run import run
from pearl_simulator.types import (
    Calibration,
    CapacityChange,
    Costs,
    Failure,
    Feeding,
    Fleet,
    PrefillStyle,
    Router,
    Scenario,
    Training,
)

RULES = [PEARL, Always(Shape(colocated=3)), Always(Shape(0, 1, 2), 32), Always(Shape(0, 2, 1)), Always(Shape(0, 2, 3))]


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    times = sorted(draw(st.lists(st.floats(0.0, 60.0), max_size=4)))
    table = replace(TABLE, kv_capacity_tokens=draw(st.sampled_from([None, 1300, 1300])))
    calibration = Calibration(
        "random",
        table,
        style=draw(st.sampled_from(PrefillStyle)),
        max_batched_tokens=draw(st.sampled_from([32, 2048])),
        interference_seconds=draw(st.sampled_from([0.0, 0.05])),
        service_noise=draw(st.sampled_from([0.0, 0.5])),
    )
    training = Training(
        draw(st.sampled_from([0.5, 5.0])),
        draw(st.sampled_from(Feeding)),
        draw(st.integers(0, 2)),
        need_groups=draw(st.sampled_from([None, 3])),
    )
    return Scenario(
        name="random",
        workload=Drawn(),
        calibration=calibration,
        training=training,
        horizon_seconds=3000.0,
        fleet=Fleet(
            1,
            draw(st.integers(1, 2)),
            draw(st.integers(0, 3)),
            draw(st.integers(0, 2)),
            decode_gpus=draw(st.sampled_from([None, 2])),
        ),
        costs=Costs(start_seconds=3.0, weights_seconds=0.5, notice_seconds=draw(st.sampled_from([0.0, 4.0]))),
        router=Router(
            window=draw(st.sampled_from([None, 2, 6])),
            local_append=draw(st.booleans()),
            stragglers_first=draw(st.booleans()),
            affinity=draw(st.booleans()),
        ),
        capacity=tuple(CapacityChange(time, draw(st.integers(0, 3))) for time in times),
        failures=tuple(Failure(time) for time in draw(st.lists(st.floats(0.0, 60.0), max_size=2))),
        warmup_seconds=draw(st.sampled_from([0.0, 20.0])),
        look_seconds=draw(st.sampled_from([5.0, 20.0])),
        max_batches=3,
    )


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scenarios(), st.sampled_from(RULES), st.integers(0, 1000))
def test_every_batch_is_consumed_whole_and_in_time(one: Scenario, rule: object, seed: int) -> None:
    result = run(one, rule, seed, rule_name="random")  # type: ignore[arg-type]
    need = one.training.need_groups or 4
    assert [len(batch.ages) for batch in result.batches] == [need * 2] * 3
    assert all(0 <= age <= one.training.max_staleness for batch in result.batches for age in batch.ages)
    assert all(batch.ready_seconds <= batch.consumed_seconds for batch in result.batches)
    assert all(abs(seconds - one.costs.sleep_seconds) < 1e-6 for seconds in result.reclaims)
    for zone, gpus in (
        ("reserved", one.fleet.reserved_gpus),
        ("elastic", 3),
        ("borrowed", one.fleet.borrowed_max_gpus),
    ):
        assert result.gpu_seconds[zone] <= gpus * (result.seconds + 1e-6)
