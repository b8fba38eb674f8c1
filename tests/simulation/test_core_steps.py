"""Fluid decode between events against a replay that runs every engine step: the same agents, nearly the same times."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from small import Same, makespan, scenario, simulate

from pearl_planner.engine.tables import load_table
from pearl_planner.types import Shape
from pearl_simulator.outside.step_replay import Asked, Setup, turn_seconds
from pearl_simulator.types import Calibration, Script, Turn

if TYPE_CHECKING:
    from collections.abc import Sequence

TABLE = replace(load_table("Qwen/Qwen3-8B/H100-TP2"), kv_bytes_per_token=0.0, transfer_fixed_seconds=0.01)
AGENTS, TURNS = 12, 8


@dataclass(frozen=True)
class Given(Same):
    """These scripts, once."""

    scripts: tuple[Script, ...] = ()

    def batch(self, step: int, seed: int) -> Sequence[Script]:  # noqa: ARG002
        return self.scripts


def scripts(seed: int) -> tuple[Script, ...]:
    chance = random.Random(seed)
    return tuple(
        Script(
            agent,
            0,
            1.0,
            tuple(
                Turn(chance.randint(20, 6000), made, made, 0.0, chance.expovariate(2.0))
                for made in (chance.randint(2, 400) for _ in range(TURNS))
            ),
        )
        for agent in range(AGENTS)
    )


def asked(script: Script) -> list[Asked]:
    found, history = [], 0
    for turn in script.turns:
        history += turn.appended_tokens
        found.append(Asked(history, turn.generated_tokens, turn.environment_seconds))
        history += turn.generated_tokens
    return found


@pytest.mark.parametrize("disaggregated", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
def test_turn_level_events_take_as_long_as_single_steps(seed: int, *, disaggregated: bool) -> None:
    given = scripts(seed)
    setup = Setup(TABLE, disaggregated, AGENTS, 2048, block_tokens=1, handover_seconds=0.01)
    seconds = turn_seconds([asked(script) for script in given], setup)
    waits = [sum(turn.environment_seconds for turn in script.turns) for script in given]
    single_steps = max(sum(turns) + wait for turns, wait in zip(seconds, waits, strict=True))
    shape = Shape(0, 1, 1) if disaggregated else Shape(colocated=1)
    one = scenario(
        workers=shape.workers,
        workload=Given(lambda _g, _m: (), groups=AGENTS, scripts=given),
        calibration=Calibration("steps", TABLE, max_batched_tokens=2048),
    )
    assert makespan(simulate(one, shape)) == pytest.approx(single_steps, rel=0.02)
