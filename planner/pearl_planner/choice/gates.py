"""How many elastic workers, and whether to take a loan: both must pay for their start within the life they have.

docs/models.md, "Elastic workers", "Borrow gate", "Expand gate", "TrainerBound". Giving GPUs back when they are asked
for is no gate: it is obeyed first (`plan`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pearl_planner.choice.choose import MIN_SAVING_SECONDS
from pearl_planner.choice.costs import start_seconds
from pearl_planner.choice.evaluate import best_seconds, candidates
from pearl_planner.fleet.room import Many, Room, room_of
from pearl_planner.types import Reason, Shape

if TYPE_CHECKING:
    from pearl_planner.choice.evaluate import Situation
    from pearl_planner.types import Loan, Memory, Snapshot

SAME_SHARE = 0.01
"""More workers must do better by this much, otherwise everything waits for something else."""
COST_FLOOR = 0.9
"""Share of the best throughput that objective `Cost` keeps."""
PRIOR_LIFE_SECONDS = 5400.0
"""Mean life of a spot node before any was seen (two published traces: 5263 and 5938 s)."""
PRIOR_LOSSES = 1.0
MOST_HORIZON_SECONDS = 3600.0
"""No longer future is counted on, however long the nodes live."""
WAKE_HALF_LIFE_SECONDS = 3600.0
"""A cost of a wake or cold start that was not measured for so long is believed half: what nobody uses cannot be
corrected otherwise."""
BORROW_HORIZON_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Count:
    """How many elastic workers to have."""

    elastic: int
    reason: Reason | None
    """Why not more, or not fewer; None = all there are."""
    surplus: bool = False
    """Fewer would do, but for how long is not clear yet."""


def elastic_count(  # noqa: PLR0913 - the limits of one zone
    situation: Situation, room: Room, present: int, low: int, high: int, *, near: Shape, now: float
) -> Count:
    """How many elastic workers (units, where sizes differ) to have beside the others in the `room`.

    The fewest whose best shape is as good as that of all. More at once when their start pays within their residual
    life; fewer only when fewer would do for as long as a start takes (holding costs less than starting again).
    """
    if high <= low and present == low:
        return Count(low, None)
    here = min(max(present, low), high)
    values = _Values(situation, room, near)
    wanted = _fewest(values, low, high)
    bound = _bound(situation, values, high)
    if wanted > here:
        pays = growth_pays(situation.memory, values.at(here), values.at(wanted))
        return Count(wanted, Reason.APPLIED) if pays else Count(here, Reason.SWITCH_COST_TOO_HIGH)
    if wanted < here and situation.policy.objective != "Cost":
        wanted = min(here, _bisect(values, values.at(high) * (1.0 + SAME_SHARE / 2), low, high))  # not back and forth
    if wanted < here and not _lasting(situation.memory, now):
        return Count(here, bound, surplus=True)
    return Count(wanted, bound if high > wanted else None, surplus=wanted < here)


class _Values:
    """Seconds by number of elastic units, computed when asked for."""

    def __init__(self, situation: Situation, room: Room, near: Shape) -> None:
        self.situation, self.room, self.near = situation, room, near
        self.seen: dict[int, float] = {}

    def at(self, elastic: int) -> float:
        if elastic not in self.seen:
            self.seen[elastic] = best_seconds(self.situation, self.room.with_elastic(elastic), near=self.near)
        return self.seen[elastic]

    def cost(self, elastic: int) -> float:
        """Seconds times units."""
        return self.room.with_elastic(elastic).size * self.at(elastic)


def _fewest(values: _Values, low: int, high: int) -> int:
    """The fewest that are as good as all; with objective `Cost` the cheapest that keep the throughput floor."""
    limit = values.at(high) * (1.0 + SAME_SHARE)
    if values.situation.policy.objective == "Cost":
        floor = _bisect(values, values.at(high) / COST_FLOOR, low, high)
        step = max(1, (high - floor) // 8)
        counts = [*range(floor, high, step), high]
        cheapest: int = min(counts, key=lambda e: (values.cost(e), e))
        return cheapest
    return _bisect(values, limit, low, high)


def _bisect(values: _Values, limit: float, low: int, high: int) -> int:
    """The fewest within `limit`, exact to one part in 16 of a large range; more workers are never worse."""
    finest = max(1, (high - low) // 16)
    if values.at(low) <= limit:
        return low
    bad, good = low, high
    while good - bad > finest:
        middle = (bad + good) // 2
        bad, good = (bad, middle) if values.at(middle) <= limit else (middle, good)
    return good


def _bound(situation: Situation, values: _Values, high: int) -> Reason:
    """What everything waits for when more workers do not help."""
    trainer = situation.floor_seconds > 0 and values.at(high) <= situation.floor_seconds
    return Reason.TRAINER_BOUND if trainer else Reason.ENVIRONMENT_BOUND


def _lasting(memory: Memory, now: float) -> bool:
    return memory.surplus_since is not None and now - memory.surplus_since >= start_seconds(memory)


def residual_life_seconds(memory: Memory) -> float:
    """Life that an elastic worker still has: worker-seconds lived per loss, with a prior worth one loss."""
    lived = (memory.elastic_seconds or 0.0) + PRIOR_LOSSES * PRIOR_LIFE_SECONDS
    return lived / ((memory.elastic_losses or 0.0) + PRIOR_LOSSES)


def growth_pays(memory: Memory, now: float, then: float) -> bool:
    """(L − start)·(1 − T_more/T) > 0 by more than the least saving, L the residual life."""
    if not math.isfinite(now):
        return math.isfinite(then)
    life = min(residual_life_seconds(memory), MOST_HORIZON_SECONDS)
    return (life - start_seconds(memory)) * (1.0 - then / now) > MIN_SAVING_SECONDS


def borrow_answer(
    situation: Situation | None, loan: Loan, many: Many, added: int, *, now: float = 0.0
) -> tuple[bool, str]:
    """Whether to take a loan that adds `added` workers to so many, and the reason for the trainer.

    `situation` compares the rest of the batch where one is open.

    Saved = (window − wake)·(1 − T_with/T_without) − deactivation. Without data, or while no wake was ever measured,
    the loan is taken: idle GPUs cost nothing and the first loan is what measures the cost.
    """
    if situation is None:
        return True, Reason.NO_DATA.value
    room = room_of(many)
    more = replace(room, borrowed=room.borrowed + added)
    without, with_loan = _rest_seconds(situation, room), _rest_seconds(situation, more)
    if not math.isfinite(without):
        return True, Reason.APPLIED.value
    share = 1.0 - with_loan / without
    if share <= SAME_SHARE:
        trainer = situation.load.rest is None and 0 < situation.floor_seconds >= without
        return False, (Reason.TRAINER_BOUND if trainer else Reason.ENVIRONMENT_BOUND).value
    wake = wake_seconds(situation.memory, now)
    if wake is None:
        return True, Reason.APPLIED.value
    windows = [_lasts(loan), None if situation.load.rest is None else without]
    window = min([one for one in windows if one is not None], default=BORROW_HORIZON_SECONDS)
    # The half stands for the deactivation, which was published as about half of the activation.
    saved = (window - wake) * share - wake / 2
    if saved > MIN_SAVING_SECONDS:
        return True, Reason.APPLIED.value
    return False, Reason.BORROW_NOT_WORTHWHILE.value


def _rest_seconds(situation: Situation, room: Room) -> float:
    found = candidates(situation, room)
    return situation.seconds(found[0]) if found else math.inf


def wake_seconds(memory: Memory, now: float) -> float | None:
    """The wake cost as far as it is still believed; None = never measured."""
    return _believed(memory.wake_cost_seconds, memory.wake_seen_at, now)


def over_before_it_serves(snapshot: Snapshot, loan: Loan) -> bool:
    """An engine of the loan must start from nothing, and the loan does not last as long as that takes.

    A longer loan pays for that start together with those that follow it. False while either is not known.
    """
    memory, lasts = snapshot.memory, _lasts(loan)
    start = _believed(memory.cold_cost_seconds, memory.cold_seen_at, snapshot.now)
    cold = any(worker.from_nothing for worker in snapshot.workers if worker.pod in loan.workers)
    return cold and start is not None and lasts is not None and lasts <= start


def _lasts(loan: Loan) -> float | None:
    """What announces its length is believed; past idle times count where nothing is announced."""
    return loan.expected_idle_seconds if loan.cap_seconds is None else loan.cap_seconds


def _believed(cost: float | None, seen_at: float | None, now: float) -> float | None:
    if cost is None or seen_at is None:
        return cost
    return float(cost * 0.5 ** (max(now - seen_at, 0.0) / WAKE_HALF_LIFE_SECONDS))
