"""Which shape: predicted times, the cost of getting there, and how much better is better enough.

docs/models.md, "Choice". A candidate replaces the present shape when the rest of the batch, including what the switch
costs, is predicted shorter by more than the threshold of the ratio (or the larger one of the mode) and the error of
the difference. Where batches follow each other without a gap the same comparison is made over a horizon of steady work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pearl_planner.choice.costs import flip_seconds, start_seconds
from pearl_planner.fleet.living import stays
from pearl_planner.numbers import clamp
from pearl_planner.types import Memory, Reason, Role, Shape, Worker, Zone

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pearl_planner.choice.evaluate import Situation
    from pearl_planner.prediction.mean_turn import Workload
    from pearl_planner.prediction.predict import Forecast

MIN_SAVING_SECONDS = 0.5
FADING_SECONDS = 60.0
"""A rival that stays ahead so long needs half the threshold only."""
MOST_FADED = 3.0
"""No threshold fades further: differences of 1 % are within what the model itself may be wrong by."""
FINALISTS = 5
MAX_ERROR = 0.5


@dataclass(frozen=True, slots=True)
class Verdict:
    """The shape to have, why, and what it was compared with (all with their switch cost)."""

    chosen: Forecast
    reason: Reason
    finalists: tuple[Forecast, ...]
    rival: Shape | None = None
    """Better than the present one, but not by enough yet."""


def with_cost(forecast: Forecast, cost_seconds: float) -> Forecast:
    """The same forecast, with what it costs to get there."""
    return replace(forecast, prediction=replace(forecast.prediction, switch_cost_seconds=cost_seconds))


def switch_cost_seconds(workers: Sequence[Worker], roles: dict[str, Role], situation: Situation) -> float:
    """Seconds lost by giving the workers these roles (by uid): labels, then contexts prefilled again elsewhere.

    A worker that becomes colocated keeps serving what it holds; one that gets a single stage starts cold in it.
    """
    changed = [worker for worker in workers if roles.get(worker.uid, worker.role) is not worker.role]
    if not changed:
        return 0.0
    share = situation.load.trajectories * situation.load.context_tokens / max(len(workers), 1)
    table = situation.table if situation.split_table is None else situation.split_table.prefilling
    most = situation.table.kv_capacity_tokens or math.inf  # contexts beyond it are in no cache any more
    lost = sum(
        min(share if worker.resident_tokens is None else float(worker.resident_tokens), most)
        for worker in changed
        if roles[worker.uid] is not Role.COLOCATED
    )
    able = sum(1 for worker in workers if roles.get(worker.uid, worker.role) is not Role.DECODE)
    return flip_seconds(situation.memory.flip_cost_seconds) + lost * table.prefill_per_token_seconds / max(able, 1)


def replacement_seconds(workers: Sequence[Worker], kept: Collection[str], situation: Situation) -> float:
    """Seconds of the fleet lost by workers of which others take the place: their GPUs do nothing for a start.

    `kept`: UIDs. Lent workers come and go by themselves.
    """
    own = [worker for worker in workers if worker.zone is not Zone.BORROWED and stays(worker)]
    gone = sum(worker.gpus for worker in own if worker.uid not in kept)
    return start_seconds(situation.memory) * gone / max(sum(worker.gpus for worker in workers), 1)


def total_seconds(forecast: Forecast, present: Forecast, situation: Situation) -> float:
    """What is compared: the rest of the batch with the switch, or the horizon's work at the present rate."""
    cost = forecast.prediction.switch_cost_seconds * (2.0 if situation.returns else 1.0)
    value, now = situation.seconds(forecast), situation.seconds(present)
    if not math.isfinite(value) or forecast.prediction.makespan_seconds is not None:
        return value + cost
    return situation.horizon_seconds * (value / now if math.isfinite(now) and now > 0 else value) + cost


