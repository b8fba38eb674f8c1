"""The life of a GPULoan as pure functions from status to status; instants are seconds since the epoch.

Idle → Offered → Granted → Waking → Serving → Draining → Asleep → CoolingDown → Idle; terminal Deregistered, Lost.
The record follows what trainer and agents do; it decides nothing. One exception: the epoch, which is made and stored
here before any agent hears of it.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from pearl_api.loan import GPULoanStatus, LoanPhase, LoanSlot, PastLoan
from pearl_api.wire.worker import WorkerPhase
from pearl_operator.clock import from_rfc3339, to_rfc3339
from pearl_operator.loans.problems import LoanReason

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from pearl_api.loan import AccessExplanation
    from pearl_api.wire.loans import ReclaimedNotice
    from pearl_api.wire.worker import WorkerState
    from pearl_operator.facts import LoanFact

ACTIVE: Final = (LoanPhase.GRANTED, LoanPhase.WAKING, LoanPhase.SERVING)
"""An engine may run."""
RETURNING: Final = (LoanPhase.DRAINING, LoanPhase.ASLEEP, LoanPhase.COOLING_DOWN)
TERMINAL: Final = (LoanPhase.DEREGISTERED, LoanPhase.LOST)
_RESTING: Final = (WorkerPhase.COLD, WorkerPhase.ASLEEP, WorkerPhase.STOPPED)
_COMING_UP: Final = (WorkerPhase.STARTING, WorkerPhase.WAKING)
_KEPT: Final = 5
IDLE_WEIGHT: Final = 0.3
"""Of the newest idle time in the decaying average; that of the simulator's trainers."""


class Before(Enum):
    """What became of a request that was granted before."""

    STANDS = "stands"
    OVER = "over"


def answered_before(loans: Iterable[LoanFact], request_id: str) -> Before | None:
    """Whether this very request was granted to all these loans, by whichever process; None = decide on it."""
    known = [loan.status for loan in loans]
    if not known or any((status.request_id, status.reason) != (request_id, LoanReason.GRANTED) for status in known):
        return None
    one_epoch = len({status.epoch for status in known}) == 1
    return Before.STANDS if one_epoch and all(status.phase in ACTIVE for status in known) else Before.OVER


def enrolled(
    status: GPULoanStatus, slots: Iterable[LoanSlot], *, gpus: int, access: Iterable[AccessExplanation] = ()
) -> GPULoanStatus:
    """Enrolled with so many GPUs, perhaps once more after it had ended; epochs go on."""
    phase = LoanPhase.IDLE if status.phase in TERMINAL else status.phase
    return status.model_copy(update={"phase": phase, "slots": list(slots), "gpus": gpus, "access": list(access)})


def offered(
    status: GPULoanStatus, *, request_id: str, cap_seconds: float | None, reason: str, now: float
) -> GPULoanStatus:
    """The trainer offers its GPUs, and for `reason` it stays at that for now; what it had lent before is over."""
    if status.phase in ACTIVE:
        status = _ended(status, now=now, free=None)
    since = status.offered_at if status.phase is LoanPhase.OFFERED else to_rfc3339(now)
    return status.model_copy(
        update={
            "phase": LoanPhase.OFFERED,
            "request_id": request_id,
            "cap_seconds": cap_seconds,
            "offered_at": since,
            "reason": reason,
        }
    )


def granting(
    status: GPULoanStatus, epoch: int, *, now: float, holders: Mapping[str, str] | None = None
) -> GPULoanStatus:
    """A new epoch is about to be granted to `holders` (UIDs by pod name; None = as enrolled); to be stored first.

    Raises:
        ValueError: the epoch does not grow.
    """
    if epoch <= status.epoch:
        raise ValueError(f"loan epoch {epoch} is not above {status.epoch}")
    known = holders or {}
    slots = [slot.model_copy(update={"uid": known.get(slot.pod, slot.uid)}) for slot in status.slots]
    return status.model_copy(
        update={
            "phase": LoanPhase.GRANTED,
            "epoch": epoch,
            "granted_at": to_rfc3339(now),
            "serving_at": None,
            "slots": slots,
            "reason": LoanReason.GRANTED.value,
        }
    )


def withdrawn(status: GPULoanStatus) -> GPULoanStatus:
    """The trainer does not offer any more, and nothing was granted."""
    return status.model_copy(update={"phase": LoanPhase.IDLE}) if status.phase is LoanPhase.OFFERED else status


def observed(status: GPULoanStatus, states: Mapping[str, WorkerState | None], *, now: float) -> GPULoanStatus:
    """What the agents say now, by pod name; None = no answer, which changes nothing."""
    slots = [_slot(slot, states.get(slot.pod)) for slot in status.slots]
    status = status.model_copy(update={"slots": slots})
    known = [states.get(slot.pod) for slot in slots]
    heard = [state for state in known if state is not None]
    if not heard or len(heard) < len(known):
        return status
    if status.phase in ACTIVE:
        return _observed_active(status, heard, now)
    resting = all(_gave_up(state, status.epoch) and state.phase in _RESTING for state in heard)
    if status.phase is LoanPhase.DRAINING and resting:
        return status.model_copy(update={"phase": LoanPhase.ASLEEP})
    return status


