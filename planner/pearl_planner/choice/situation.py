"""From the snapshot to what one decision compares: the load, the table as measured, and what the fleet works for."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from pearl_planner.choice.evaluate import Situation, coarse, coarse_count, grid, measured_table
from pearl_planner.choice.feeding import full_flight, held_up, next_flight, rounds_of, trainer_floor_seconds
from pearl_planner.engine.model import sane_table
from pearl_planner.facts import missing_data, sizes
from pearl_planner.numbers import known_count
from pearl_planner.prediction.makespan import remainder
from pearl_planner.prediction.mean_turn import workload
from pearl_planner.types import Feeding, Mode, Reason
from pearl_planner.workload.lengths import turn_shares

if TYPE_CHECKING:
    from pearl_planner.types import Policy, Snapshot
    from pearl_planner.workload.profile import Profile

MANY, MOST_DRAWS, LEAST_PATHS = 256, 2048, 4
"""With more trajectories than `MANY` each path says more, and fewer are enough."""
TAIL_DRAWS = 512
"""For the tail of a batch with refill, which is judged again and again."""
MOST_UNSEEN = 2.5
"""Times the mean length of ended trajectories that the expected length may be."""
MOST_ERROR = 0.5
LEAST_MEAN = 1e-6
ERROR_GRID = 0.2
YOUNG_ERROR = 0.4
"""Relative error of the mean turn before any trajectory ended."""


def _trajectories(snapshot: Snapshot, policy: Policy) -> int:
    """In flight or still to come in this batch; the prior of the spec where nobody counts."""
    batch, live = snapshot.batch, snapshot.measurements.live_trajectories
    if batch is not None:
        alive = len(batch.unfinished) + max(batch.groups * batch.group_size - batch.started, 0)
        return max(alive, live or 0)
    return policy.prior_groups * policy.prior_group_size if live is None else live


def situation(snapshot: Snapshot, policy: Policy) -> Situation | tuple[Reason, str]:
    """Everything a prediction needs, or why there is none."""
    missing = missing_data(snapshot, policy)
    if missing is not None:
        return missing
    if snapshot.profile is None or not all(sane_table(policy.table_of(mode)) for mode in Mode):
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
        table=measured_table(policy, snapshot.memory),
        split_table=policy.split_table and measured_table(policy, snapshot.memory, Mode.DISAGGREGATED),
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


def _rounds(snapshot: Snapshot, profile: Profile) -> tuple[tuple[int, float], ...]:
    """Of a whole batch like the open one; empty where sizes are not to be decided, or nobody knows how long it is."""
    room, shares, batch = sizes(snapshot), turn_shares(profile), snapshot.batch
    if batch is None or shares is None or room.elastic_high <= room.elastic_low:
        return ()
    return rounds_of(shares, batch.groups * batch.group_size)


def exact(snapshot: Snapshot, known: Situation) -> Situation:
    """The same situation comparing the rest of the open batch, where it has an end of its own."""
    if known.feeding is not Feeding.BARRIER or snapshot.batch is None or snapshot.profile is None:
        return known
    if snapshot.batch.complete_groups >= snapshot.batch.need_groups:
        return known  # nobody waits for the others
    if _lengths_unclear(snapshot.profile, known):
        return known
    alive = known.load.trajectories
    draws = TAIL_DRAWS if known.returns else MOST_DRAWS if alive > MANY else None
    rest = remainder(snapshot.profile, snapshot.batch, paths=draws and max(LEAST_PATHS, draws // alive))
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
