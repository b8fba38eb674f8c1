"""What the fleet should be now: sizes per zone and a shape, with the reason and the numbers behind it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pearl_planner import explain
from pearl_planner.choice.ahead import lasting, pressed, with_mix
from pearl_planner.choice.choose import (
    FINALISTS,
    Verdict,
    best_of,
    faded_threshold,
    judge,
    replacement_seconds,
    rival_memory,
    switch_cost_seconds,
    with_cost,
)
from pearl_planner.choice.evaluate import candidates, contenders
from pearl_planner.choice.gates import Count, elastic_count
from pearl_planner.choice.situation import exact, situation
from pearl_planner.facts import Sizes, fleet, sizes
from pearl_planner.fleet.assign import assign
from pearl_planner.fleet.living import stays
from pearl_planner.fleet.shapes import carried_shape, may_be, shape_of
from pearl_planner.fleet.steps import key_of
from pearl_planner.types import Feeding, Memory, Mode, Reason, Shape, Zone
from pearl_planner.workload.profile import Profile

if TYPE_CHECKING:
    from pearl_planner.choice.evaluate import Situation
    from pearl_planner.fleet.room import Room
    from pearl_planner.prediction.predict import Forecast
    from pearl_planner.types import Policy, Prediction, Snapshot, Worker

PRICED = 2
"""The best and its best rival always have a price, others only if they beat the present shape."""
SCREEN_SHARE = 0.8
"""Of the threshold: what a shape must be better by in some round to be compared over the rest of the batch."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to have, and why."""

    sizes: dict[Zone, int]
    shape: Shape
    reason: Reason
    message: str
    finalists: tuple[Prediction, ...] = ()
    forecast: Forecast | None = None
    """Of `shape`; None without data."""
    memory: Memory | None = None
    """With what this decision wants remembered; None = nothing."""


def decide(snapshot: Snapshot, policy: Policy) -> Decision:
    """The fleet to have. Without data nothing optional changes; floors and forced changes apply all the same."""
    room = sizes(snapshot)
    wanted = _wanted_shape(snapshot)
    present = carried_shape(wanted, room.room(room.elastic_kept), policy)
    if policy.hold:
        return _keep(room, present, Reason.HELD, "held by annotation")
    known = situation(snapshot, policy)
    if isinstance(known, tuple):
        return _keep(room, present, *known)
    return _predicted(snapshot, policy, known, room, forced=present != wanted)


def _wanted_shape(snapshot: Snapshot) -> Shape:
    """The shape last decided for, or the one that is there."""
    if snapshot.target is not None:
        return shape_of(snapshot.target.slots)
    return shape_of(worker for worker in fleet(snapshot) if stays(worker))


def _keep(room: Sizes, present: Shape, reason: Reason, cause: str) -> Decision:
    return Decision(room.with_elastic(room.elastic_kept), present, reason, explain.kept(present, cause))


def _predicted(snapshot: Snapshot, policy: Policy, known: Situation, room: Sizes, *, forced: bool) -> Decision:
    """The decision rule; a forced change (the present shape cannot stay) takes the best without thresholds."""
    now, here = snapshot.now, room.elastic_kept
    dwell_left = _dwell_left(snapshot, policy)
    wanted = _wanted_shape(snapshot)
    count = Count(here, None)
    if dwell_left <= 0 or forced:
        near = carried_shape(wanted, room.room(here), policy)
        count = elastic_count(known, room.room(here), here, room.elastic_low, room.elastic_high, near=near, now=now)
        if count.elastic > here and _coalescing(snapshot, policy):
            count = Count(here, Reason.COOLING_DOWN)
    there = room.room(count.elastic)
    shape = carried_shape(wanted, there, policy)
    free = forced or count.elastic != here
    verdict, present = _judged(snapshot, known, there, shape, free=free)
    if verdict.reason is Reason.APPLIED and dwell_left > 0 and not free:
        verdict = replace(verdict, chosen=present, reason=Reason.COOLING_DOWN)
    factor = None if free or dwell_left > 0 else pressed(snapshot, known, shape)
    if verdict.reason is not Reason.APPLIED and factor is not None and _pressed_long(snapshot):
        burst, _ = _judged(snapshot, with_mix(known, factor), there, shape, free=False)
        verdict = burst if burst.reason is Reason.APPLIED else verdict
    message = explain.compared(verdict, present, snapshot.profile or Profile(), dwell_left)
    reason = _final_reason(snapshot, policy, verdict, count.elastic - here, count.reason)
    finalists = tuple(one.prediction for one in verdict.finalists)
    memory = _remembered(snapshot, verdict, count, judged=dwell_left <= 0 or forced)
    since = memory.pressed_since if memory.pressed_since is not None else now
    memory = replace(memory, pressed_since=None if factor is None else since)
    return Decision(
        room.with_elastic(count.elastic),
        verdict.chosen.prediction.shape,
        reason,
        message,
        finalists,
        verdict.chosen,
        memory,
    )


