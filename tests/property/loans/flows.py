"""Runs the SDK's flows on a clock and a network that the test moves: every message waits until it is told to arrive."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pearl_trainer.errors import PearlError
from pearl_trainer.sansio import Invoke, NoReply, Send, Sleep, Spawn, Together

if TYPE_CHECKING:
    from collections.abc import Callable

    from pearl_trainer.sansio import Flow, Outcome, Request, Step


@dataclass(eq=False)
class Task:
    """One flow under way."""

    flow: Flow[Any]
    parent: Task | None = None
    done: bool = False
    result: Any = None
    error: Exception | None = None
    wake_at: float | None = None
    sent: Message | None = None
    children: list[Task] = field(default_factory=list)


@dataclass(eq=False)
class Message:
    """A request on its way, or (with `outcome`) an answer on its way back to `task`."""

    request: Request
    task: Task | None
    outcome: Outcome | None = None


class Runner:
    """Tasks of one process. `post` puts a message on the network."""

    def __init__(self, clock: Callable[[], float], post: Callable[[Message], None]) -> None:
        self._clock = clock
        self._post = post
        self._tasks: list[Task] = []

    def start(self, flow: Flow[Any], parent: Task | None = None) -> Task:
        task = Task(flow, parent)
        self._tasks.append(task)
        self._go(task, None)
        return task

    def next_timer(self) -> float | None:
        return min((task.wake_at for task in self._tasks if task.wake_at is not None), default=None)

    def run_timers(self) -> None:
        """Ends sleeps, and requests that got no answer in time."""
        for task in list(self._tasks):
            if task.wake_at is not None and task.wake_at <= self._clock():
                outcome = NoReply("no answer in time") if task.sent is not None else None
                task.sent = task.wake_at = None
                self._go(task, outcome)

    def answer(self, message: Message) -> None:
        """An answer arrived; late ones and second ones find nobody."""
        task = message.task
        if task is None or task not in self._tasks or task.sent is None or task.sent.request is not message.request:
            return
        task.sent = task.wake_at = None
        self._go(task, message.outcome)

    def _go(self, task: Task, value: Any) -> None:
        while not task.done:
            try:
                step = task.flow.throw(value) if isinstance(value, Exception) else task.flow.send(value)
            except StopIteration as end:
                self._finish(task, result=end.value)
            except PearlError as error:
                self._finish(task, error=error)
            else:
                ready, value = self._do(task, step)
                if not ready:
                    return

    def _do(self, task: Task, step: Step) -> tuple[bool, Any]:
        """Whether the flow may go on at once, and with what."""
        if isinstance(step, Send):
            task.sent = Message(step.request, task)
            task.wake_at = self._clock() + step.request.timeout_seconds
            self._post(task.sent)
        elif isinstance(step, Sleep):
            task.wake_at = self._clock() + step.seconds
        elif isinstance(step, Spawn):
            self.start(step.flow)
            return True, None
        elif isinstance(step, Invoke):
            return True, step.function()
        else:
            assert isinstance(step, Together)
            task.children = [Task(flow, task) for flow in step.flows]
            self._tasks += task.children
            for child in task.children:
                self._go(child, None)
            return not task.children, []
        return False, None

    def _finish(self, task: Task, *, result: Any = None, error: Exception | None = None) -> None:
        task.done, task.result, task.error = True, result, error
        self._tasks.remove(task)
        parent = task.parent
        if parent is None or not all(child.done for child in parent.children):
            return
        failed = next((child.error for child in parent.children if child.error is not None), None)
        self._go(parent, failed or [child.result for child in parent.children])