def without_borrowers(status: GPULoanStatus, there: Collection[str], *, now: float) -> GPULoanStatus:
    """No pod that was granted the epoch is among those (UIDs) that are `there`: the loan is over.

    Pods made in their place have the same names and hold no grant. Nobody read the device, so `free` is unknown.
    """
    granted = {slot.uid for slot in status.slots if slot.uid is not None}
    if status.phase not in ACTIVE or not granted or not granted.isdisjoint(there):
        return status
    update = {"phase": LoanPhase.COOLING_DOWN, "reason": LoanReason.BORROWERS_GONE.value}
    return _ended(status, now=now, free=None).model_copy(update=update)


def _slot(slot: LoanSlot, state: WorkerState | None) -> LoanSlot:
    if state is None:
        return slot
    return slot.model_copy(update={"phase": state.phase.value, "uid": slot.uid or state.pod_uid})


def _observed_active(status: GPULoanStatus, heard: list[WorkerState], now: float) -> GPULoanStatus:
    if all(_gave_up(state, status.epoch) for state in heard):
        # A reclaim or a lapsed lease of which this process was not told.
        memory = [state.loan.memory_free for state in heard if state.loan is not None]
        free = None if None in memory else all(memory)
        return _ended(status, now=now, free=free).model_copy(update={"phase": LoanPhase.DRAINING})
    if all(state.phase is WorkerPhase.READY for state in heard):
        serving_at = status.serving_at or to_rfc3339(now)
        return status.model_copy(update={"phase": LoanPhase.SERVING, "serving_at": serving_at})
    if status.phase is LoanPhase.GRANTED and any(state.phase in _COMING_UP for state in heard):
        return status.model_copy(update={"phase": LoanPhase.WAKING})
    return status


def _gave_up(state: WorkerState, epoch: int) -> bool:
    """This agent holds no grant of `epoch`: fenced, lapsed, or restarted since."""
    loan = state.loan
    return loan is not None and not loan.granted and (loan.fenced or loan.epoch >= epoch)


def reclaiming(status: GPULoanStatus, epoch: int, *, now: float) -> GPULoanStatus:
    """The trainer has begun to take `epoch` back, or an offer that was refused."""
    if status.phase is LoanPhase.OFFERED:
        return withdrawn(_idled(status, now=now))
    if epoch < status.epoch:
        return status
    if status.phase not in ACTIVE:  # the agents may have told before the trainer did
        return _idled(status, now=now) if status.phase in RETURNING else status
    return _idled(_ended(status, now=now, free=None), now=now).model_copy(update={"phase": LoanPhase.DRAINING})


def _idled(status: GPULoanStatus, *, now: float) -> GPULoanStatus:
    """An idle time of the trainer is over; one that was refused tells as much as one that was lent."""
    seen = _between(from_rfc3339(status.offered_at), now)
    if seen is None:
        return status
    before = status.idle_seconds
    mean = seen if before is None else round(before + IDLE_WEIGHT * (seen - before), 3)
    return status.model_copy(update={"idle_seconds": mean, "offered_at": None})


def reclaimed(status: GPULoanStatus, notice: ReclaimedNotice, *, now: float) -> GPULoanStatus:
    """The trainer says how it ended; an older epoch's notice changes nothing."""
    if notice.epoch < status.epoch or status.phase in TERMINAL:
        return status
    status = reclaiming(status, notice.epoch, now=now)
    result = {"reclaim_seconds": notice.total_seconds, "free": notice.free, "killed": notice.killed}
    history = list(status.history)
    if history and history[-1].epoch == status.epoch:
        history[-1] = history[-1].model_copy(update=result)
    over = status.phase in (LoanPhase.DRAINING, LoanPhase.ASLEEP) and notice.free
    phase = LoanPhase.COOLING_DOWN if over else status.phase
    return status.model_copy(update={"history": history, "phase": phase})


def _ended(status: GPULoanStatus, *, now: float, free: bool | None) -> GPULoanStatus:
    offered_at, granted_at = from_rfc3339(status.offered_at), from_rfc3339(status.granted_at)
    serving_at = from_rfc3339(status.serving_at)
    past = PastLoan(
        epoch=status.epoch,
        granted_seconds=_between(offered_at, granted_at),
        waking_seconds=_between(granted_at, serving_at),
        serving_seconds=_between(serving_at, now),
        free=free,
    )
    history = [*(item for item in status.history if item.epoch != status.epoch), past]
    return status.model_copy(update={"history": history[-_KEPT:]})


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else round(max(end - start, 0.0), 3)


def cooling(status: GPULoanStatus) -> GPULoanStatus:
    """The borrowers rest: the cool-down begins."""
    return status.model_copy(update={"phase": LoanPhase.COOLING_DOWN})


def cooled(status: GPULoanStatus) -> GPULoanStatus:
    """The cool-down is over."""
    return status.model_copy(update={"phase": LoanPhase.IDLE})


def deregistered(status: GPULoanStatus) -> GPULoanStatus:
    """The trainer left, or the rollout is gone."""
    return status.model_copy(update={"phase": LoanPhase.DEREGISTERED, "slots": []})


def lost(status: GPULoanStatus) -> GPULoanStatus:
    """The trainer pod ended without leaving."""
    return status.model_copy(update={"phase": LoanPhase.LOST, "slots": []})
