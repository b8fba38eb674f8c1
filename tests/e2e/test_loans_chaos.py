"""What loans.md promises, with things broken one at a time and two at a time: see docs/loans-chaos.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from loans_chaos import phases
from loans_chaos.faults import every
from loans_chaos.report import run
from loans_chaos.runner import pairs, plays, singles
from loans_chaos.scene import Scene
from loans_chaos.stage import cluster, stage

from pearl_dev.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from loans_chaos.report import Play

    from pearl_dev.fleet import Fleet
    from pearl_dev.product import Installation

pytestmark = pytest.mark.cluster

TELLING = (
    "serve: agent-killed",
    "update: operator-killed",
    "reclaim: api-stopped",
    "wake: trainer-cut",
    "serve: trainer-killed",
)
"""One for each way in which a GPU comes back: killed with its agent, asleep with nobody else alive, by its lease, and
by a trainer that was started anew."""
PAIRS = 24


def played(scene: Scene, to_play: Sequence[Play]) -> list[str]:
    result = run(scene, to_play, print)
    assert result.summary()["looks_while_training"] > 0, "the watcher saw no training: it is blind"
    return result.problems


@pytest.fixture
def emulated() -> Iterator[Scene]:
    """A cluster and a fleet of its own, whose engines start in a second."""
    with cluster("chaos-test", Progress()) as running, stage(running, real=False, seed=1) as scene:
        yield scene


@pytest.mark.slow  # a minute of chaos, and another two for a cluster of its own
def test_a_loan_keeps_its_promises_when_something_breaks(emulated: Scene) -> None:
    cases = {case.name: case for case in singles(phases.EVERY, every(api_stopped_seconds=15))}
    assert played(emulated, plays([cases[name] for name in TELLING])) == []


@pytest.fixture
def real(installation: Installation, quickstart: Fleet) -> Scene:
    """The fleet that this folder's tests share, with real vLLM."""
    return Scene(installation, quickstart, turns_per_second=0.3, seed=1).open()


@pytest.mark.slow
def test_a_loan_keeps_its_promises_with_real_engines(real: Scene) -> None:
    cases = {case.name: case for case in singles(phases.EVERY, every(api_stopped_seconds=15))}
    assert played(real, plays([cases[name] for name in TELLING])) == []


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_loan_keeps_its_promises_whatever_breaks_and_whenever(emulated: Scene) -> None:
    faults = every()
    cases = [*singles(phases.EVERY, faults), *pairs(phases.EVERY, faults, PAIRS, seed=1)]
    assert played(emulated, plays(cases)) == []
