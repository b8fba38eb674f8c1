"""Lend and reclaim, in any order of calls, messages, crashes and time: never two holders, and every reclaim ends.

Trainer, operator and agents are what the code has of them without I/O: the SDK's flows, the record of a GPULoan, the
agent's fence with its file. Messages arrive when the test says so, twice, or never.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from agent import GIB, Agent
from flows import Message, Runner
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from recorder import BASE, Operator

from pearl_trainer.core import EARLIER_SECONDS, Identity, LoanCore
from pearl_trainer.errors import NotReturned
from pearl_trainer.gpus import MemoryProbe
from pearl_trainer.messages import RegisterRequest
from pearl_trainer.sansio import NoReply
from pearl_worker.fence import Fence

if TYPE_CHECKING:
    from flows import Task

    from pearl_trainer.sansio import Request

NAMES = ("b0", "b1")
FAULTS = (
    "trainer",
    "operator",
    "operator for a moment",
    "planner refuses",
    "agent",
    "link",
    "slow engine",
    "stuck engine",
)
LATE_SECONDS = 0.2


class Protocol(RuleBasedStateMachine):
    """One trainer pod with two GPUs, its two borrowers, one operator."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.folder = tempfile.TemporaryDirectory()
        self.network: list[Message] = []
        self.past: list[Message] = []
        """The last requests that arrived."""
        self.replies: dict[int, Any] = {}
        self.operator = Operator(NAMES, self.clock, self.answer, self.call_agent)
        self.agents = {name: Agent(name, Path(self.folder.name), self.clock, self.answer) for name in NAMES}
        self.training = False
        self.unaware = False
        """The trainer restarted and could not learn of its predecessor's loan; its engine ends with its lease."""
        self.unaware_until = 0.0
        self.reclaiming: tuple[Task, float] | None = None
        self.lending: Task | None = None
        self.ids = 0
        self.boot()

    def teardown(self) -> None:
        self.folder.cleanup()

    @initialize(enrolled=st.sampled_from([True, True, True, False]))
    def begin(self, enrolled: bool) -> None:
        if enrolled:
            self.all_arrive()
            self.settle()

    def clock(self) -> float:
        return self.now

    def boot(self) -> None:
        """A trainer process starts: it enrols, and its engines' times are unknown to it."""
        self.trainer = Runner(self.clock, self.network.append)
        probe = MemoryProbe(lambda: tuple(agent.gpu.engine + agent.gpu.trainer for agent in self.agents.values()))
        request = RegisterRequest("r", ("GPU-a", "GPU-b"))
        self.core = LoanCore(
            Identity(BASE, lambda: "token", request), clock=self.clock, new_id=self.new_id, probe=probe
        )
        self.reclaiming = self.lending = None
        self.enrolling = self.trainer.start(self.core.enrol())
        self.keeping = False

    def new_id(self) -> str:
        self.ids += 1
        return f"request-{self.ids}"

    # --- the network

    def answer(self, message: Message, outcome: Any) -> None:
        """A receiver's answer sets out."""
        self.network.append(Message(message.request, message.task, outcome))

    def call_agent(self, request: Request, heard: Any) -> None:
        """The operator calls an agent."""
        message = Message(request, None)
        self.replies[id(request)] = (request, heard)
        self.network.append(message)

    def arrive(self, message: Message) -> None:
        if message.outcome is not None:
            _, heard = self.replies.get(id(message.request), (None, None))
            if heard is not None:
                heard(message.outcome)
            else:
                self.trainer.answer(message)
            return
        self.past = [*self.past[-11:], message]
        host = message.request.url.split("/")[2]
        if host in self.agents:
            agent = self.agents[host]
            if agent.reachable:
                agent.receive(message)
            else:
                self.answer(message, NoReply("connection refused"))
        elif not self.operator.up:
            self.answer(message, NoReply("connection refused"))
        elif self.operator.busy and message.request.method == "POST":
            self.network.append(message)  # it waits for the loan's lock
        else:
            self.operator.receive(message)

    @precondition(lambda self: self.network)
    @rule(number=st.integers(0, 5))
    def one_arrives(self, number: int) -> None:
        self.arrive(self.network.pop(number % len(self.network)))

    @precondition(lambda self: self.network)
    @rule()
    def all_arrive(self) -> None:
        for _ in range(60):
            if not self.network:
                return
            self.arrive(self.network.pop(0))

    @precondition(lambda self: self.network)
    @rule(number=st.integers(0, 5))
    def one_is_lost(self, number: int) -> None:
        self.network.pop(number % len(self.network))

    @precondition(lambda self: self.past)
    @rule(number=st.integers(0, 11))
    def an_old_one_comes_again(self, number: int) -> None:
        """A duplicate, perhaps one that was under way for long."""
        old = self.past[-1 - number % len(self.past)]
        self.arrive(Message(old.request, old.task, old.outcome))

    # --- time

    @rule(seconds=st.sampled_from([0.05, 0.3, 1.0, 2.5, 9.0, 19.0]), flows=st.sampled_from([True, True, False]))
    def time_passes(self, seconds: float, flows: bool) -> None:
        """With `flows` messages arrive meanwhile, as on a network in good health."""
        until = self.now + seconds
        while True:
            if flows:
                self.all_arrive()
            timers = [self.trainer.next_timer(), self.operator.next_timer()]
            timers += [agent.next_timer() for agent in self.agents.values()]
            self.now = min([until, *(timer for timer in timers if timer is not None and timer > self.now)])
            self.trainer.run_timers()
            self.operator.tick()
            for agent in self.agents.values():
                agent.tick()
            self.settle()
            if self.now >= until:
                return

    def settle(self) -> None:
        """The trainer's script goes on where a call has returned; everything is checked at every instant."""
        if self.enrolling.done and not self.keeping:
            self.keeping = True
            self.trainer.start(self.core.keep())
        if self.lending is not None and self.lending.done:
            self.lending = None
        if self.reclaiming is not None and self.reclaiming[0].done:
            task, self.reclaiming = self.reclaiming[0], None
            assert task.error is None or isinstance(task.error, NotReturned)
            self.training = task.error is None
            if self.training and self.unaware and self.core.registration is not None:
                self.unaware = False
        self.nobody_shares_a_gpu()
        self.leases_end()
        self.reclaims_end()

    # --- the trainer's script

    @precondition(lambda self: self.reclaiming is None and self.lending is None and self.enrolling.done)
    @rule()
    def lend(self) -> None:
        self.training = False
        for agent in self.agents.values():
            agent.gpu.trainer = 0
        self.lending = self.trainer.start(self.core.lend())
        self.settle()

    @precondition(lambda self: self.reclaiming is None and self.enrolling.done)
    @rule(within=st.sampled_from([None, 1.0, 3.0, 30.0]))
    def reclaim(self, within: float | None) -> None:
        if self.lending is not None:
            return  # the script is in lend()
        # Who never reached PEARL knows no default deadline, and waits for what its predecessor may have lent.
        default = 10.0 if self.core.registration is not None else EARLIER_SECONDS + 10.0
        task = self.trainer.start(self.core.reclaim(within))
        self.reclaiming = (task, self.now + (within or default))
        self.settle()

    @precondition(lambda self: self.training)
    @rule()
    def onload(self) -> None:
        for agent in self.agents.values():
            agent.gpu.trainer = 30 * GIB

    # --- what breaks

    @rule(fault=st.sampled_from(FAULTS), name=st.sampled_from(NAMES))
    def something_breaks(self, fault: str, name: str) -> None:
        agent = self.agents[name]
        match fault:
            case "trainer":
                self.trainer_crashes()
            case "operator":
                self.operator.up = False
                self.operator_restarts()
            case "operator for a moment":
                self.operator_restarts()
            case "planner refuses":
                self.operator.grants_offers = False
            case "agent":
                agent.restart()
            case "link":
                agent.reachable = False
            case "slow engine":
                agent.vacate_seconds = 5.0
            case "stuck engine":
                agent.vacate_seconds = 100.0

    def operator_restarts(self) -> None:
        """What it was sent and has answered ends with its connections."""
        self.operator.restart()
        self.past = [one for one in self.past if one.request.url.split("/")[2] in self.agents]

    def trainer_crashes(self) -> None:
        self.training = False
        for agent in self.agents.values():
            agent.gpu.trainer = 0
        self.unaware, self.unaware_until = True, max(agent.held_until for agent in self.agents.values())
        self.boot()
        self.settle()

    @rule()
    def everything_is_mended(self) -> None:
        self.operator.up = self.operator.grants_offers = True
        for agent in self.agents.values():
            agent.reachable, agent.vacate_seconds = True, 0.3

    # --- what must hold

    @invariant()
    def nobody_shares_a_gpu(self) -> None:
        if not self.training:
            return
        holding = [name for name, agent in self.agents.items() if agent.holds]
        excused = self.unaware and self.now <= self.unaware_until
        assert not holding or excused, f"{holding} hold GPUs of a trainer that trains"

    @invariant()
    def leases_end(self) -> None:
        for name, agent in self.agents.items():
            assert not agent.holds or self.now <= agent.held_until, f"{name} outlived its lease"

    @invariant()
    def reclaims_end(self) -> None:
        if self.reclaiming is not None:
            assert self.now <= self.reclaiming[1] + LATE_SECONDS, "a reclaim went on after its hard deadline"

    @invariant()
    def epochs_grow(self) -> None:
        assert self.operator.epochs == sorted(set(self.operator.epochs))
        for name, agent in self.agents.items():
            assert agent.opened == sorted(set(agent.opened)), f"{name} ran an engine twice under one epoch"


