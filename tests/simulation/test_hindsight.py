"""The hindsight searches find the best of what they may try, with a score that a person can see through."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pearl_planner.engine.tables import load_table
from pearl_simulator.rules import make_rule
from pearl_simulator.rules.hindsight import Candidate, clairvoyant, parts_of, static_best
from pearl_simulator.types import Calibration, CapacityChange, Feeding, Scenario, Training
from pearl_simulator.workloads.presets import presets

if TYPE_CHECKING:
    from collections.abc import Sequence

SCENARIO = Scenario(
    "hand",
    presets()["llm-bound"],
    Calibration("clean", load_table("Qwen/Qwen3-8B/H100-TP2")),
    Training(10.0, Feeding.BARRIER),
    900.0,
    capacity=(CapacityChange(0.0, 12), CapacityChange(310.0, 6), CapacityChange(700.0, 8)),
)


def score(candidates: Sequence[Candidate]) -> list[float]:
    """Best with loans; a quarter prefills at first, half from 310 s on; colocated below 0.4 of the batch."""

    def one(candidate: Candidate) -> float:
        known = dict(candidate.parameters)
        if candidate.rule != "schedule":
            return 9.0
        first, second = known["share_0"], known.get("share_1", known["share_0"])
        tail = known["tail_below"] == 0.4 and known["tail_share"] == 0.0
        return known["borrow"] + 2 * (first == 0.25) + 1.5 * (second == 0.5) + 0.5 * tail

    return [one(candidate) for candidate in candidates]


def test_the_static_best_is_one_share_for_all() -> None:
    found = static_best(SCENARIO, score)
    assert dict(found.candidate.parameters)["share_0"] == 0.25
    assert (found.score, found.tried) == (3.0, 12)  # six shares, with and without loans


def test_the_clairvoyant_schedule_changes_one_coordinate_after_the_other() -> None:
    found = clairvoyant(SCENARIO, score)
    known = dict(found.candidate.parameters)
    assert parts_of(SCENARIO) == (0.0, 310.0, 700.0)
    assert (known["share_0"], known["share_1"], known["tail_below"], known["borrow"]) == (0.25, 0.5, 0.4, 1.0)
    assert found.score == pytest.approx(1 + 2 + 1.5 + 0.5)
    make_rule(found.candidate.rule, known)


def test_whatever_is_offered_may_win() -> None:
    assert clairvoyant(SCENARIO, score, offered=[Candidate("pearl")]).candidate == Candidate("pearl")
