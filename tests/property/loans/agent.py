"""The worker agent of one borrower pod: the real fence and its record on disk, over an engine that is two numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pearl_trainer.sansio import Reply
from pearl_worker.engine import VacateReport
from pearl_worker.fence import FencedError
from pearl_worker.loan import DeviceBusyError, Loan

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from flows import Message

GIB = 1 << 30
RECLAIM_SECONDS = 10.0


@dataclass
class Gpu:
    """Memory of one GPU, by who holds it."""

    engine: int = 0
    trainer: int = 0
    problem: str = ""

    def used_bytes(self) -> tuple[int, ...] | None:
        return (self.engine + self.trainer,)


@dataclass
class Waiting:
    """A reclaim that is not answered yet."""

    message: Message
    epoch: int
    deadline: float


class Agent:
    """An engine starts with its grant and takes `vacate_seconds` to leave, or is killed at the deadline."""

    def __init__(
        self, name: str, folder: Path, clock: Callable[[], float], answer: Callable[[Message, Any], None]
    ) -> None:
        self.name = name
        self.gpu = Gpu()
        self.vacate_seconds = 0.3
        self.reachable = True
        self.opened: list[int] = []
        """Epochs under which the fence was opened."""
        self.held_until = 0.0
        """By when the engine must be gone if nobody renews any more."""
        self._file = folder / f"{name}.json"
        self._clock = clock
        self._answer = answer
        self._waiting: list[Waiting] = []
        self._vacated_at: float | None = None
        self.loan = Loan(self.gpu, self._file, 0)

    @property
    def holds(self) -> bool:
        """An engine has the GPU."""
        return self.gpu.engine > 0

    def restart(self) -> None:
        """The container dies with its engine; what was asked of it is never answered."""
        self.gpu.engine = 0
        self._waiting, self._vacated_at = [], None
        self.loan = Loan(self.gpu, self._file, 0)

    def receive(self, message: Message) -> None:
        """One request; a reclaim may be answered later."""
        body, call = message.request.body or {}, message.request.url.rsplit("/", 1)[-1]
        try:
            getattr(self, f"_{call}")(message, body)
        except FencedError as error:
            self._answer(message, Reply(409, {"error": "Fenced", "message": str(error)}))
        except DeviceBusyError as error:
            self._answer(message, Reply(503, {"error": "DeviceBusy", "message": str(error)}))
        self.tick()

    def _grant(self, message: Message, body: dict[str, Any]) -> None:
        epoch, was = body["epoch"], self.loan.granted
        self.loan.grant(epoch, body["ttlSeconds"], self._clock(), engine_absent=not self.holds)
        if not was:
            self.opened.append(epoch)
        self.gpu.engine = 20 * GIB
        self._renewed(body["ttlSeconds"])
        self._answer(message, Reply(200, {}))

    def _heartbeat(self, message: Message, body: dict[str, Any]) -> None:
        self.loan.expire(self._clock(), self._clock() + RECLAIM_SECONDS)
        self.loan.renew(body["epoch"], self._clock())
        self._renewed(self.loan.ttl_seconds(self._clock()) or 0.0)
        state = self.loan.state(self._clock(), memory_free=self.loan.memory_free())
        self._answer(message, Reply(200, state.model_dump(mode="json", by_alias=True)))

    def _renewed(self, ttl_seconds: float) -> None:
        self.held_until = self._clock() + ttl_seconds + RECLAIM_SECONDS

    def _reclaim(self, message: Message, body: dict[str, Any]) -> None:
        epoch, now = body["epoch"], self._clock()
        if (answer := self.loan.answered(epoch)) is not None:
            self._answer(message, Reply(200, answer.model_dump(mode="json", by_alias=True)))
            return
        if self.loan.granted:  # the trainer itself gives it this long
            self.held_until = max(self.held_until, now + body["withinSeconds"])
        self.loan.reclaim(epoch, now + body["withinSeconds"])
        self._waiting.append(Waiting(message, epoch, now + body["withinSeconds"]))

    def next_timer(self) -> float | None:
        ttl = self.loan.ttl_seconds(self._clock())
        times = [waiting.deadline for waiting in self._waiting]
        times += [] if ttl is None else [self._clock() + ttl]
        times += [] if self._vacated_at is None else [self._vacated_at]
        return min(times, default=None)

    def tick(self) -> None:
        """What the agent's loop does: expire, vacate, answer."""
        now = self._clock()
        self.loan.expire(now, now + RECLAIM_SECONDS)
        if self.loan.granted:
            self._vacated_at = None
        elif self.holds:
            leaves = now + self.vacate_seconds if self._vacated_at is None else self._vacated_at
            self._vacated_at = min(leaves, max(self.loan.vacate_by, now))
            if now >= self._vacated_at:
                self.gpu.engine, self._vacated_at = 0, None
                if self.loan.memory_free():
                    self.loan.given_back(VacateReport(), asleep=False)
        free = self.loan.memory_free() and not self.holds
        for waiting in [one for one in self._waiting if free or now >= one.deadline]:
            self._waiting.remove(waiting)
            answer = self.loan.answer(waiting.epoch, VacateReport(), free=free, ended=not self.holds, total_seconds=0.0)
            self._answer(waiting.message, Reply(200, answer.model_dump(mode="json", by_alias=True)))
