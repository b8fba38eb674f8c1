"""The trainer's GPUs: offered while it waits, lent when the plan grants the loan, back `sleep_seconds` after a reclaim.

One loan per node of eight GPUs (one trainer pod each), all of them offered and asked back together. A refused offer is
repeated every 30 s while the trainer waits. A reclaim is obeyed at once: what runs on borrowed workers goes on
elsewhere from its tokens; the GPUs are free `sleep_seconds` later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl_planner.types import Activity, Loan, Role, WorkerState, Zone
from pearl_simulator.cluster.clock import SimulationError
from pearl_simulator.cluster.pods import Pod

if TYPE_CHECKING:
    from collections.abc import Callable

    from pearl_planner.types import AnswerLoan
    from pearl_simulator.cluster.clock import Clock
    from pearl_simulator.cluster.pods import Pods
    from pearl_simulator.types import Scenario

GPUS_PER_NODE = 8
FIRST_SLOT = 1000
"""Borrowed workers are numbered from here, apart from those that the plan makes."""
RETRY_SECONDS = 30.0
IDLE_WEIGHT = 0.3
"""Of the newest idle time in the decaying average."""
NAMESPACE = "training"


class _Node:
    """One loan object with its borrower pods."""

    __slots__ = ("epoch", "name", "phase", "pods", "requested", "ticket")

    def __init__(self, name: str, pods: list[Pod]) -> None:
        self.name = name
        self.pods = pods
        self.epoch = 0
        self.phase = "Idle"
        self.requested = False
        self.ticket = 0


class Lender:
    """All loans of the trainer."""

    def __init__(self, scenario: Scenario, clock: Clock, pods: Pods) -> None:
        self._costs = scenario.costs
        self._clock = clock
        self._pods = pods
        self._offered_at: float | None = None
        self._idle_mean: float | None = None
        self.reclaims: list[float] = []
        self._nodes: list[_Node] = []
        per = scenario.fleet.gpus_per_worker
        left, slot = scenario.fleet.borrowed_max_gpus // per, FIRST_SLOT
        while left > 0:
            count = min(left, max(1, GPUS_PER_NODE // per))
            borrowers = [self._borrower(slot + k, f"loan-{len(self._nodes)}", per) for k in range(count)]
            self._nodes.append(_Node(f"loan-{len(self._nodes)}", borrowers))
            left, slot = left - count, slot + count

    def _borrower(self, slot: int, loan: str, gpus: int) -> Pod:
        pod = Pod(slot, 0, Zone.BORROWED, Role.COLOCATED, gpus)
        pod.loan = loan
        pod.state = WorkerState.COLD
        pod.activity = pod.acked_activity = Activity.ASLEEP
        self._pods.by_name[pod.name] = pod
        return pod

    def loans(self) -> tuple[Loan, ...]:
        """As recorded now."""
        return tuple(self._loan(node) for node in self._nodes)

    def _loan(self, node: _Node) -> Loan:
        idle = self._idle_mean
        if idle is not None and self._offered_at is not None:
            idle = max(idle - (self._clock.now - self._offered_at), 0.0)
        return Loan(
            name=node.name,
            namespace=NAMESPACE,
            epoch=node.epoch,
            phase=node.phase,
            gpus=sum(pod.gpus for pod in node.pods),
            workers=tuple(pod.name for pod in node.pods),
            requested=node.requested,
            expected_idle_seconds=idle,
        )

    def offer(self) -> None:
        """The trainer waits: its GPUs may be had."""
        if not self._nodes:
            return
        self._offered_at = self._clock.now
        for node in self._nodes:
            self._ask(node)

    def _ask(self, node: _Node) -> None:
        node.epoch += 1
        node.phase, node.requested = "Offered", True
        self._pods.wake()

    def answer(self, action: AnswerLoan) -> None:
        """What the plan said to an offer; an answer to an old one is nothing."""
        node = next((one for one in self._nodes if one.name == action.loan), None)
        if node is None or not node.requested or node.epoch != action.epoch:
            return
        node.requested = False
        if not action.granted:
            node.phase = "Idle"
            self._clock.after(RETRY_SECONDS, self._retry, (node, node.ticket))
            return
        node.phase = "Waking"
        for pod in node.pods:
            pod.state = WorkerState.STARTING
            self._pods.hold(pod)
        self._clock.after(self._costs.wake_seconds, self._awake, (node, node.ticket))

    def _retry(self, again: tuple[_Node, int]) -> None:
        node, ticket = again
        if node.ticket == ticket and node.phase == "Idle" and self._offered_at is not None:
            self._ask(node)

    def _awake(self, woken: tuple[_Node, int]) -> None:
        node, ticket = woken
        if node.ticket != ticket:
            return
        node.phase = "Serving"
        for pod in node.pods:
            self._pods.serve(pod)

    def reclaim(self, then: Callable[[], None]) -> None:
        """Everything back at once; `then` is called when the GPUs are free (now if nothing is lent)."""
        now = self._clock.now
        if self._offered_at is not None:
            idle = now - self._offered_at
            self._idle_mean = (
                idle if self._idle_mean is None else self._idle_mean + IDLE_WEIGHT * (idle - self._idle_mean)
            )
        self._offered_at = None
        lent = [node for node in self._nodes if node.phase in ("Waking", "Serving")]
        for node in self._nodes:
            node.requested = False
            node.ticket += 1
            node.phase = "Draining" if node in lent else "Idle"
        borrowers = [pod for node in lent for pod in node.pods]
        self._pods.withdraw(borrowers, WorkerState.ASLEEP)
        for pod in borrowers:
            pod.activity = pod.acked_activity = Activity.ASLEEP
            pod.acked_role, pod.acked_epoch = pod.role, pod.role_epoch
            self._pods.stop_engine(pod)
        if not lent:
            then()
            return
        self._pods.wake()
        self._clock.after(self._costs.sleep_seconds, self._asleep, (lent, now, then))

    def _asleep(self, back: tuple[list[_Node], float, Callable[[], None]]) -> None:
        lent, asked_at, then = back
        for node in lent:
            node.phase = "Idle"
            for pod in node.pods:
                if pod.engine is not None:
                    raise SimulationError(f"{pod.name} still runs after its reclaim")
                self._pods.free(pod)
                pod.state = WorkerState.COLD
        self.reclaims.append(self._clock.now - asked_at)
        then()
