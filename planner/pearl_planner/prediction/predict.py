"""What a shape would do with the workload that was measured: turns per second and the rest of the batch.

docs/models.md, "From the profile to the stations". Tokens to prefill are derived per mode:

- colocated, or local append in a disaggregated fleet: the appended tokens a;
- prefill on another worker: a + ρ·r, since it never saw what was generated;
- both plus the history that no longer fits the caches of the workers that prefill.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pearl_planner.engine.model import prefill_seconds
from pearl_planner.prediction.local_append import local_append_tokens, split_appends
from pearl_planner.prediction.makespan import Limits, Member, course, finish_seconds, settle
from pearl_planner.prediction.mean_turn import Workload, workload
from pearl_planner.prediction.paths import remainder
from pearl_planner.prediction.stations import Stations, Turn
from pearl_planner.types import Mode, Prediction, Shape
from pearl_planner.workload.profile import Profile

if TYPE_CHECKING:
    from pearl_planner.engine.model import EngineTable
    from pearl_planner.types import Batch

SAME_THRESHOLD = 0.01
EXPERIMENT_PATHS = 1000


class Makespan(NamedTuple):
    """Seconds until a batch is complete: the mean, and the times by which it is with chance 10, 50 and 90 %."""

    mean: float
    q10: float
    q50: float
    q90: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """A prediction with what the routing needs."""

    prediction: Prediction
    local_append_tokens: int
    makespan: Makespan | None = None

    @property
    def value_seconds(self) -> float:
        """What the shapes are compared by: seconds of the rest of the batch, or seconds per turn of the fleet."""
        if not self.prediction.feasible:
            return math.inf
        if self.prediction.makespan_seconds is not None:
            return self.prediction.makespan_seconds
        return 1.0 / self.prediction.turns_per_second if self.prediction.turns_per_second else math.inf


def predict(
    shape: Shape, load: Workload, table: EngineTable, *, window: int | None = None, present_threshold: int | None = None
) -> Forecast:
    """Turns per second and, with a batch, seconds until it is complete. Impossible numbers → not feasible.

    `present_threshold` is the local append threshold in force; it stays unless another is better by 1 %.
    """
    in_flight = _in_flight(shape, load, table, window)
    if shape.workers < 1 or in_flight < 1:
        return _infeasible(shape, "the KV of one trajectory does not fit" if shape.workers else "no workers")
    stations = stations_of(shape, load, table, in_flight)
    if shape.mode is Mode.COLOCATED:
        return _judge(stations, load, in_flight, 0, _steady(stations, load, in_flight, 0))
    wanted = local_append_tokens(load, table, sequences=in_flight / shape.decode)
    thresholds = sorted({0, wanted, *(() if present_threshold is None else (present_threshold,))})
    rates = {tokens: _steady(stations, load, in_flight, tokens) for tokens in thresholds}
    best = max(thresholds, key=lambda tokens: (rates[tokens], -tokens))
    if present_threshold is not None and rates[present_threshold] * (1 + SAME_THRESHOLD) >= rates[best]:
        best = present_threshold
    return _judge(stations, load, in_flight, best, rates[best])


def predict_makespan(
    what: Profile | Workload, shape: Shape, table: EngineTable, batch: Batch, *, window: int | None = None
) -> Makespan | None:
    """Makespan of `batch` (open, or not begun) on a fixed shape; None where nothing can be predicted.

    `what`: the measured profile, or a workload made from it (then its own rest of the batch is taken).
    """
    if isinstance(what, Profile):
        size = batch.groups * batch.group_size - batch.finished
        load = workload(what, size, remainder(what, batch, paths=EXPERIMENT_PATHS))
    else:
        load = what
    return None if load is None or load.rest is None else predict(shape, load, table, window=window).makespan


def steady_rate(shape: Shape, load: Workload, table: EngineTable, window: int | None = None) -> float | None:
    """Trajectories per second with the window always full; None where nothing can be predicted.

    T_rollout of a batch of B trajectories is B / rate; a step of asynchronous training takes
    max(T_train, T_rollout), of which the trainer waits max(0, T_rollout − T_train).
    """
    if not load.turns_per_trajectory:
        return None
    rate = predict(shape, load, table, window=window).prediction.turns_per_second
    return None if rate is None else rate / load.turns_per_trajectory


def stations_of(shape: Shape, load: Workload, table: EngineTable, placed: float) -> Stations:
    """The shape's stations; prefill times vary as the appended tokens do. `placed`: trajectories placed evenly."""
    return Stations(shape, table, variation=_variation(load), placed=placed)