FEW = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
"""The same runs every time; the long test looks for new ones."""
BROKEN = settings(FEW, max_examples=3000, report_multiple_bugs=False, phases=[Phase.generate], database=None)
MANY = settings(FEW, max_examples=300, stateful_step_count=60, derandomize=False)


def test_the_protocol_holds() -> None:
    run_state_machine_as_test(Protocol, settings=FEW)  # type: ignore[no-untyped-call]


@pytest.mark.slow
def test_the_protocol_holds_in_long_runs() -> None:
    run_state_machine_as_test(Protocol, settings=MANY)  # type: ignore[no-untyped-call]


def test_a_reclaim_ends_on_time_where_nobody_answers_at_all() -> None:
    one = Protocol()
    one.begin(enrolled=True)
    one.lend()
    one.all_arrive()
    one.agents["b0"].reachable = False
    one.reclaim(within=3.0)
    one.time_passes(seconds=2.5, flows=True)
    one.time_passes(seconds=1.0, flows=False)  # the last question to the operator is never answered
    assert one.reclaiming is None
    assert not one.training
    one.teardown()


def no_fence(self: Fence, epoch: int, ttl_seconds: float, now: float) -> Fence:
    """Takes every grant, also of an epoch that was reclaimed."""
    return Fence(epoch=max(epoch, self.epoch), ttl_seconds=ttl_seconds, expires_at=now + ttl_seconds)


def no_lease(self: Fence, now: float) -> Fence:
    """Never ends by itself."""
    del now
    return self


def forgetful(self: Fence, epoch: int) -> Fence:
    """A reclaim takes the engine away, and the next grant of the same epoch brings it back."""
    return Fence(epoch=max(epoch, self.epoch) - 1)


@pytest.mark.parametrize("name", ["grant", "expire", "reclaim"])
def test_a_broken_fence_is_found(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(Fence, name, {"grant": no_fence, "expire": no_lease, "reclaim": forgetful}[name])
    with pytest.raises((AssertionError, ExceptionGroup)):
        run_state_machine_as_test(Protocol, settings=BROKEN)  # type: ignore[no-untyped-call]
