"""Act 1 of the demo, without its pace: what it shows is what the operator did, and a broken promise is told."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from examples.demo import __main__ as demo
from examples.demo.emulated import act
from examples.demo.emulated.scenario import PHASES, Phases, scenario
from rich.console import Console

if TYPE_CHECKING:
    from pathlib import Path

    from examples.demo.emulated.facts import Record

    from pearl_simulator.types import Scenario


def short(seconds: float) -> Scenario:
    """Two batches of each kind of agents, a quarter as large."""
    phases = tuple(
        replace(phase, steps=2, agents=replace(phase.agents, groups=2, group_size=8)) for phase in PHASES.phases
    )
    return scenario(Phases(phases, groups=2, group_size=8), seconds)


@pytest.fixture(scope="module")
def record() -> Record:
    return act.play(short(2400.0), seed=1, speed=0.0, console=Console(file=io.StringIO()))


def test_every_promise_is_kept(record: Record) -> None:
    assert {one.text: one.seen for one in record.checks if not one.kept} == {}
    assert len(record.checks) == 7


def test_gpus_are_those_of_trace_and_loans(record: Record) -> None:
    for one in record.samples:
        assert one.reserved <= 4
        assert one.elastic <= one.spot
        assert one.borrowed in (0, 8)
        assert not (one.borrowed and one.training)


def test_what_happened_is_told_in_the_operators_words(record: Record) -> None:
    told = {(one.who, one.text) for one in record.told}
    for one in record.decisions:
        assert ("operator", f"{one.reason}: {one.message}") in told
    assert ("loan", "the operator grants 8 training GPUs (epoch 1)") in told


def test_a_broken_promise_ends_the_demo_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played = short(900.0)
    slow = replace(played, costs=replace(played.costs, sleep_seconds=12.0))  # the deadline is 10 s
    monkeypatch.setattr(demo, "scenario", lambda: slow)
    assert demo.main(["--acts", "1", "--speed", "0", "--out", str(tmp_path)]) == 1
    page = (tmp_path / "report.html").read_text()
    row = page[page.index("Training GPUs come back on time") :]
    assert row.index("broken") < row.index("past the deadline")
