"""The order of a training step over all ranks of a pod: reclaim → onload … offload → lend.

Only local rank 0 talks to PEARL. The others wait for it at the barrier, so that no rank touches its GPU before
rank 0 has all of them back, and none is lent before every rank is offloaded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pearl_trainer.errors import ConfigurationError, NotReturned
from pearl_trainer.sansio import Flow, Invoke

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


class RankedLoan:
    """One loan as one rank of the pod sees it.

    Raises:
        ConfigurationError: the pod has several ranks and no barrier was given.
    """

    def __init__(self, core: LoanCore, hooks: Hooks, *, rank: int, ranks: int, present: bool) -> None:
        """`present`: PEARL is configured; without it models stay where they are."""
        if (rank > 0 or ranks > 1) and hooks.barrier is None:
            raise ConfigurationError(
                f"this is local rank {rank} of {ranks}: pass barrier=torch.distributed.barrier (or the like) to "
                "register(), so that all ranks of the pod stop using their GPUs before they are lent"
            )
        self.core = core
        self.leads = rank == 0
        self._hooks = hooks
        self._present = present
        self._offloaded = False

    def begin(self, *, lend: bool, cap_seconds: float | None) -> Flow[None]:
        """Enrols and, with `lend`, offers the GPUs before the first update."""
        if self.leads:
            yield from self.core.enrol()
        if lend:
            yield from self.after_training(cap_seconds)

    def before_training(self, within_seconds: float | None) -> Flow[None]:
        """Returns when the GPUs of the pod are back and this rank's model is on its GPU."""
        if self.leads:
            yield from self.core.reclaim(within_seconds)
        yield from self._meet()
        if self._offloaded and self._hooks.onload is not None:
            yield Invoke(self._hooks.onload)
        self._offloaded = False

    def after_training(self, cap_seconds: float | None) -> Flow[None]:
        """Empties this rank's GPU and, once every rank has, offers them all."""
        if not self._present:
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
        if not self.leads:
            return
        try:
            yield from self.core.reclaim(last=True)
        except NotReturned as error:
            log.error("%s", error)  # noqa: TRY400 - the trainer ends; a traceback would tell nothing more
        yield from self.core.leave()

    def _meet(self) -> Flow[None]:
        if self._hooks.barrier is not None:
            yield Invoke(self._hooks.barrier)

    def _need_lead(self, name: str) -> None:
        if not self.leads:
            raise ConfigurationError(
                f"{name}() was called on a local rank above 0: call it on rank 0 only, or use `with loan.training():` "
                "on every rank"
            )


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
