"""Which shape: predicted times, the cost of getting there, and how much better is better enough.

docs/models.md, "Choice" and "Borrow gate". A candidate replaces the present shape when the rest of the batch,
including what the switch costs, is predicted shorter by more than the threshold of the ratio (or the larger one of
the mode). Without a batch the same comparison is made over a fixed horizon of steady work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pearl_planner.predict import Forecast, Workload, predict
from pearl_planner.shapes import allowed_shapes
from pearl_planner.types import Loan, Memory, Mode, Policy, Reason, Role, Shape, Worker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pearl_planner.engine_model import EngineTable

STEADY_HORIZON_SECONDS = 300.0
"""Work over which a switch must pay where no batch says how much is left."""
MIN_SAVING_SECONDS = 0.5
FLIP_SECONDS = 1.0
START_SECONDS = 60.0
SAME_SHARE = 0.02
"""More workers must do better by this much, otherwise the rest waits for something else (environment bound)."""
EXHAUSTIVE_WORKERS = 8
FINALISTS = 5


@dataclass(frozen=True, slots=True)
class Situation:
    """What every comparison of one decision shares."""

    load: Workload
    table: EngineTable
    policy: Policy
    memory: Memory
    window: int | None

    def forecast(self, shape: Shape) -> Forecast:
        """Prediction of one shape."""
        present = self.memory.local_append_tokens
        return predict(shape, self.load, self.table, window=self.window, present_threshold=present)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The shape to have, why, and what it was compared with (all with their switch cost)."""

    chosen: Forecast
    reason: Reason
    finalists: tuple[Forecast, ...]


def candidates(situation: Situation, count: int) -> list[Forecast]:
    """Forecasts of the shapes of `count` workers, best first; large fleets are searched from the best guess."""
    shapes = allowed_shapes(count, situation.policy)
    split_up = [shape for shape in shapes if shape.mode is Mode.DISAGGREGATED]
    if len(split_up) <= EXHAUSTIVE_WORKERS:
        forecasts = [situation.forecast(shape) for shape in shapes]
    else:
        whole = [situation.forecast(shape) for shape in shapes if shape.mode is Mode.COLOCATED]
        forecasts = whole + _climb(situation, count)
    return sorted(forecasts, key=lambda one: (one.value_seconds, str(one.prediction.shape)))


