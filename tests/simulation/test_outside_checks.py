"""Checks from outside: recorded steps of real vLLM, and an independent replay of agent sessions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pearl_simulator import cliff, cliff_oracle
from pearl_simulator.engine_check import check, load

if TYPE_CHECKING:
    from pearl_simulator.cliff import Cell

DATA = Path(__file__).parents[2] / "docs" / "results" / "data"


@pytest.mark.parametrize(("model", "heldout", "turns"), [("smollm2", 0.20, 0.30), ("tiny", 0.25, 0.25)])
def test_the_formula_predicts_recorded_steps_and_turns_of_real_vllm(model: str, heldout: float, turns: float) -> None:
    checked = check(load(DATA, model))
    assert checked.fitted.heldout_error is not None
    assert checked.fitted.heldout_error < heldout
    assert 0.75 < checked.total < 1.25  # seconds of other work at another time
    errors = [abs(turn.error) for turn in checked.turns if not turn.alone]
    assert len(errors) == 6
    assert sum(errors) / len(errors) < turns


@pytest.fixture(scope="module")
def cells() -> dict[str, Cell]:
    sessions = cliff.sessions()
    return {cell.shape: cell for cell in (cliff.simulate(shape, sessions) for shape in cliff.SHAPES)}


def test_the_simulator_falls_off_the_prefix_cache_cliff(cells: dict[str, Cell]) -> None:
    assert cells["2P6D"].seconds > 3 * cells["4P4D"].seconds
    assert cells["2P6D"].reuse < 0.4
    assert cells["4P4D"].reuse > 0.7
    assert cells["3P5D"].seconds > 1.2 * cells["4P4D"].seconds
    assert min(cells[name].seconds for name in cells if "P" in name) == cells["4P4D"].seconds


def test_the_simulator_orders_the_shapes_as_an_independent_replay_does(cells: dict[str, Cell]) -> None:
    replayed = {name: cliff.REPLAYED[name, cliff.STICKY][0] for name in cells}
    assert sorted(cells, key=lambda name: cells[name].seconds) == sorted(cells, key=replayed.__getitem__)
    errors = {name: abs(cells[name].seconds / replayed[name] - 1) for name in cells}
    assert max(errors.values()) < 0.35, errors
    assert sorted(errors.values())[2] < 0.2, errors


@pytest.mark.skipif(not cliff_oracle.available(), reason="needs ai-dynamo-runtime (see cliff_oracle.py)")
def test_the_independent_replay_still_says_what_is_written_down() -> None:
    os.environ["DYN_LOG"] = "error"
    question = cliff_oracle.Question(cliff.engine_table(), cliff.GPUS, cliff.CONCURRENCY, cliff.SESSIONS)
    for shape in ((4, 4), None):
        found = cliff_oracle.replay(question, shape, stickiness=cliff.STICKY)
        # Its routing draws random numbers that no seed fixes.
        assert found.seconds == pytest.approx(cliff.REPLAYED[cliff.shape_name(shape), cliff.STICKY][0], rel=0.1)
