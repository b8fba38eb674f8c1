"""What the rules to compare with share: reading the snapshot, and a decision with the same local append threshold.

Only the decision differs between rules, so each of them gets the threshold that the planner's formula gives for its
shape, and leaves targets, steps and forced changes to `plan()`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pearl_planner.choice.decide import Decision
from pearl_planner.facts import fleet, missing_data, sizes
from pearl_planner.fleet.living import stays
from pearl_planner.fleet.shapes import allowed_shapes, initial_shape, shape_of
from pearl_planner.prediction.local_append import local_append_tokens
from pearl_planner.prediction.mean_turn import workload
from pearl_planner.prediction.predict import Forecast
from pearl_planner.types import Mode, Prediction, Reason, Role, Shape, Worker, WorkerState

if TYPE_CHECKING:
    from pearl_planner.engine.model import EngineTable
    from pearl_planner.prediction.mean_turn import Workload
    from pearl_planner.types import Loan, Policy, Snapshot


def present_shape(snapshot: Snapshot) -> Shape:
    """The shape last decided for, or the one that is there."""
    if snapshot.target is not None:
        return shape_of(snapshot.target.slots)
    return shape_of(worker for worker in fleet(snapshot) if stays(worker))


def serving(snapshot: Snapshot, *roles: Role) -> list[Worker]:
    """Workers of the fleet with one of these roles that serve now."""
    return [w for w in fleet(snapshot) if w.role in roles and w.state is WorkerState.READY and stays(w)]


def decision(snapshot: Snapshot, policy: Policy, elastic: int, shape: Shape, message: str) -> Decision:
    """To have `elastic` elastic units beside the fixed ones, and `shape` or what the spec allows instead of it."""
    room = sizes(snapshot)
    many = room.room(elastic)
    if shape not in allowed_shapes(many, policy):
        shape = initial_shape(many, policy)
    return Decision(room.with_elastic(elastic), shape, Reason.APPLIED, message, (), _routing(snapshot, policy, shape))


def load_of(snapshot: Snapshot, policy: Policy) -> Workload | None:
    """The mean turn as measured; None while too little is known."""
    if missing_data(snapshot, policy) is not None or snapshot.profile is None:
        return None
    return workload(snapshot.profile, trajectories(snapshot, policy), None)


def remote_tokens(load: Workload) -> float:
    """Tokens that a prefill worker computes per turn: new ones, retained answers, and the misses that were measured.

    Misses of the split fleet where it was measured; until then those of the colocated one, which saw the same agents.
    """
    measured = dict(load.missed_tokens)
    missed = measured.get("disaggregated", measured.get("colocated", 0.0))
    new = load.appended_tokens + load.retained_share * load.generated_tokens + max(missed, 0.0)
    return min(new, max(load.context_tokens, 1.0))


def table_of(snapshot: Snapshot, policy: Policy, mode: Mode = Mode.COLOCATED) -> EngineTable:
    """Engine constants with the correction that was measured on the live fleet."""
    return policy.table_of(mode).scaled(snapshot.memory.model_scale or 1.0)


def trajectories(snapshot: Snapshot, policy: Policy) -> int:
    """In flight now: what the gateway counts, the open batch, or the prior of the spec."""
    live = snapshot.measurements.live_trajectories
    if live:
        return live
    if snapshot.batch is not None and snapshot.batch.unfinished:
        return len(snapshot.batch.unfinished)
    return max(1, policy.prior_groups * policy.prior_group_size)


def _routing(snapshot: Snapshot, policy: Policy, shape: Shape) -> Forecast | None:
    """No prediction, but the local append threshold of the planner's formula for this shape."""
    load = load_of(snapshot, policy)
    if load is None:
        return None
    local = 0
    if shape.mode is Mode.DISAGGREGATED:
        sequences = load.trajectories if policy.window is None else min(load.trajectories, policy.window)
        local = local_append_tokens(load, table_of(snapshot, policy, shape.mode), sequences=sequences / shape.decode)
    return Forecast(Prediction(shape, None, None, 0.0, feasible=True), local)


class NoLoans:
    """Never borrows."""

    __slots__ = ()

    def answer_loan(self, snapshot: Snapshot, policy: Policy, loan: Loan, count: int, added: int) -> tuple[bool, str]:
        """Refused."""
        del snapshot, policy, loan, count, added
        return False, Reason.BORROW_NOT_WORTHWHILE.value


def with_share(count: int, share: float) -> Shape:
    """`count` workers of which about this share prefills; 0 = colocated."""
    if share <= 0 or count < 2:  # noqa: PLR2004 - two stages need two workers
        return Shape(colocated=count)
    prefill = min(max(round(share * count), 1), count - 1)
    return replace(Shape(), prefill=prefill, decode=count - prefill)
