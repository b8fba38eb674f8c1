from __future__ import annotations

import statistics
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from pearl_simulator.workloads.distributions import GeometricTurns, LogNormal, LogNormalTurns, Mixture, UniformTurns
from pearl_simulator.workloads.presets import presets, random_workload

if TYPE_CHECKING:
    from pearl_simulator.types import Script
    from pearl_simulator.workloads.drawn import DrawnWorkload

SWE = presets()["swe-cached"]


def scripts(workload: DrawnWorkload, steps: int = 30, seed: int = 5) -> list[Script]:
    return [script for step in range(steps) for script in workload.batch(step, seed)]


def test_the_presets_have_the_published_medians() -> None:
    # No context limit, so that lengths are not cut.
    drawn = scripts(replace(SWE, context_tokens=10**9))
    turns = [turn for script in drawn for turn in script.turns]
    assert statistics.median(turn.generated_tokens for turn in turns) == pytest.approx(150, rel=0.03)
    later = [turn for script in drawn for turn in script.turns[1:]]
    assert statistics.median(turn.appended_tokens for turn in later) == pytest.approx(350, rel=0.03)
    assert statistics.median(len(script.turns) for script in drawn) == pytest.approx(26, abs=3)
    assert {script.turns[0].appended_tokens for script in drawn} == {4096}
    # 12 % of the calls take about 20 s: the 0.88 quantile lies between the two kinds.
    waits = [turn.environment_seconds for script in drawn for turn in script.turns[:-1]]
    assert sum(wait > 8 for wait in waits) / len(waits) == pytest.approx(0.12 * 0.874, abs=0.01)


def test_members_of_a_group_are_as_alike_as_the_preset_says() -> None:
    # Equal variances of group and member: the log of the turns has correlation 1/2 inside a group.
    free = replace(
        SWE, turns=LogNormalTurns(200, 0.45, 0.45, cap=10**6), context_tokens=10**9, groups=400, group_size=2
    )
    counts = np.log([len(script.turns) for script in free.batch(0, 1)]).reshape(400, 2)
    assert np.corrcoef(counts[:, 0], counts[:, 1])[0, 1] == pytest.approx(0.5, abs=0.08)


def test_a_draw_depends_on_nothing_but_its_own_name() -> None:
    few, many = SWE.batch(3, 7), replace(SWE, groups=8, group_size=20).batch(3, 7)
    assert list(few[:16]) == list(many[:16])
    assert few[16] == many[20]
    assert SWE.batch(3, 7) == few
    assert SWE.batch(4, 7) != few
    assert SWE.batch(3, 8) != few


def test_more_turns_leave_the_turns_before_as_they_were() -> None:
    short = replace(SWE, turns=UniformTurns(5, 5)).batch(0, 0)[0]
    long = replace(SWE, turns=UniformTurns(9, 9)).batch(0, 0)[0]
    assert short.turns[:4] == long.turns[:4]
    assert len(long.turns) == 9


def test_the_context_ends_a_trajectory_and_the_last_turn_pays_the_reward() -> None:
    full = replace(SWE, generated=LogNormal(4000), context_tokens=10_000).batch(0, 0)[0]
    # 4096 + 4000, then an append of about 350 and what is left of the answer.
    assert len(full.turns) == 2
    assert 4096 + 4000 + full.turns[1].appended_tokens + full.turns[1].generated_tokens == 10_000
    assert full.turns[-1].environment_seconds == 20.0


def test_stripped_thinking_does_not_fill_the_context() -> None:
    stripped = replace(SWE, generated=LogNormal(4000), retained_share=0.2, context_tokens=20_000).batch(0, 0)[0]
    history = 0
    for turn in stripped.turns:
        assert turn.retained_tokens == round(0.2 * turn.generated_tokens)
        assert history + turn.appended_tokens + turn.generated_tokens <= 20_000
        history += turn.appended_tokens + turn.retained_tokens
    assert len(stripped.turns) > 4


def test_the_other_turn_counts_have_their_means() -> None:
    rng = np.random.default_rng(0)
    pairs = rng.standard_normal((20_000, 2))
    geometric, uniform = GeometricTurns(6.0, cap=1000), UniformTurns(10, 20)
    assert statistics.mean(geometric.count(*pair) for pair in pairs) == pytest.approx(6.0, rel=0.02)
    assert statistics.mean(uniform.count(*pair) for pair in pairs) == pytest.approx(15.0, rel=0.01)


def test_a_mixture_has_the_mean_of_its_parts() -> None:
    # 0.9 · 1 + 0.1 · 20 = 2.9
    mixture = Mixture(LogNormal(1.0), LogNormal(20.0), 0.1)
    normal, choice = np.random.default_rng(0).standard_normal((2, 40_000))
    assert mixture.mean == pytest.approx(2.9)
    assert float(mixture.of(normal, choice).mean()) == pytest.approx(2.9, rel=0.03)


def test_random_workloads_are_possible_and_differ() -> None:
    names = set()
    for seed in range(40):
        workload = random_workload(seed)
        batch = workload.batch(0, 0)
        names.add(workload.name)
        assert len(batch) == workload.groups * workload.group_size
        assert all(script.turns and script.reset_seconds >= 0 for script in batch)
        assert all(turn.generated_tokens >= 1 and turn.appended_tokens >= 1 for s in batch for turn in s.turns)
    assert len(names) == 40
    assert random_workload(3) == random_workload(3)


def test_a_batch_of_64_is_drawn_within_10_ms() -> None:
    def seconds(step: int) -> float:
        started = time.process_time()
        SWE.batch(step, 0)
        return time.process_time() - started

    assert min(seconds(step) for step in range(20)) < 0.010
