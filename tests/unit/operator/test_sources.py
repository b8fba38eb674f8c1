"""Which agents a look asks."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

import pytest
from fake_cluster import FakeGateway, FakePrometheus

from pearl_api import names
from pearl_api.loan import GPULoanSpec, GPULoanStatus, LoanPhase
from pearl_api.wire.worker import LoanState, WorkerPhase, WorkerState
from pearl_dev.virtual.clock import VirtualClock
from pearl_dev.virtual.kube import FakeKube
from pearl_operator.errors import Unavailable
from pearl_operator.facts import LoanFact, PodFact
from pearl_operator.ports import PodAddress, RolloutKey
from pearl_operator.sources import Samples, Sources

pytestmark = pytest.mark.looptime
KEY = RolloutKey("rl", "swe")


@dataclass
class Agents:
    """Says who was asked."""

    asked: list[str] = field(default_factory=list)
    phase: WorkerPhase = WorkerPhase.COLD
    down: bool = False

    async def state(self, rollout: RolloutKey, pod: PodAddress) -> WorkerState:
        del rollout
        self.asked.append(pod.uid)
        if self.down:
            raise Unavailable("no answer")
        return WorkerState(pod_uid=pod.uid, phase=self.phase, activity=names.Activity.ACTIVE, engine_starts=0)

    async def set_activity(self, *_: object) -> WorkerState:
        raise NotImplementedError

    async def grant(self, *_: object) -> LoanState:
        raise NotImplementedError


class Scene:
    """Borrowers, their loans, and the sources that look at them."""

    def __init__(self, count: int) -> None:
        self.agents = Agents()
        clock = VirtualClock()
        gateway = FakeGateway(FakeKube(clock))
        self.sources = Sources(KEY, gateway, FakePrometheus(), self.agents, clock)
        self.pods = [borrower(number) for number in range(count)]
        self.loans = [loan(number) for number in range(count)]

    async def look(self) -> Samples:
        self.agents.asked.clear()
        return await self.sources.read(self.pods, self.loans, None)


def borrower(number: int) -> PodFact:
    return PodFact(
        address=PodAddress("ml", f"trainer-{number}-borrower-0", f"uid-{number}", "10.0.0.1"),
        resource_version="1",
        rollout=KEY,
        component="worker",
        zone=names.Zone.BORROWED,
        loan=f"trainer-{number}",
        running=True,
    )


def loan(number: int) -> LoanFact:
    spec = GPULoanSpec.model_validate(
        {
            "rolloutRef": {"namespace": "rl", "name": "swe"},
            "trainer": {"name": f"trainer-{number}", "uid": "u"},
            "gpus": [f"GPU-{number}"],
            "node": "node-1",
        }
    )
    return LoanFact(
        namespace="ml",
        name=f"trainer-{number}",
        uid="u",
        resource_version="1",
        deleting=False,
        rollout=KEY,
        spec=spec,
        status=GPULoanStatus(),
    )


async def test_borrowers_of_which_nothing_changed_are_asked_once_a_second() -> None:
    scene = Scene(3)
    await scene.look()
    assert sorted(scene.agents.asked) == ["uid-0", "uid-1", "uid-2"]
    scene.agents.phase = WorkerPhase.READY
    samples = await scene.look()
    assert scene.agents.asked == []
    assert {state.phase for state in samples.agents.values()} == {WorkerPhase.COLD}
    await asyncio.sleep(1.0)
    samples = await scene.look()
    assert {state.phase for state in samples.agents.values()} == {WorkerPhase.READY}


async def test_a_borrower_whose_pod_or_loan_changed_is_asked_at_once() -> None:
    scene = Scene(3)
    await scene.look()
    scene.loans[1] = replace(scene.loans[1], resource_version="2")
    scene.pods[2] = replace(scene.pods[2], resource_version="2")
    await scene.look()
    assert sorted(scene.agents.asked) == ["uid-1", "uid-2"]


@pytest.mark.parametrize("phase", [LoanPhase.GRANTED, LoanPhase.WAKING, LoanPhase.DRAINING, LoanPhase.ASLEEP])
async def test_a_borrower_on_its_way_is_asked_at_every_look(phase: LoanPhase) -> None:
    """The grant is stored before the agent hears of it: what it said in between tells nothing of the grant."""
    scene = Scene(2)
    scene.loans[1] = replace(scene.loans[1], status=GPULoanStatus(phase=phase))
    await scene.look()
    await scene.look()
    assert scene.agents.asked == ["uid-1"]


async def test_with_many_borrowers_everybody_is_asked_in_turn() -> None:
    scene = Scene(100)
    assert len((await scene.look()).agents) == 64
    samples = await scene.look()
    assert len(scene.agents.asked) == 36
    assert len(samples.agents) == 100


async def test_an_agent_that_does_not_answer_is_unknown_and_holds_up_one_look_a_second() -> None:
    scene = Scene(1)
    await scene.look()
    scene.agents.down = True
    await asyncio.sleep(1.0)
    assert (await scene.look()).agents == {}
    assert (await scene.look()).agents == {}
    assert scene.agents.asked == []


async def test_workers_of_the_fleets_own_are_asked_at_every_look() -> None:
    scene = Scene(1)
    scene.pods[0] = replace(scene.pods[0], zone=names.Zone.RESERVED, loan=None)
    for _ in range(2):
        await scene.look()
        assert scene.agents.asked == ["uid-0"]
