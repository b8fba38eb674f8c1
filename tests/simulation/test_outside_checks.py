"""Checks from outside: recorded steps of real vLLM, and an independent replay of agent sessions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pearl_simulator.outside import cliff, cliff_oracle
from pearl_simulator.outside.engine_check import check, load

if TYPE_CHECKING:
    from pearl_simulator.outside.cliff import Cell, Reference

DATA = Path(__file__).parents[2] / "docs" / "results" / "data"


@pytest.mark.parametrize(("model", "heldout", "turns"), [("smollm2", 0.09, 0.10), ("tiny", 0.22, 0.10)])
def test_the_formula_predicts_recorded_steps_and_turns_of_real_vllm(model: str, heldout: float, turns: float) -> None:
    checked = check(load(DATA, model))
    assert checked.fitted.heldout_error is not None
    assert checked.fitted.heldout_error < heldout
    assert 0.9 < checked.total < 1.1  # seconds of other work at another time
    errors = [abs(turn.error) for turn in checked.turns if not turn.alone]
    assert len(errors) == 6
    assert sum(errors) / len(errors) < turns


REFERENCES = {one.model: one for one in cliff.references()}


@pytest.fixture(
    scope="module",
    params=["Qwen/Qwen3-8B", pytest.param("Qwen/Qwen3-30B-A3B", marks=pytest.mark.slow)],
)
def swept(request: pytest.FixtureRequest) -> tuple[Reference, dict[str, Cell]]:
    """A model and what the simulator says about each shape."""
    known, sessions = REFERENCES[request.param], cliff.sessions()
    return known, {cell.shape: cell for cell in (cliff.simulate(known, shape, sessions) for shape in cliff.SHAPES)}


def test_the_simulator_falls_off_the_prefix_cache_cliff(swept: tuple[Reference, dict[str, Cell]]) -> None:
    _, cells = swept
    assert cells["2P6D"].seconds > 3 * cells["4P4D"].seconds
    assert cells["2P6D"].reuse < 0.4
    assert cells["4P4D"].reuse > 0.7
    assert cells["3P5D"].seconds > 1.15 * cells["4P4D"].seconds
    assert min(cells[name].seconds for name in cells if "P" in name) == cells["4P4D"].seconds


def test_the_simulator_orders_the_shapes_as_an_independent_replay_does(
    swept: tuple[Reference, dict[str, Cell]],
) -> None:
    known, cells = swept
    replayed = {name: known.sticky[name][0] for name in cells}
    assert sorted(cells, key=lambda name: cells[name].seconds) == sorted(cells, key=replayed.__getitem__)
    errors = {name: abs(cells[name].seconds / replayed[name] - 1) for name in cells}
    assert max(errors[name] for name in ("4P4D", "5P3D", "8 colocated")) < 0.15, errors
    assert max(errors.values()) < 0.45, errors  # over the cliff, where the prefix counts here and not in the replay


@pytest.mark.skipif(not cliff_oracle.available(), reason="needs ai-dynamo-runtime (see cliff_oracle.py)")
def test_the_independent_replay_still_says_what_is_written_down() -> None:
    known = REFERENCES["Qwen/Qwen3-8B"]
    question = cliff_oracle.Question(cliff.engine_table(known), cliff.GPUS, cliff.CONCURRENCY, cliff.SESSIONS)
    for shape in ((4, 4), None):
        found = cliff_oracle.replay(question, shape, stickiness=cliff.STICKY)
        # Its routing draws random numbers that no seed fixes.
        assert found.seconds == pytest.approx(known.sticky[cliff.shape_name(shape)][0], rel=0.1)