def judge(present: Forecast, forecasts: Sequence[Forecast], situation: Situation, *, now: float) -> Verdict:
    """The best shape if it is better enough, else the present one. `forecasts` carry their switch costs."""
    others = [one for one in forecasts if one.prediction.shape != present.prediction.shape]
    times = {one.prediction.shape: total_seconds(one, present, situation) for one in [*others, present]}
    ranked = sorted(others, key=lambda one: (times[one.prediction.shape], str(one.prediction.shape)))
    finalists = tuple(sorted([present, *ranked[: FINALISTS - 1]], key=lambda one: times[one.prediction.shape]))
    if not ranked or not ranked[0].prediction.feasible:
        return Verdict(present, Reason.WITHIN_DEADBAND, finalists)
    if not present.prediction.feasible:
        return Verdict(ranked[0], Reason.APPLIED, finalists)
    for one in ranked:
        if _better_enough(one, present, situation, now):
            return Verdict(one, Reason.APPLIED, finalists)
    rival = ranked[0].prediction.shape if times[ranked[0].prediction.shape] < times[present.prediction.shape] else None
    best_free = min(others, key=lambda one: total_seconds(with_cost(one, 0.0), present, situation))
    unaffordable = _better_enough(with_cost(best_free, 0.0), present, situation, now)
    reason = Reason.SWITCH_COST_TOO_HIGH if unaffordable else Reason.WITHIN_DEADBAND
    return Verdict(present, reason, finalists, rival)


def best_of(forecasts: Sequence[Forecast], present: Forecast, situation: Situation) -> Forecast:
    """The best where the number of workers changes anyway; the mode only for more than errors and the threshold."""
    mode = present.prediction.shape.mode
    times = {one.prediction.shape: total_seconds(one, present, situation) for one in forecasts}
    ranked = sorted(forecasts, key=lambda one: (times[one.prediction.shape], str(one.prediction.shape)))
    alike = [one for one in ranked if one.prediction.shape.mode is mode]
    if not alike or ranked[0] is alike[0] or not math.isfinite(times[alike[0].prediction.shape]):
        return ranked[0]
    here, there = times[alike[0].prediction.shape], times[ranked[0].prediction.shape]
    least = situation.policy.ratio_threshold + error_of_difference(ranked[0], alike[0], situation)
    return ranked[0] if here - there > least * here else alike[0]


def _better_enough(one: Forecast, present: Forecast, situation: Situation, now: float) -> bool:
    """Gain above the threshold, and above what the measurement may be wrong by."""
    here, there = total_seconds(present, present, situation), total_seconds(one, present, situation)
    gain = here - there
    threshold = faded_threshold(one.prediction.shape, present.prediction.shape, situation, now)
    if gain <= max(threshold * here, MIN_SAVING_SECONDS):
        return False
    return gain > (threshold + error_of_difference(one, present, situation)) * here


def faded_threshold(one: Shape, present: Shape, situation: Situation, now: float) -> float:
    """The user's threshold, less for a rival that stays ahead: noise does not last, a difference does."""
    policy, memory = situation.policy, situation.memory
    threshold = policy.ratio_threshold if one.mode is present.mode else policy.mode_threshold
    if memory.rival != one or memory.rival_since is None:
        return threshold
    return max(threshold / MOST_FADED, threshold / (1.0 + max(now - memory.rival_since, 0.0) / FADING_SECONDS))


def error_of_difference(one: Forecast, present: Forecast, situation: Situation) -> float:
    """Standard error of log(T_present / T_one): what both have in common cancels."""
    shapes = (present.prediction.shape, one.prediction.shape)
    base = _log_ratio(shapes, situation.load, situation)
    squares = 0.0
    for name, error in situation.errors:
        moved = replace(situation.load, **{name: getattr(situation.load, name) * (1.0 + error)})
        squares += (_log_ratio(shapes, moved, situation) - base) ** 2
    return clamp(math.sqrt(squares), 0.0, MAX_ERROR)


def _log_ratio(shapes: tuple[Shape, Shape], load: Workload, situation: Situation) -> float:
    before, after = (situation.forecast(shape, load).value_seconds for shape in shapes)
    usable = math.isfinite(before) and math.isfinite(after) and before > 0 and after > 0
    return math.log(before / after) if usable else 0.0


def rival_memory(memory: Memory, rival: Shape | None, now: float) -> Memory:
    """Since when the same rival is ahead."""
    if rival is None:
        return replace(memory, rival=None, rival_since=None)
    same = memory.rival == rival and memory.rival_since is not None
    return replace(memory, rival=rival, rival_since=memory.rival_since if same else now)
