"""`pearl-sim replay-snapshot`: a recorded decision is made again, shown, and held against the recorded bytes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from planner_fleet import Fleet, budget, policy, turns, worker

from pearl_planner.plan import plan
from pearl_planner.serialize import to_json
from pearl_simulator.cli import main

if TYPE_CHECKING:
    from pathlib import Path


def recorded() -> dict[str, Any]:
    """One entry of the operator's ring, of a fleet of two with a profile."""
    fleet = Fleet(budget(2), policy(), {f"w{slot}-0": worker(slot) for slot in range(2)}, profile=turns(400, 20))
    snapshot = fleet.snapshot()
    decided = plan(snapshot, fleet.policy)
    return {"snapshot": to_json(snapshot), "policy": to_json(fleet.policy), "plan": to_json(decided)}


def test_an_equal_decision_is_shown_with_its_finalists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = recorded()
    for content in (entry, [entry]):
        (tmp_path / "ring.json").write_text(json.dumps(content))
        assert main(["replay-snapshot", str(tmp_path / "ring.json")]) == 0
        said = capsys.readouterr().out
        assert entry["plan"]["message"][:60] in said
        assert all(f" {shape} " in said for shape in ("colocated:2", "disaggregated:1P1D"))
        assert "equals the recorded decision byte for byte" in said


def test_another_decision_is_named_by_its_fields_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same, other = recorded(), recorded()
    other["plan"] |= {"reason": "Applied", "next_look_seconds": 77.0}
    (tmp_path / "ring.json").write_text(json.dumps([same, other]))
    assert main(["replay-snapshot", str(tmp_path / "ring.json")]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("byte for byte") == 1
    assert "differs in next_look_seconds, reason; recorded: Applied: " in said


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "check the path"),
        ("no JSON", "is no JSON"),
        ("[]", "holds no decision"),
        ('{"snapshot": {}, "policy": {}}', "entry 1 has no objects snapshot, policy, plan"),
        ('[{"snapshot": {"now": 1}, "policy": {}, "plan": {}}]', "of entry 1 is not this version's form"),
    ],
)
def test_a_file_that_is_no_recording_gets_one_sentence(
    content: str | None, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "ring.json").write_text(content)
    assert main(["replay-snapshot", str(tmp_path / "ring.json")]) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("pearl-sim: ")
    assert sentence in said
    assert len(said.splitlines()) == 1
