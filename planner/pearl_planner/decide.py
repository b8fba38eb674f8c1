"""What the fleet should be now: sizes per zone and a shape, with the reason and the numbers behind it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pearl_planner import explain
from pearl_planner.assign import assign, stays
from pearl_planner.choose import Situation, Verdict, candidates, elastic_count, judge, switch_cost_seconds, with_cost
from pearl_planner.engine_model import sane_table
from pearl_planner.facts import Sizes, fleet, missing_data, sizes
from pearl_planner.makespan import remainder
from pearl_planner.numbers import known_count
from pearl_planner.predict import workload
from pearl_planner.profile import Profile
from pearl_planner.shapes import allowed_shapes, carried_shape, shape_of
from pearl_planner.types import Mode, Reason, Shape, Zone

if TYPE_CHECKING:
    from pearl_planner.predict import Forecast
    from pearl_planner.types import Policy, Prediction, Snapshot


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
    rest = None if snapshot.batch is None else remainder(snapshot.profile, snapshot.batch)
    load = workload(snapshot.profile, alive, rest)
    if load is None:
        return Reason.NO_DATA, "too few turns measured"
    table = policy.table.scaled(snapshot.memory.model_scale or 1.0)
    return Situation(load, table, policy, snapshot.memory, known_count(policy.window) or None)


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
    here = elastic = room.elastic_kept
    elastic_reason = None
    dwell_left = _dwell_left(snapshot, policy)
    if dwell_left <= 0 or forced:
        elastic, elastic_reason = elastic_count(known, room.fixed, here, room.elastic_low, room.elastic_high)
        if elastic > here and _coalescing(snapshot, policy):
            elastic, elastic_reason = here, Reason.COOLING_DOWN
    target_sizes = room.with_elastic(elastic)
    present = known.forecast(carried_shape(_wanted_shape(snapshot), room.fixed + elastic, policy))
    priced = _priced(snapshot, known, target_sizes, room.fixed + elastic)
    verdict = judge(present, priced, known)
    if (forced or elastic != here) and priced:
        verdict = Verdict(priced[0], Reason.APPLIED, verdict.finalists)
    elif verdict.reason is Reason.APPLIED and dwell_left > 0:
        verdict = replace(verdict, chosen=present, reason=Reason.COOLING_DOWN)
    message = explain.compared(verdict, present, snapshot.profile or Profile(), dwell_left)
    reason = _final_reason(snapshot, policy, verdict, elastic - here, elastic_reason)
    finalists = tuple(one.prediction for one in verdict.finalists)
    return Decision(target_sizes, verdict.chosen.prediction.shape, reason, message, finalists, verdict.chosen)


def _priced(snapshot: Snapshot, known: Situation, target_sizes: dict[Zone, int], count: int) -> list[Forecast]:
    """Candidates with what it costs to get there from the roles that workers have now."""
    workers = fleet(snapshot)
    incarnations = dict(snapshot.memory.next_incarnations)
    priced = []
    for forecast in candidates(known, count):
        slots = assign(workers, target_sizes, forecast.prediction.shape, next_incarnations=incarnations)
        roles = {(slot.slot, slot.incarnation): slot.role for slot in slots}
        by_uid = {w.uid: roles.get((w.slot, w.incarnation), w.role) for w in workers}
        priced.append(with_cost(forecast, switch_cost_seconds(workers, by_uid, known)))
    return priced


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
        return Reason.ENVIRONMENT_BOUND
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
    return shape.workers == 0 or shape in allowed_shapes(shape.workers, policy)