def turn_of(shape: Shape, load: Workload, local_below: int, number: float | None = None) -> Turn:
    """The mean turn, or the mean turn of this number."""
    context, appended = (load.context_tokens, load.appended_tokens) if number is None else load.at(number)
    retained = load.retained_share * load.generated_tokens
    # What is missed is a share of the history, which grows.
    history = max(context - appended, 0.0) / max(load.context_tokens - load.appended_tokens, 1.0)
    if not shape.prefill:
        return Turn(context, appended + history * load.missed("colocated"), 0.0, 1.0, load.generated_tokens)
    # The gateway compares all uncached tokens with the threshold, missed ones as well.
    share, local_mean, remote_mean = split_appends(load, int(local_below - load.missed("local")))
    scale = appended / max(load.appended_tokens, 1e-9)
    remote = max(1.0, remote_mean * scale + retained + history * load.missed("disaggregated"))
    return Turn(context, local_mean * scale + history * load.missed("local"), remote, share, load.generated_tokens)


def _variation(load: Workload) -> float:
    """Squared coefficient of variation of the appended tokens, from the histogram."""
    total = sum(load.appended_bins)
    if total <= 0:
        return 1.0
    middles = [1.5 * 2**k for k in range(len(load.appended_bins))]
    first = sum(c * m for c, m in zip(load.appended_bins, middles, strict=True)) / total
    second = sum(c * m * m for c, m in zip(load.appended_bins, middles, strict=True)) / total
    new = load.retained_share * load.generated_tokens + load.appended_tokens
    return float(max(second / (first * first) - 1.0, 0.0)) * (load.appended_tokens / new) ** 2


def _in_flight(shape: Shape, load: Workload, table: EngineTable, window: int | None) -> float:
    """Trajectories that run at once: those there are, within the window; 0 where the KV of one does not fit."""
    room = math.inf if table.kv_capacity_tokens is None else table.kv_capacity_tokens / load.context_tokens
    if not room >= 1.0 or not shape.colocated + shape.decode:
        return 0.0
    return min(float(load.trajectories), math.inf if window is None else float(window))


def _steady(stations: Stations, load: Workload, in_flight: float, local: int) -> float:
    """Turns per second with always as many in flight."""
    member = Member(in_flight, load.delay_seconds, 1.0, load.generated_tokens)
    return settle(stations, turn_of(stations.shape, load, local), [member], in_flight).turns_per_second


def _judge(stations: Stations, load: Workload, in_flight: float, local: int, rate: float) -> Forecast:
    shape = stations.shape
    if not (math.isfinite(rate) and rate > 0):
        return _infeasible(shape, "the engine model gives no finite time")
    makespan = None if load.rest is None else _makespan(stations, load, in_flight, local)
    if makespan is not None and not math.isfinite(makespan.mean):
        return _infeasible(shape, "the engine model gives no finite time")
    mean = None if makespan is None else makespan.mean
    return Forecast(Prediction(shape, rate, mean, 0.0, feasible=True), local, makespan)


def _makespan(stations: Stations, load: Workload, in_flight: float, local: int) -> Makespan:
    """Of all paths."""
    rest = load.rest
    if rest is None or not rest.paths:
        return Makespan(0.0, 0.0, 0.0, 0.0)
    limits = Limits(
        in_flight,
        refill=in_flight if load.refill else 0.0,
        first_seconds=prefill_seconds(stations.table.prefilling, load.at(1.0)[1], 0.0),
        tokens=load.generated_tokens / rest.generated_tokens,
        waits=load.environment_seconds / rest.environment_seconds if rest.environment_seconds > 0 else 1.0,
    )
    steps = course(rest, stations, lambda number: turn_of(stations.shape, load, local, number), limits)
    ends = finish_seconds(rest, steps, limits)
    return Makespan(sum(ends) / len(ends), *(_quantile(ends, share) for share in (0.1, 0.5, 0.9)))


def _quantile(ordered: list[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def _infeasible(shape: Shape, note: str) -> Forecast:
    return Forecast(Prediction(shape, None, None, 0.0, feasible=False, note=note), 0)
