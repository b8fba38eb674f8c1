"""Rules without a model: fixed fleets, all that is there, and one shape that is never left."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pearl_planner.facts import sizes
from pearl_planner.fleet.room import unit_gpus
from pearl_planner.fleet.shapes import split
from pearl_planner.types import Reason, Shape
from pearl_simulator.rules.base import decision

if TYPE_CHECKING:
    from pearl_planner.choice.decide import Decision
    from pearl_planner.fleet.room import Units
    from pearl_planner.types import Loan, Policy, Snapshot


@dataclass(frozen=True, slots=True)
class FixedRule:
    """One shape for as many workers as there are, up to a limit.

    `roll` is reserved GPUs only, `rlboost+` all there are, `fixed:2P3D` five workers, `ratio:2P3D` two of five of all
    there are.
    """

    gpus: int | None = None
    """GPUs to have at most beside borrowed ones; reserved ones are always used. None = all there are."""
    ratio: tuple[int, int] | None = None
    """P:D; None = colocated. Fewer than two workers are colocated."""
    borrow: bool = False
    """Takes every loan."""
    workers: int | None = None
    """The limit in workers, borrowed ones included; None = `gpus` is the limit."""

    def decide(self, snapshot: Snapshot, policy: Policy) -> Decision:
        """As many workers as allowed, in the shape."""
        room = sizes(snapshot)
        elastic = room.elastic_high
        if self.gpus is not None:
            wanted = self.gpus // unit_gpus(snapshot.budget) - room.reserved
            elastic = min(max(wanted, room.elastic_low), elastic)
        if self.workers is not None:
            wanted = self._units(room.units) - room.room(0).size
            elastic = min(max(wanted, room.elastic_low), elastic)
        many = room.room(elastic)
        shape = split(many, self.ratio) if self.ratio and many.splits else Shape(colocated=many.colocated)
        return decision(snapshot, policy, elastic, shape, "fixed by the rule")

    def _units(self, units: Units) -> int:
        """Of `workers`."""
        if self.ratio is None:
            return (self.workers or 0) * units.colocated
        return self.ratio[0] * units.prefill + self.ratio[1] * units.decode

    def answer_loan(self, snapshot: Snapshot, policy: Policy, loan: Loan, count: int, added: int) -> tuple[bool, str]:
        """All or none."""
        del snapshot, policy, loan, count, added
        return self.borrow, (Reason.APPLIED if self.borrow else Reason.BORROW_NOT_WORTHWHILE).value


@dataclass(slots=True)
class VerlLend:
    """Colocated on all GPUs there are, and borrows with verl's gate (its fully asynchronous dynamic schedule).

    benefit = remaining samples · seconds per sample · (1 − 1/scaling), scaling = workers with the loan / without;
    taken while benefit or cost is unknown, or when the benefit exceeds the cost of switching. A sample is a group. It
    credits added GPUs linearly, whatever the workload waits for.

    Mutable by design: it measures seconds per sample over the last minutes. One instance per run.
    """

    deactivation_share: float = 0.5
    """Cost of giving back as a share of the measured wake."""
    min_remaining_share: float = 0.0
    """Of the batch; below it nothing is lent any more."""
    memory_seconds: float = 900.0
    _seen: list[tuple[float, int]] = field(default_factory=list)
    """(time, groups completed since the start), where it changed."""

    def decide(self, snapshot: Snapshot, policy: Policy) -> Decision:
        """All there is, colocated."""
        self._measure(snapshot)
        return FixedRule().decide(snapshot, policy)

    def answer_loan(self, snapshot: Snapshot, policy: Policy, loan: Loan, count: int, added: int) -> tuple[bool, str]:
        """The gate; without a batch or a rate the benefit is unknown."""
        del policy, loan
        self._measure(snapshot)
        batch, wake = snapshot.batch, snapshot.memory.wake_cost_seconds
        if batch is None:
            return True, Reason.BATCH_UNKNOWN.value
        remaining = max(batch.need_groups - batch.complete_groups, 0)
        if remaining <= self.min_remaining_share * batch.need_groups:
            return False, Reason.BORROW_NOT_WORTHWHILE.value
        per_sample = self._seconds_per_group(snapshot.now)
        if wake is None or per_sample is None:
            return True, Reason.NO_DATA.value
        benefit = remaining * per_sample * (1.0 - count / (count + added))
        worth = benefit > wake * (1.0 + self.deactivation_share)
        return worth, (Reason.APPLIED if worth else Reason.BORROW_NOT_WORTHWHILE).value

    def _measure(self, snapshot: Snapshot) -> None:
        batch = snapshot.batch
        if batch is None:
            return
        done = batch.step * batch.need_groups + batch.complete_groups
        if not self._seen or done > self._seen[-1][1]:
            self._seen.append((snapshot.now, done))
        while len(self._seen) > 2 and snapshot.now - self._seen[0][0] > self.memory_seconds:  # noqa: PLR2004 - a rate
            self._seen.pop(0)

    def _seconds_per_group(self, now: float) -> float | None:
        if len(self._seen) < 2:  # noqa: PLR2004 - a rate needs two points
            return None
        (since, before), (_, after) = self._seen[0], self._seen[-1]
        return (now - since) / (after - before)