def _judged(snapshot: Snapshot, known: Situation, room: Room, shape: Shape, *, free: bool) -> tuple[Verdict, Forecast]:
    """The verdict, and the forecast of the present shape. `free`: the best without thresholds.

    The rest of a batch is predicted only where some shape could win in it, and only for those.
    """
    now = snapshot.now
    near, rest = candidates(known, room, near=shape), known
    if known.feeding is Feeding.BARRIER:
        rivals = contenders(known, room, shape, lambda one: 0.0 if free else _least(one, shape, known, now))
        if rivals or free:
            rest = exact(snapshot, known)
            near = [rest.forecast(one) for one in (shape, *rivals[: FINALISTS - 1])]
    present = rest.forecast(shape)
    priced = _priced(snapshot, rest, room, present, near)
    verdict = judge(present, priced, rest, now=now)
    if free and priced:
        verdict = Verdict(best_of(priced, present, rest), Reason.APPLIED, verdict.finalists)
    return verdict, present


def _pressed_long(snapshot: Snapshot) -> bool:
    memory = snapshot.memory
    return lasting(memory.pressed_since, memory.flip_cost_seconds, snapshot.now)


def _least(one: Shape, present: Shape, known: Situation, now: float) -> float:
    """Share by which a shape must be better in some round; a little less than in their sum."""
    return SCREEN_SHARE * faded_threshold(one, present, known, now)


def _remembered(snapshot: Snapshot, verdict: Verdict, count: Count, *, judged: bool) -> Memory:
    """Since when a rival is ahead, and since when fewer workers would do."""
    memory = rival_memory(snapshot.memory, verdict.rival, snapshot.now)
    if not judged:
        return memory
    since = memory.surplus_since if memory.surplus_since is not None else snapshot.now
    return replace(memory, surplus_since=since if count.surplus else None)


def _priced(
    snapshot: Snapshot, known: Situation, room: Room, present: Forecast, found: list[Forecast]
) -> list[Forecast]:
    """The best candidates; those that matter with what it costs to get there from the roles that workers have now."""
    shape, limit = present.prediction.shape, known.seconds(present)
    workers = fleet(snapshot)
    return [
        with_cost(one, _price(snapshot, known, room, one, workers))
        if one.prediction.shape != shape and (place < PRICED or known.seconds(one) < limit)
        else one
        for place, one in enumerate(sorted(found, key=known.seconds)[:FINALISTS])
    ]


def _price(
    snapshot: Snapshot,
    known: Situation,
    room: Room,
    forecast: Forecast,
    workers: tuple[Worker, ...],
) -> float:
    slots = assign(
        workers,
        {Zone.RESERVED: room.reserved, Zone.ELASTIC: room.elastic, Zone.BORROWED: room.borrowed},
        forecast.prediction.shape,
        next_incarnations=dict(snapshot.memory.next_incarnations),
        budget=snapshot.budget,
    )
    roles = {key_of(slot): slot.role for slot in slots}
    cost = switch_cost_seconds(workers, {w.uid: roles.get(key_of(w), w.role) for w in workers}, known)
    if not snapshot.budget.staged:
        return cost
    return cost + replacement_seconds(workers, {w.uid for w in workers if key_of(w) in roles}, known)


def _dwell_left(snapshot: Snapshot, policy: Policy) -> float:
    last = snapshot.memory.last_change_at
    return 0.0 if last is None else last + policy.min_dwell_seconds - snapshot.now


def _coalescing(snapshot: Snapshot, policy: Policy) -> bool:
    changed = snapshot.memory.capacity_changed_at
    return changed is not None and snapshot.now - changed < policy.coalesce_seconds


def _final_reason(
    snapshot: Snapshot, policy: Policy, verdict: Verdict, elastic_change: int, elastic_reason: Reason | None
) -> Reason:
    """The most telling reason: a change, then what stands in its way, then that there is nothing to gain."""
    shape = verdict.chosen.prediction.shape
    if elastic_change < 0:
        return elastic_reason or Reason.ENVIRONMENT_BOUND
    single = shape.workers == 1 or (snapshot.budget.staged and shape.mode is Mode.COLOCATED)
    if single and Mode.COLOCATED not in policy.modes:  # the GPUs hold no prefill and decode worker
        return Reason.INFEASIBLE
    if not verdict.chosen.prediction.feasible:
        return Reason.INFEASIBLE
    if verdict.reason is not Reason.WITHIN_DEADBAND:
        return verdict.reason
    if elastic_reason not in (None, Reason.APPLIED):
        return elastic_reason
    return Reason.BATCH_UNKNOWN if snapshot.batch is None else Reason.WITHIN_DEADBAND


def may_keep(shape: Shape, policy: Policy, room: Room | None = None) -> bool:
    """Whether the user's spec still allows a shape in its room, by default that of its number of workers."""
    return shape.workers == 0 or may_be(shape, policy, room)
