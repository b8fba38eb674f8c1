"""Times that follow from the engine formulas by hand: 10 ms per decode step, 1 ms per prefilled token."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small import TABLE, Same, makespan, scenario, simulate, turn

from pearl_planner.types import Shape
from pearl_simulator.cluster.clock import SimulationError
from pearl_simulator.types import Calibration, PrefillStyle

ONE = Shape(colocated=1)
PAIR = Shape(0, 1, 1)


def test_one_trajectory_alone() -> None:
    # Turn 1: 100 tokens to prefill 0.1 s, the first token comes with it, 100 more in 1.0 s, environment 1 s.
    # Turn 2 finds 201 tokens cached: 50 tokens 0.05 s, 20 steps 0.2 s, reward 2 s.
    result = simulate(scenario(turn(), turn(50, 21, 2.0)), ONE)
    assert makespan(result) == pytest.approx(2.1 + 2.25)
    assert (result.prefilled_tokens, result.generated_tokens, result.turns) == (150, 122, 2)


def test_stripped_answers_break_the_prefix() -> None:
    # 31 of the 101 tokens are kept, behind the thinking that is not: they are prefilled with the 50 new ones.
    result = simulate(scenario(turn(retained_tokens=31), turn(50, 21, 2.0)), ONE)
    assert result.prefilled_tokens == 100 + 31 + 50
    assert makespan(result) == pytest.approx(2.1 + 0.081 + 0.2 + 2.0)


def test_a_missed_share_of_the_history_is_computed_again() -> None:
    result = simulate(scenario(turn(100, 101), turn(50, 21, 2.0, missed_share=0.5)), ONE)
    assert result.prefilled_tokens == 100 + 50 + 101  # history 201, int(100.5) of it usable


def test_hand_off_computes_what_was_generated_elsewhere_again() -> None:
    # Turn 1: 0.1 + hand-off 0.5 + 101 steps + 1.0; turn 2: (50 + 101)/1000 + 0.5 + 21 steps + 2.0.
    result = simulate(scenario(turn(), turn(50, 21, 2.0), workers=2), PAIR)
    assert makespan(result) == pytest.approx(0.1 + 0.5 + 1.01 + 1.0 + 0.151 + 0.5 + 0.21 + 2.0)
    assert result.prefilled_tokens == 100 + 151


def test_short_appends_stay_on_the_decode_worker() -> None:
    # Below 64 uncached tokens the decode worker prefills: 0.05 s, no hand-off, 20 steps after the first token.
    result = simulate(scenario(turn(), turn(50, 21, 2.0), workers=2), PAIR, local=64)
    assert makespan(result) == pytest.approx(0.1 + 0.5 + 1.01 + 1.0 + 0.05 + 0.2 + 2.0)


def test_decode_goes_on_inside_mixed_steps_and_waits_for_exclusive_ones() -> None:
    # A decodes from 0.1 s. B's 200 tokens arrive at 0.5 s: one step of 0.21 s (mixed) or 0.2 s (exclusive).
    # Mixed: A has 40 tokens at 0.5, one more at 0.71, the other 59 take 0.59. Exclusive: 60 left at 0.7.
    for style, expected in ((PrefillStyle.MIXED, 1.3), (PrefillStyle.EXCLUSIVE, 1.3)):
        made = Same(lambda g, _m: (turn(100, 101, 0.0),) if g == 0 else (turn(200, 11, 0.0),), groups=2)
        one = scenario(calibration=Calibration("small", TABLE, style), workload=_late(made, 0.5))
        assert makespan(simulate(one, ONE)) == pytest.approx(expected)


def test_interference_stops_everything_once_per_prefill() -> None:
    # B's prefill takes 0.3 s longer and holds A up by it.
    made = Same(lambda g, _m: (turn(100, 101, 0.0),) if g == 0 else (turn(200, 11, 0.0),), groups=2)
    alone = scenario(turn(100, 101, 0.0), calibration=Calibration("small", TABLE, interference_seconds=0.3))
    assert makespan(simulate(alone, ONE)) == pytest.approx(0.1 + 0.3 + 1.0)
    both = replace(alone, workload=_late(made, 0.5))
    assert makespan(simulate(both, ONE)) == pytest.approx(1.3 + 0.3 + 0.3)
    apart = scenario(turn(100, 101, 0.0), workers=2, calibration=alone.calibration)
    assert makespan(simulate(apart, PAIR)) == pytest.approx(0.1 + 0.5 + 1.01)  # none on a prefill worker


def test_long_prompts_are_chunked_and_short_ones_packed() -> None:
    # 250 tokens in steps of 100 with 10 ms of hidden overhead each: 3 steps. Of three prompts of 40 tokens the first
    # begins alone and the others share a step.
    slow = Calibration("small", TABLE, max_batched_tokens=100, host_seconds=0.01)
    assert makespan(simulate(scenario(turn(250, 1, 0.0), calibration=slow), ONE)) == pytest.approx(0.25 + 3 * 0.01)
    three = Same(lambda _g, _m: (turn(40, 1, 0.0),), groups=3)
    assert makespan(simulate(scenario(calibration=slow, workload=three), ONE)) == pytest.approx(0.05 + 0.09)


def test_members_of_a_group_share_their_first_prompt() -> None:
    two = Same(lambda _g, _m: (turn(40, 2, 0.0),), group_size=2)
    assert simulate(scenario(workload=two), ONE).prefilled_tokens == 41  # the last token is always computed


def test_growing_contexts_slow_decode_down_exactly() -> None:
    # τ = 10 ms + 1 µs·context, context 101 … 201 over 100 steps: their mean is 151.
    table = replace(TABLE, decode_per_context_token_seconds=1e-6)
    one = scenario(turn(100, 101, 0.0), calibration=Calibration("small", table))
    assert makespan(simulate(one, ONE)) == pytest.approx(0.1 + 100 * (0.010 + 151e-6))


def test_full_kv_lets_one_turn_wait_for_the_other() -> None:
    # Room for 300 tokens: two contexts of 201 do not fit. The second waits until the first ends at 1.1 s.
    table = replace(TABLE, kv_capacity_tokens=300)
    two = Same(lambda _g, _m: (turn(180, 101, 0.0),), groups=2)
    result = simulate(scenario(calibration=Calibration("small", table), workload=two), ONE)
    assert makespan(result) == pytest.approx(2 * (0.18 + 1.0))
    assert result.extra["preemptions"] == 0


def test_overflow_preempts_the_youngest_which_loses_nothing() -> None:
    # A's prompt takes 0.12 s, B's 0.13 s with one more token of A: 122 + 121 tokens at 0.25 s. 28.5 steps later 300 are
    # full: B has 29 whole tokens and starts again when A, with 70.5 to go, has ended. It prefills 149 tokens, which
    # yields its 30th, and makes 71 more.
    table = replace(TABLE, kv_capacity_tokens=300)
    two = Same(lambda _g, _m: (turn(120, 101, 0.0),), groups=2)
    result = simulate(scenario(calibration=Calibration("small", table), workload=two), ONE)
    assert result.extra["preemptions"] == 1
    assert makespan(result) == pytest.approx(0.25 + 0.285 + 0.705 + 0.149 + 0.71)
    assert result.generated_tokens == 202


def test_eviction_of_an_idle_context_forces_recomputation() -> None:
    # While A's environment takes 10 s, B needs 250 of 300 tokens: what is left of A's 201 is cut to 50.
    table = replace(TABLE, kv_capacity_tokens=300)
    both = Same(
        lambda g, _m: (turn(100, 101, 10.0), turn(10, 1, 0.0)) if g == 0 else (turn(150, 101, 0.0),),
        groups=2,
    )
    result = simulate(scenario(calibration=Calibration("small", table), workload=_late(both, 3.0)), ONE)
    # B grows to 251 tokens, which leaves 49 of A's context: 211 − 49 are computed again.
    assert result.prefilled_tokens == 100 + 150 + (211 - 49)


def test_a_full_decode_side_blocks_the_prefill_side() -> None:
    # 300 tokens of room each. Decode holds A (181…281), so B (180 tokens) stays pinned on the prefill worker and C
    # cannot even be prefilled there before B has moved.
    table = replace(TABLE, kv_capacity_tokens=300)
    three = Same(lambda _g, _m: (turn(180, 101, 0.0),), groups=3)
    result = simulate(scenario(workers=2, calibration=Calibration("small", table), workload=three), PAIR)
    first = 0.18 + 0.5 + 1.01
    second = first + 0.5 + 1.01  # moves when A is done
    third = second + 0.5 + 1.01  # prefilled while B decodes, moves when B is done
    assert makespan(result) == pytest.approx(third)


def test_contexts_that_cannot_fit_are_refused_with_the_way_out() -> None:
    table = replace(TABLE, kv_capacity_tokens=150)
    with pytest.raises(SimulationError, match="does not fit the KV room of 150 tokens; use larger workers"):
        simulate(scenario(turn(), calibration=Calibration("small", table)), ONE)


def _late(made: Same, seconds: float) -> object:
    """The same, but every trajectory after the first begins later."""

    class Late(Same):
        def batch(self, step: int, seed: int) -> list[object]:  # type: ignore[override]
            scripts = list(made.batch(step, seed))
            return [scripts[0], *(replace(script, reset_seconds=1.0 + seconds) for script in scripts[1:])]

    return Late(made.make, made.groups, made.group_size)
