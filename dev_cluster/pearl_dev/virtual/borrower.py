"""The agent of a borrower pod: a grant starts or wakes its engine, a reclaim puts it to sleep."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pearl_api import names
from pearl_api.wire.worker import LoanState, WorkerPhase, WorkerState

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Borrower:
    """What it holds and where its engine is."""

    pod: str
    uid: str
    seconds: Callable[[], float]
    """How long the next start or wake takes."""
    sleep_seconds: Callable[[], float] = lambda: 0.0
    """How long it takes from a reclaim until the device memory is free."""
    changed: Callable[[Borrower], None] = lambda _: None
    """It serves, or serves no more."""
    granting: Callable[[Borrower], None] = lambda _: None
    """It holds GPUs from now on."""
    freed: Callable[[Borrower], None] = lambda _: None
    phase: WorkerPhase = WorkerPhase.COLD
    epoch: int = 0
    fenced: bool = False
    granted: bool = False
    memory_free: bool = True
    starts: int = 0

    def grant(self, epoch: int) -> None:
        """As `POST /v1/grant`: an older epoch, and one that was fenced, changes nothing."""
        if epoch < self.epoch or (epoch == self.epoch and (self.fenced or self.granted)):
            return
        self.epoch, self.fenced, self.granted, self.memory_free = epoch, False, True, False
        self.starts += self.phase is WorkerPhase.COLD
        self.phase = WorkerPhase.STARTING if self.phase is WorkerPhase.COLD else WorkerPhase.WAKING
        self.granting(self)
        asyncio.get_running_loop().call_later(self.seconds(), self._serve, epoch)

    def _serve(self, epoch: int) -> None:
        if self.granted and self.epoch == epoch:
            self.phase = WorkerPhase.READY
            self.changed(self)

    def fence(self, epoch: int) -> None:
        """The trainer takes it back: no engine may run until a higher epoch is granted."""
        held, seconds = self.granted, self.sleep_seconds()
        self.epoch = max(self.epoch, epoch)
        self.fenced, self.granted = True, False
        if self.phase is not WorkerPhase.COLD:
            self.phase = WorkerPhase.DRAINING if held and seconds > 0.0 else WorkerPhase.ASLEEP
        self.changed(self)
        if held and seconds > 0.0:
            asyncio.get_running_loop().call_later(seconds, self._free)
        elif held:
            self._free()

    def _free(self) -> None:
        if not self.granted:
            self.phase, self.memory_free = WorkerPhase.ASLEEP, True
            self.freed(self)

    def state(self) -> WorkerState:
        """As `GET /v1/state`."""
        return WorkerState(
            pod_uid=self.uid,
            phase=self.phase,
            activity=names.Activity.ACTIVE,
            engine_starts=self.starts,
            loan=LoanState(epoch=self.epoch, fenced=self.fenced, granted=self.granted, memory_free=self.memory_free),
        )