def _climb(situation: Situation, count: int) -> list[Forecast]:
    """Hill climbing over P with halving steps: the time of a batch has one valley over P."""
    seen: dict[int, Forecast] = {}

    def at(prefill: int) -> float:
        if prefill not in seen:
            seen[prefill] = situation.forecast(Shape(0, prefill, count - prefill))
        return seen[prefill].value_seconds

    best, step = max(1, count // 3), max(1, count // 4)
    while step:
        nearest = [p for p in (best, best - step, best + step) if 1 <= p < count]
        better = min(nearest, key=lambda p: (at(p), p))
        if better == best:
            step //= 2
        best = better
    return list(seen.values())


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
    lost = sum(
        share if worker.resident_tokens is None else float(worker.resident_tokens)
        for worker in changed
        if roles[worker.uid] is not Role.COLOCATED
    )
    able = sum(1 for worker in workers if roles.get(worker.uid, worker.role) is not Role.DECODE)
    label = FLIP_SECONDS if situation.memory.flip_cost_seconds is None else situation.memory.flip_cost_seconds
    return label + lost * situation.table.prefill_per_token_seconds / max(able, 1)


def total_seconds(forecast: Forecast, present: Forecast) -> float:
    """What is compared: the rest of the batch with the switch, or the horizon's work at the present rate."""
    cost = forecast.prediction.switch_cost_seconds
    if not forecast.prediction.feasible:
        return math.inf
    if forecast.prediction.makespan_seconds is not None:
        return forecast.prediction.makespan_seconds + cost
    rate, now = forecast.prediction.turns_per_second, present.prediction.turns_per_second
    if not rate:
        return math.inf
    return STEADY_HORIZON_SECONDS * (now / rate if now else 1.0 / rate) + cost


def judge(present: Forecast, forecasts: Sequence[Forecast], situation: Situation) -> Verdict:
    """The best shape if it is better enough, else the present one. `forecasts` carry their switch costs."""
    others = [one for one in forecasts if one.prediction.shape != present.prediction.shape]
    ranked = sorted(others, key=lambda one: (total_seconds(one, present), str(one.prediction.shape)))
    finalists = tuple(sorted([present, *ranked[: FINALISTS - 1]], key=lambda one: total_seconds(one, present)))
    if not ranked or not ranked[0].prediction.feasible:
        return Verdict(present, Reason.WITHIN_DEADBAND, finalists)
    if not present.prediction.feasible:
        return Verdict(ranked[0], Reason.APPLIED, finalists)
    for one in ranked:
        if _better_enough(one, present, situation):
            return Verdict(one, Reason.APPLIED, finalists)
    best_free = min(others, key=lambda one: total_seconds(with_cost(one, 0.0), present))
    unaffordable = _better_enough(with_cost(best_free, 0.0), present, situation)
    return Verdict(present, Reason.SWITCH_COST_TOO_HIGH if unaffordable else Reason.WITHIN_DEADBAND, finalists)


def _better_enough(one: Forecast, present: Forecast, situation: Situation) -> bool:
    same_mode = one.prediction.shape.mode is present.prediction.shape.mode
    policy = situation.policy
    threshold = (policy.ratio_threshold if same_mode else policy.mode_threshold) + situation.load.error
    now, then = total_seconds(present, present), total_seconds(one, present)
    return now - then > max(threshold * now, MIN_SAVING_SECONDS)


def elastic_count(situation: Situation, fixed: int, present: int, low: int, high: int) -> tuple[int, Reason | None]:
    """How many elastic workers to have beside `fixed` others, and why not more of them (None = all there are).

    Fewer when the batch would not notice; more when it would, and the start pays before the batch ends.
    """
    if high <= low and present == low:
        return low, None
    here = min(max(present, low), high)
    counts = sorted({low, high, here, *_between(low, high)})
    value = {e: _best_value(situation, fixed + e) for e in counts}
    if situation.policy.objective == "Cost":
        wanted = min(counts, key=lambda e: ((fixed + e) * value[e], e))
    else:
        best = min(value.values())
        wanted = next(e for e in counts if value[e] <= best * (1.0 + SAME_SHARE))
    if wanted > here:
        pays = _growth_pays(situation, value[here], value[wanted])
        return (wanted, Reason.APPLIED) if pays else (here, Reason.SWITCH_COST_TOO_HIGH)
    return wanted, Reason.ENVIRONMENT_BOUND if high > wanted else None


def _between(low: int, high: int) -> list[int]:
    """Some counts in between; all of them in a small range."""
    return [low + (high - low) * k // 6 for k in range(1, 6)]


def _best_value(situation: Situation, count: int) -> float:
    forecasts = candidates(situation, count)
    return forecasts[0].value_seconds if forecasts else math.inf


def _growth_pays(situation: Situation, now: float, then: float) -> bool:
    """The gain after the start, over the batch or the steady horizon, beats the ratio threshold."""
    if not math.isfinite(now):
        return math.isfinite(then)
    start = situation.memory.start_cost_seconds
    start = START_SECONDS if start is None else start
    total = now if situation.load.rest is not None else STEADY_HORIZON_SECONDS
    gain = max(0.0, total - start) * (1.0 - then / now)
    return gain > max(situation.policy.ratio_threshold * total, MIN_SAVING_SECONDS)


def borrow_answer(situation: Situation | None, loan: Loan, count: int, added: int) -> tuple[bool, str]:
    """Whether to take a loan that adds `added` workers to `count`, and the reason for the trainer.

    Saved time = (window − wake) · (1 − T_with/T_without) − deactivation. Without data, or while no wake was ever
    measured, the loan is taken: idle GPUs cost nothing and the first loan is what measures the cost.
    """
    if situation is None:
        return True, Reason.NO_DATA.value
    without, with_loan = _best_value(situation, count), _best_value(situation, count + added)
    if not math.isfinite(without):
        return True, Reason.APPLIED.value
    share = 1.0 - with_loan / without
    if share <= SAME_SHARE:
        return False, Reason.ENVIRONMENT_BOUND.value
    wake = situation.memory.wake_cost_seconds
    if wake is None:
        return True, Reason.APPLIED.value
    windows = [loan.cap_seconds, loan.expected_idle_seconds, without if situation.load.rest is not None else None]
    window = min([one for one in windows if one is not None], default=STEADY_HORIZON_SECONDS)
    saved = (window - wake) * share - wake / 2
    if saved > MIN_SAVING_SECONDS:
        return True, Reason.APPLIED.value
    return False, Reason.BORROW_NOT_WORTHWHILE.value
