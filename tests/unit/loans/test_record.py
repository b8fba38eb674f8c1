"""Phases of a GPULoan and the planner's view of it."""

from __future__ import annotations

import pytest

from pearl_api.loan import GPULoanStatus, LoanPhase, LoanSlot, PastLoan
from pearl_api.names import Activity
from pearl_api.wire.loans import ReclaimedNotice
from pearl_api.wire.worker import LoanState, WorkerPhase, WorkerState
from pearl_operator.clock import to_rfc3339
from pearl_operator.loans import record
from pearl_operator.loans.facts import expected_idle_seconds

T = 1_800_000_000.0


def enrolled() -> GPULoanStatus:
    return record.enrolled(GPULoanStatus(), [LoanSlot(pod="b-0"), LoanSlot(pod="b-1")], gpus=2)


def agent(phase: WorkerPhase, *, epoch: int = 1, granted: bool = True, free: bool | None = True) -> WorkerState:
    loan = LoanState(epoch=epoch, fenced=not granted, granted=granted, memory_free=free)
    return WorkerState(pod_uid="u", phase=phase, activity=Activity.ACTIVE, engine_starts=1, loan=loan)


def granted(at: float = T) -> GPULoanStatus:
    offered = record.offered(
        enrolled(), request_id="request-1", cap_seconds=None, reason="BorrowersStarting", now=at - 4
    )
    return record.granting(offered, 1, now=at)


def both(first: WorkerState | None, second: WorkerState | None) -> dict[str, WorkerState | None]:
    return {"b-0": first, "b-1": second}


def test_a_loan_from_offer_to_rest() -> None:
    status = granted()
    assert (status.phase, status.epoch) == (LoanPhase.GRANTED, 1)
    status = record.observed(status, both(agent(WorkerPhase.STARTING), agent(WorkerPhase.COLD)), now=T + 1)
    assert status.phase is LoanPhase.WAKING
    status = record.observed(status, both(agent(WorkerPhase.READY), agent(WorkerPhase.STARTING)), now=T + 20)
    assert status.phase is LoanPhase.WAKING
    status = record.observed(status, both(agent(WorkerPhase.READY), agent(WorkerPhase.READY)), now=T + 30)
    assert status.phase is LoanPhase.SERVING
    assert [slot.phase for slot in status.slots] == ["Ready", "Ready"]
    status = record.reclaiming(status, 1, now=T + 90)
    assert status.phase is LoanPhase.DRAINING
    notice = ReclaimedNotice(epoch=1, free=True, killed=True, total_seconds=1.5)
    status = record.reclaimed(status, notice, now=T + 92)
    assert status.phase is LoanPhase.COOLING_DOWN
    assert status.history == [
        PastLoan(
            epoch=1,
            granted_seconds=4,
            waking_seconds=30,
            serving_seconds=60,
            reclaim_seconds=1.5,
            free=True,
            killed=True,
        )
    ]
    assert record.cooled(status).phase is LoanPhase.IDLE
    assert expected_idle_seconds(status, now=T + 92) == 94  # from the first offer


def test_the_notices_may_come_in_any_order_and_twice() -> None:
    notice = ReclaimedNotice(epoch=1, free=True, total_seconds=0.5)
    late = record.reclaiming(record.reclaimed(granted(), notice, now=T + 9), 1, now=T + 10)
    assert late.phase is LoanPhase.COOLING_DOWN
    assert record.reclaimed(late, notice, now=T + 11) == late
    assert len(late.history) == 1


def test_an_old_epochs_notice_changes_nothing() -> None:
    again = record.granting(record.cooled(record.reclaiming(granted(), 1, now=T + 5)), 2, now=T + 10)
    assert record.reclaiming(again, 1, now=T + 11) == again
    assert record.reclaimed(again, ReclaimedNotice(epoch=1, free=True, total_seconds=1), now=T + 12) == again


def test_gpus_that_were_not_returned_stay_draining() -> None:
    status = record.reclaimed(granted(), ReclaimedNotice(epoch=1, free=False, total_seconds=10), now=T + 10)
    assert status.phase is LoanPhase.DRAINING
    assert status.history[-1].free is False


