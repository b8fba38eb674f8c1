"""The order of a training step over all processes of a trainer: reclaim → onload … offload → lend.

One of them talks to PEARL: local rank 0 of the pod, or of several pods the driver of their group. The others wait for
it at the barrier, so that none touches its GPU before all are back, and none is lent before every one is offloaded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pearl_trainer.errors import ConfigurationError, NotReturned
from pearl_trainer.sansio import Flow, Invoke
from pearl_trainer.usage import IDLE, Usage

if TYPE_CHECKING:
    from pearl_trainer.core import LendResult, LoanCore
    from pearl_trainer.messages import RegisterAnswer
    from pearl_trainer.reclaim import Free

log = logging.getLogger("pearl_trainer")

Hook = Callable[[], Any]


@dataclass(frozen=True)
class Hooks:
    """Functions of the trainer, without arguments.

    `offload` empties the GPUs, `onload` fills them again, `barrier` returns when every rank of the pod has called it.
    """

    offload: Hook | None = None
    onload: Hook | None = None
    barrier: Hook | None = None


@dataclass(frozen=True)
class Part:
    """What this process does for the loan.

    `core` is the loan of the pod or of its whole group; only the process with `leads` talks for it. `member` enrols
    this pod in a group. `processes` share the GPUs; where there are several, a barrier is needed.
    """

    core: LoanCore
    leads: bool
    processes: int
    member: LoanCore | None = None
    why_not: str = "this process has a rank above 0: call it on rank 0 only"


class RankedLoan:
    """One loan as one process of the trainer sees it.

    Raises:
        ConfigurationError: several processes share the GPUs and no barrier was given.
    """

    def __init__(self, part: Part, hooks: Hooks, *, present: bool) -> None:
        """`present`: PEARL is configured; without it models stay where they are."""
        if part.processes > 1 and hooks.barrier is None:
            raise ConfigurationError(
                f"this is one of {part.processes} processes that use the lent GPUs: pass "
                "barrier=torch.distributed.barrier (or the like) to register(), so that all of them stop using their "
                "GPUs before any is lent"
            )
        self.core = part.core
        self.leads = part.leads
        self._part = part
        self._hooks = hooks
        self.present = present
        self._offloaded = False

    def begin(self, *, lend: bool, cap_seconds: float | None) -> Flow[None]:
        """Enrols and, with `lend`, offers the GPUs before the first update."""
        if self._part.member is not None:
            yield from self._part.member.enrol()
        if self.leads:
            yield from self.core.enrol()
        if lend:
            yield from self.after_training(cap_seconds)

    def beside(self) -> tuple[Flow[None], ...]:
        """What goes on beside training for the life of the loan."""
        member = self._part.member
        flows = [self.core.keep()] if self.leads else []
        return (*flows, *([member.stay_enrolled()] if member is not None else []))

    def before_training(self, within_seconds: float | None) -> Flow[None]:
        """Returns when the GPUs of the pod are back and this rank's model is on its GPU."""
        if self.leads:
            yield from self.core.settle()  # a deadline of the script's must not end training for a PEARL that is away
            yield from self.core.reclaim(within_seconds)
        yield from self._meet()
        if self._offloaded and self._hooks.onload is not None:
            yield Invoke(self._hooks.onload)
        self._offloaded = False

    def after_training(self, cap_seconds: float | None) -> Flow[None]:
        """Empties this rank's GPU and, once every rank has, offers them all."""
        self.core.meter.mark(IDLE)
        if not self.present:
            return
        if self._hooks.offload is not None:
            yield Invoke(self._hooks.offload)
        self._offloaded = True
        yield from self._meet()
        if self.leads:
            yield from self.core.lend(cap_seconds)

    def lend(self, cap_seconds: float | None) -> Flow[LendResult]:
        """Offers the GPUs; the caller has emptied them."""
        self._need_lead("lend")
        return self.core.lend(cap_seconds)

    def reclaim(self, within_seconds: float | None) -> Flow[Free]:
        """Takes the GPUs back."""
        self._need_lead("reclaim")
        return self.core.reclaim(within_seconds)

    def end(self) -> Flow[None]:
        """Takes the GPUs back and ends the enrolment; never raises for PEARL's sake."""
        if self.leads:
            try:
                yield from self.core.reclaim(last=True)
            except NotReturned as error:
                log.error("%s", error)  # noqa: TRY400 - the trainer ends; a traceback would tell nothing more
            yield from self.core.leave()
        if self._part.member is not None:
            yield from self._part.member.leave()

    def _meet(self) -> Flow[None]:
        if self._hooks.barrier is not None:
            yield Invoke(self._hooks.barrier)

    def _need_lead(self, name: str) -> None:
        if not self.leads:
            raise ConfigurationError(f"{name}(): {self._part.why_not}, or use `with loan.training():` on every rank")


class LoanFacts:
    """What both clients' loans say about themselves."""

    def __init__(self, ranked: RankedLoan) -> None:
        self._ranked = ranked

    @property
    def lent(self) -> bool:
        """A grant is in force."""
        return self._ranked.core.lent

    @property
    def epoch(self) -> int:
        """Highest loan epoch heard of; 0 = none."""
        return self._ranked.core.epoch

    @property
    def registration(self) -> RegisterAnswer | None:
        """What enrolling answered; None while PEARL was never reached."""
        return self._ranked.core.registration

    @property
    def present(self) -> bool:
        """PEARL is configured (`PEARL_OPERATOR_URL`), whether it can be reached now or not; alike on all ranks."""
        return self._ranked.present

    @property
    def usage(self) -> Usage:
        """What the GPUs did with their time since `register()`."""
        return self._ranked.core.meter.read()
