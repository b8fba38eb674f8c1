"""Engines that sleep since nobody asks, and wake with the next turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from traffic import identity, prompt, undisturbed

from pearl_api.wire.gateway import HEADER_CLASS
from pearl_api.wire.worker import WorkerPhase
from pearl_dev.fleet import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pearl_dev.fleet import Fleet

pytestmark = pytest.mark.cluster


@pytest.fixture
def sleepy(colocated: Fleet) -> Iterator[Fleet]:
    """Three colocated workers that sleep soon."""
    yield colocated
    colocated.patch({"idle": None})
    colocated.wait_ready(3)


def phases(fleet: Fleet) -> set[WorkerPhase]:
    """What the agents of all workers say."""
    return {fleet.agent(pod).phase for pod in fleet.workers()}


def turn(number: int) -> dict[str, str]:
    """Headers of a turn that the profile leaves out: its long wait is no tool's."""
    return {**identity("idle", number), HEADER_CLASS: "other"}


def test_engines_sleep_when_nobody_asks_and_the_next_turn_of_a_trajectory_wakes_them(sleepy: Fleet) -> None:
    fleet = sleepy
    pods, engines, lost = fleet.uids(), fleet.engines(), fleet.stats().counters.lost_turns
    first = prompt(901, 60)
    begun = fleet.generate(first, 20, turn(0))
    fleet.patch({"idle": {"afterSeconds": 3, "action": "Sleep"}})
    wait_for(
        lambda: phases(fleet) == {WorkerPhase.ASLEEP}, seconds=60, what="all engines sleep", last=lambda: phases(fleet)
    )
    ready = fleet.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "Idle"), ready

    longer = [*first, *begun.token_ids, *prompt(902, 30)]
    answer = fleet.generate(longer, 20, turn(1))

    fleet.patch({"idle": {"action": "None"}})
    fleet.wait_ready(3)
    assert answer.token_ids == undisturbed(fleet, longer, 20)
    assert (fleet.uids(), fleet.engines()) == (pods, engines), "the same pods and the same engine processes"
    assert fleet.stats().counters.lost_turns == lost