def test_a_reclaim_of_which_nobody_told_is_seen_at_the_agents() -> None:
    fenced = agent(WorkerPhase.ASLEEP, granted=False)
    status = record.observed(granted(), both(fenced, fenced), now=T + 40)
    assert status.phase is LoanPhase.DRAINING
    assert status.history[-1].free is True
    status = record.observed(status, both(fenced, fenced), now=T + 41)
    assert status.phase is LoanPhase.ASLEEP
    unread = agent(WorkerPhase.STOPPED, granted=False, free=None)
    assert record.observed(granted(), both(fenced, unread), now=T + 40).history[-1].free is None


def test_unknown_agents_change_no_phase() -> None:
    fenced = agent(WorkerPhase.ASLEEP, granted=False)
    for states in (both(None, None), both(fenced, None), {}):
        assert record.observed(granted(), states, now=T + 40).phase is LoanPhase.GRANTED


def test_an_agent_that_has_not_heard_of_the_grant_yet_does_not_end_it() -> None:
    before = agent(WorkerPhase.COLD, epoch=0, granted=False)
    before = before.model_copy(update={"loan": LoanState(epoch=0, fenced=False, granted=False)})
    assert record.observed(granted(), both(before, before), now=T + 1).phase is LoanPhase.GRANTED


def test_epochs_only_grow_and_survive_deregistering() -> None:
    with pytest.raises(ValueError, match="not above"):
        record.granting(granted(), 1, now=T)
    gone = record.deregistered(granted())
    assert (gone.phase, gone.slots) == (LoanPhase.DEREGISTERED, [])
    back = record.enrolled(gone, [LoanSlot(pod="b-0")], gpus=1)
    assert (back.phase, back.epoch, back.gpus) == (LoanPhase.IDLE, 1, 1)


def test_only_the_last_five_loans_are_kept() -> None:
    status = enrolled()
    for epoch in range(1, 8):
        status = record.reclaiming(record.granting(status, epoch, now=T), epoch, now=T + 1)
    assert [past.epoch for past in status.history] == [3, 4, 5, 6, 7]


def idle(status: GPULoanStatus, epoch: int, begins: float, lasts: float, *, lent: bool = True) -> GPULoanStatus:
    """The trainer offers at `begins` and takes its GPUs back after `lasts` seconds."""
    status = record.offered(status, request_id=f"r-{epoch}", cap_seconds=None, reason="ColdStartTooLong", now=begins)
    if lent:
        status = record.granting(status, epoch, now=begins)
    return record.cooled(record.reclaiming(status, epoch, now=begins + lasts))


def test_idle_times_count_whether_the_offer_was_taken_or_not_and_the_newest_count_most() -> None:
    assert expected_idle_seconds(enrolled(), now=T) is None
    status = idle(enrolled(), 1, T, 10.0)
    assert expected_idle_seconds(status, now=T + 50) == 10
    status = idle(status, 1, T + 100, 110.0, lent=False)
    assert expected_idle_seconds(status, now=T + 300) == 40  # 10 + 0.3 · (110 - 10)
    lapsed = record.withdrawn(record.offered(status, request_id="r", cap_seconds=None, reason="Held", now=T + 300))
    assert expected_idle_seconds(record.reclaiming(lapsed, 1, now=T + 999), now=T + 999) == 40  # nobody knows that one


def test_an_idle_time_that_lasts_longer_than_the_past_ones_is_believed_to_last_as_long_again() -> None:
    status = idle(enrolled(), 1, T, 10.0).model_copy(
        update={"phase": LoanPhase.OFFERED, "offered_at": to_rfc3339(T + 100)}
    )
    assert [expected_idle_seconds(status, now=T + 100 + passed) for passed in (0, 4, 10, 60)] == [10, 6, 10, 60]


def test_a_loan_is_over_when_no_pod_that_was_granted_it_exists_whatever_was_made_in_their_place() -> None:
    offered = record.offered(enrolled(), request_id="r", cap_seconds=None, reason="BorrowersStarting", now=T)
    status = record.granting(offered, 1, now=T, holders={"b-0": "first", "b-1": "second"})
    # An agent of a new pod of that name answers: the grant stays the former pod's.
    status = record.observed(status, both(agent(WorkerPhase.COLD, epoch=0, granted=False), None), now=T + 1)
    assert record.without_borrowers(status, {"second", "u"}, now=T + 2) is status
    over = record.without_borrowers(status, {"u"}, now=T + 2)
    assert (over.phase, over.reason, over.history[-1].free) == (LoanPhase.COOLING_DOWN, "BorrowersGone", None)
    assert record.without_borrowers(over, {"u"}, now=T + 3) is over
