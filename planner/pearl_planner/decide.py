"""What the fleet should be now: sizes per zone and a shape, with the reason and the numbers behind it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pearl_planner import explain
from pearl_planner.ahead import lasting, pressed, with_mix
from pearl_planner.assign import assign, stays
from pearl_planner.choose import (
    FINALISTS,
    Verdict,
    best_of,
    faded_threshold,
    judge,
    rival_memory,
    switch_cost_seconds,
    with_cost,
)
from pearl_planner.engine_model import sane_table
from pearl_planner.evaluate import Situation, candidates, coarse, coarse_count, contenders, grid
from pearl_planner.facts import Sizes, fleet, missing_data, sizes
from pearl_planner.feeding import full_flight, held_up, next_flight, rounds_of, trainer_floor_seconds
from pearl_planner.gates import Count, elastic_count
from pearl_planner.lengths import lengths
from pearl_planner.makespan import remainder
from pearl_planner.numbers import known_count
from pearl_planner.predict import workload
from pearl_planner.profile import Profile
from pearl_planner.scale import corrected
from pearl_planner.shapes import carried_shape, may_be, shape_of
from pearl_planner.types import Feeding, Memory, Mode, Reason, Shape, Zone

if TYPE_CHECKING:
    from pearl_planner.engine_model import EngineTable
    from pearl_planner.predict import Forecast
    from pearl_planner.types import Policy, Prediction, Snapshot, Worker

PRICED = 2
"""The best and its best rival always have a price, others only if they beat the present shape."""
MANY, MOST_DRAWS, LEAST_PATHS = 256, 2048, 4
"""With more trajectories than `MANY` each path says more, and fewer are enough."""
MOST_UNSEEN = 2.5
"""Times the mean length of ended trajectories that the expected length may be."""
SCREEN_SHARE = 0.8
MOST_ERROR = 0.5
LEAST_MEAN = 1e-6
ERROR_GRID = 0.2
YOUNG_ERROR = 0.4
"""Relative error of the mean turn before any trajectory ended."""


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


def situation(snapshot: Snapshot, policy: Policy) -> Situation | tuple[Reason, str]:
    """Everything a prediction needs, or why there is none."""
    missing = missing_data(snapshot, policy)
    if missing is not None:
        return missing
    if snapshot.profile is None or not sane_table(policy.table):
        return Reason.INFEASIBLE, f"the engine table {policy.table.name!r} holds impossible step times"
    alive = _trajectories(snapshot, policy)
    if alive == 0:
        return Reason.IDLE, "no trajectory is in flight"
    feeding = None if snapshot.batch is None else snapshot.memory.feeding or Feeding.BARRIER
    rounds = _rounds(snapshot, snapshot.profile) if feeding is Feeding.BARRIER else ()
    refill = feeding is Feeding.REFILL
    returns = refill and held_up(snapshot, policy)
    barrier = feeding is Feeding.BARRIER or returns
    load = workload(snapshot.profile, next_flight(snapshot, policy) if refill and not returns else alive, None)
    if load is None:
        return Reason.NO_DATA, "too few turns measured"
    floor = 0.0 if barrier else trainer_floor_seconds(snapshot, policy, load.turns_per_trajectory)
    return Situation(
        load=coarse(load),
        table=_table(policy, snapshot.memory),
        policy=policy,
        memory=snapshot.memory,
        window=known_count(policy.window) or None,
        feeding=Feeding.BARRIER if barrier else feeding,
        rounds=rounds,
        full=coarse_count(full_flight(snapshot, policy)) if refill else None,
        returns=returns,
        floor_seconds=grid(floor),
        errors=_errors(snapshot.profile),
    )


def _table(policy: Policy, memory: Memory) -> EngineTable:
    """As measured, on the grid."""
    scale = None if memory.model_scale is None else grid(memory.model_scale)
    table = corrected(policy.table, replace(memory, model_scale=scale))
    return replace(table, interference_seconds=grid(table.interference_seconds))


def _rounds(snapshot: Snapshot, profile: Profile) -> tuple[tuple[int, float], ...]:
    """Of a whole batch like the open one; empty where sizes are not to be decided, or nobody knows how long it is."""
    room, known, batch = sizes(snapshot), lengths(profile), snapshot.batch
    if batch is None or known is None or room.elastic_high <= room.elastic_low:
        return ()
    return rounds_of(known.shares, batch.groups * batch.group_size)


def exact(snapshot: Snapshot, known: Situation) -> Situation:
    """The same situation comparing the rest of the open batch, where it has an end of its own."""
    if known.feeding is not Feeding.BARRIER or snapshot.batch is None or snapshot.profile is None:
        return known
    if snapshot.batch.complete_groups >= snapshot.batch.need_groups:
        return known  # nobody waits for the others
    if _lengths_unclear(snapshot.profile, known):
        return known
    alive = known.load.trajectories
    rest = remainder(
        snapshot.profile, snapshot.batch, paths=max(LEAST_PATHS, MOST_DRAWS // alive) if alive > MANY else None
    )
    return known if rest is None else replace(known, load=replace(known.load, rest=rest))


def _lengths_unclear(profile: Profile, known: Situation) -> bool:
    """Whether expected turns are far beyond those of trajectories that ended: nothing says yet when the rest ends."""
    ended, expected = profile.log_length, known.load.turns_per_trajectory
    if ended.count < 1 or not expected:
        return False
    return math.log(expected) > ended.mean + ended.variance / 2 + math.log(MOST_UNSEEN)


def _errors(profile: Profile) -> tuple[tuple[str, float], ...]:
    """Relative standard errors of the mean turn; on a grid, like the workload."""
    fields = {
        "appended_tokens": profile.appended,
        "generated_tokens": profile.generated,
        "environment_seconds": profile.environment,
    }
    # Early turns differ from late ones: as long as few trajectories ended, the mean turn is one of early turns.
    young = YOUNG_ERROR**2 / (1.0 + profile.effective_trajectories)
    found = []
    for name, moments in fields.items():
        if moments.count > 1 and moments.mean > LEAST_MEAN:
            error = math.sqrt(moments.variance / moments.count / moments.mean**2 + young)
            found.append((name, min(grid(error, ERROR_GRID), MOST_ERROR)))
    return tuple(found)


def decide(snapshot: Snapshot, policy: Policy) -> Decision:
    """The fleet to have. Without data nothing optional changes; floors and forced changes apply all the same."""
    room = sizes(snapshot)
    wanted = _wanted_shape(snapshot)
    present = carried_shape(wanted, room.fixed + room.elastic_kept, policy)
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


def _trajectories(snapshot: Snapshot, policy: Policy) -> int:
    """In flight or still to come in this batch; the prior of the spec where nobody counts."""
    batch, live = snapshot.batch, snapshot.measurements.live_trajectories
    if batch is not None:
        alive = len(batch.unfinished) + max(batch.groups * batch.group_size - batch.started, 0)
        return max(alive, live or 0)
    return policy.prior_groups * policy.prior_group_size if live is None else live


def _keep(room: Sizes, present: Shape, reason: Reason, cause: str) -> Decision:
    return Decision(room.with_elastic(room.elastic_kept), present, reason, explain.kept(present, cause))


def _predicted(snapshot: Snapshot, policy: Policy, known: Situation, room: Sizes, *, forced: bool) -> Decision:
    """The decision rule; a forced change (the present shape cannot stay) takes the best without thresholds."""
    now, here = snapshot.now, room.elastic_kept
    dwell_left = _dwell_left(snapshot, policy)
    wanted = _wanted_shape(snapshot)
    count = Count(here, None)
    if dwell_left <= 0 or forced:
        near = carried_shape(wanted, room.fixed + here, policy)
        count = elastic_count(known, room.fixed, here, room.elastic_low, room.elastic_high, near=near, now=now)
        if count.elastic > here and _coalescing(snapshot, policy):
            count = Count(here, Reason.COOLING_DOWN)
    target_sizes = room.with_elastic(count.elastic)
    shape = carried_shape(wanted, room.fixed + count.elastic, policy)
    free = forced or count.elastic != here
    verdict, present = _judged(snapshot, known, target_sizes, shape, free=free)
    if verdict.reason is Reason.APPLIED and dwell_left > 0 and not free:
        verdict = replace(verdict, chosen=present, reason=Reason.COOLING_DOWN)
    factor = None if free or dwell_left > 0 else pressed(snapshot, known, shape)
    if verdict.reason is not Reason.APPLIED and factor is not None and _pressed_long(snapshot):
        burst, _ = _judged(snapshot, with_mix(known, factor), target_sizes, shape, free=False)
        verdict = burst if burst.reason is Reason.APPLIED else verdict
    message = explain.compared(verdict, present, snapshot.profile or Profile(), dwell_left)
    reason = _final_reason(snapshot, policy, verdict, count.elastic - here, count.reason)
    finalists = tuple(one.prediction for one in verdict.finalists)
    memory = _remembered(snapshot, verdict, count, judged=dwell_left <= 0 or forced)
    since = memory.pressed_since if memory.pressed_since is not None else now
    memory = replace(memory, pressed_since=None if factor is None else since)
    return Decision(target_sizes, verdict.chosen.prediction.shape, reason, message, finalists, verdict.chosen, memory)


def _judged(
    snapshot: Snapshot, known: Situation, target_sizes: dict[Zone, int], shape: Shape, *, free: bool
) -> tuple[Verdict, Forecast]:
    """The verdict, and the forecast of the present shape. `free`: the best without thresholds.

    The rest of a batch is predicted only where some shape could win in it, and only for those.
    """
    now = snapshot.now
    near, rest = candidates(known, shape.workers, near=shape), known
    if known.feeding is Feeding.BARRIER:
        rivals = contenders(known, shape, lambda one: 0.0 if free else _least(one, shape, known, now))
        if rivals or free:
            rest = exact(snapshot, known)
            near = [rest.forecast(one) for one in (shape, *rivals[: FINALISTS - 1])]
    present = rest.forecast(shape)
    priced = _priced(snapshot, rest, target_sizes, present, near)
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
    snapshot: Snapshot, known: Situation, target_sizes: dict[Zone, int], present: Forecast, found: list[Forecast]
) -> list[Forecast]:
    """The best candidates; those that matter with what it costs to get there from the roles that workers have now."""
    shape, limit = present.prediction.shape, known.seconds(present)
    workers = fleet(snapshot)
    return [
        with_cost(one, _price(snapshot, known, target_sizes, one, workers))
        if one.prediction.shape != shape and (place < PRICED or known.seconds(one) < limit)
        else one
        for place, one in enumerate(sorted(found, key=known.seconds)[:FINALISTS])
    ]


def _price(
    snapshot: Snapshot,
    known: Situation,
    target_sizes: dict[Zone, int],
    forecast: Forecast,
    workers: tuple[Worker, ...],
) -> float:
    incarnations = dict(snapshot.memory.next_incarnations)
    slots = assign(workers, target_sizes, forecast.prediction.shape, next_incarnations=incarnations)
    roles = {(slot.slot, slot.incarnation): slot.role for slot in slots}
    return switch_cost_seconds(workers, {w.uid: roles.get((w.slot, w.incarnation), w.role) for w in workers}, known)


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
    if shape.workers == 1 and Mode.COLOCATED not in policy.modes:
        return Reason.INFEASIBLE
    if not verdict.chosen.prediction.feasible:
        return Reason.INFEASIBLE
    if verdict.reason is not Reason.WITHIN_DEADBAND:
        return verdict.reason
    if elastic_reason not in (None, Reason.APPLIED):
        return elastic_reason
    return Reason.BATCH_UNKNOWN if snapshot.batch is None else Reason.WITHIN_DEADBAND


def may_keep(shape: Shape, policy: Policy) -> bool:
    """Whether the user's spec still allows a shape."""
    return shape.workers == 0 or may_be(shape, policy)
