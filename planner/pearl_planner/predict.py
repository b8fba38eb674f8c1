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

from pearl_planner.engine_model import chunk_seconds, decode_seconds, prefill_seconds, transfer_seconds
from pearl_planner.makespan import Remainder, makespan_seconds, remainder
from pearl_planner.numbers import clamp
from pearl_planner.profile import Profile
from pearl_planner.queueing import Network, Solution, solve
from pearl_planner.types import Mode, Prediction, Shape

if TYPE_CHECKING:
    from pearl_planner.engine_model import EngineTable
    from pearl_planner.types import Batch

MIN_TURNS = 12.0
"""Effective turns below which nothing is predicted."""
MAX_ERROR = 0.15
SAME_THRESHOLD = 0.01


@dataclass(frozen=True, slots=True)
class Workload:
    """One turn of the mean trajectory, with how many trajectories there are."""

    appended_tokens: float
    generated_tokens: float
    retained_share: float
    environment_seconds: float
    context_tokens: float
    missed_tokens: tuple[tuple[str, float], ...]
    """(route, prefilled tokens beyond the derived ones), where the engines said."""
    appended_bins: tuple[float, ...]
    trajectories: int
    """In flight now, at least 1."""
    rest: Remainder | None
    """The rest of the open batch; None = none known, steady state."""
    error: float = 0.0
    """What two shapes may seem to differ by (as a share) because the mean turn is known from few turns only."""

    def missed(self, route: str) -> float:
        """Measured tokens beyond the derived ones on this route; a rate of one mode is never carried to another."""
        return dict(self.missed_tokens).get(route, 0.0)


@dataclass(frozen=True, slots=True)
class Forecast:
    """A prediction with what the routing needs."""

    prediction: Prediction
    local_append_tokens: int

    @property
    def value_seconds(self) -> float:
        """What the shapes are compared by: seconds of the rest of the batch, or seconds per turn of the fleet."""
        if not self.prediction.feasible:
            return math.inf
        if self.prediction.makespan_seconds is not None:
            return self.prediction.makespan_seconds
        return 1.0 / self.prediction.turns_per_second if self.prediction.turns_per_second else math.inf


def workload(profile: Profile, trajectories: int, rest: Remainder | None) -> Workload | None:
    """The mean turn; None while the profile rests on too few turns."""
    if profile.effective_turns < MIN_TURNS:
        return None
    retained = profile.retained.known_mean()
    return Workload(
        appended_tokens=max(profile.appended.mean, 1.0),
        generated_tokens=max(profile.generated.mean, 1.0),
        retained_share=1.0 if retained is None else retained,
        environment_seconds=profile.environment.known_mean() or 0.0,
        context_tokens=max(profile.context.mean, 1.0),
        missed_tokens=tuple(sorted((route, moments.mean) for route, moments in profile.missed.items())),
        appended_bins=profile.appended_bins,
        trajectories=max(trajectories, 1),
        rest=rest,
        error=comparison_error(profile),
    )


def comparison_error(profile: Profile) -> float:
    """Half the relative standard error of prefill and decode work per turn (docs/models.md, "Choice")."""
    parts = (profile.appended, profile.generated)
    squares = [part.variance / (max(part.count, 1.0) * max(part.mean, 1.0) ** 2) for part in parts]
    return clamp(0.5 * math.sqrt(max(sum(squares), 0.0)), 0.0, MAX_ERROR)


def predict(
    shape: Shape, load: Workload, table: EngineTable, *, window: int | None = None, present_threshold: int | None = None
) -> Forecast:
    """Turns per second and, with a batch, seconds until it is complete. Impossible numbers → not feasible.

    `present_threshold` is the local append threshold in force; it stays unless another is better by 1 %.
    """
    in_flight = _in_flight(shape, load, table, window)
    if shape.workers < 1 or in_flight < 1:
        return _infeasible(shape, "the KV of one trajectory does not fit" if shape.workers else "no workers")
    if shape.mode is Mode.COLOCATED:
        return _judge(shape, load, solve(colocated_network(shape, load, table), int(in_flight)), in_flight, 0)
    wanted = local_append_tokens(load, table, sequences=in_flight / shape.decode)
    thresholds = sorted({0, wanted, *(() if present_threshold is None else (present_threshold,))})
    forecasts = [
        _judge(
            shape,
            load,
            solve(disaggregated_network(shape, load, table, local_below=tokens), int(in_flight)),
            in_flight,
            tokens,
        )
        for tokens in thresholds
    ]
    best = min(forecasts, key=lambda one: one.value_seconds)
    same = [one for one in forecasts if one.local_append_tokens == present_threshold]
    return same[0] if same and same[0].value_seconds <= best.value_seconds * (1 + SAME_THRESHOLD) else best


class Makespan(NamedTuple):
    """Seconds until a batch is complete: the mean, and the times by which it is with chance 10, 50 and 90 %."""

    mean: float
    q10: float
    q50: float
    q90: float


def predict_makespan(
    what: Profile | Workload, shape: Shape, table: EngineTable, batch: Batch, *, window: int | None = None
) -> Makespan | None:
    """Makespan of `batch` (open, or not begun) on a fixed shape; None where nothing can be predicted.

    `what`: the measured profile, or a workload made from it (then its own rest of the batch is taken).
    """
    if isinstance(what, Profile):
        size = batch.groups * batch.group_size - batch.finished
        load = workload(what, size, remainder(what, batch))
    else:
        load = what
    if load is None or load.rest is None:
        return None
    mean = predict(shape, load, table, window=window).prediction.makespan_seconds
    if mean is None:
        return None
    rounds = sum(load.rest.unfinished) or 1.0
    q10, q50, q90 = (mean * _rounds_until(load.rest, 1.0 - q) / rounds for q in (0.1, 0.5, 0.9))
    return Makespan(mean, q10, q50, q90)


def _rounds_until(rest: Remainder, waiting: float) -> float:
    """Rounds after which the chance that the batch still waits is this small."""
    return float(sum(1 for chance in rest.unfinished if chance >= waiting))


def colocated_network(shape: Shape, load: Workload, table: EngineTable) -> Network:
    """Every worker decodes its sequences, and each turn's prefill holds up all of them for its chunk."""
    tokens = _must_prefill(load.appended_tokens + load.missed("colocated"), load, table, shape.workers)
    chunk = chunk_seconds(table, tokens, load.context_tokens - tokens)

    def demand(sequences: float) -> float:
        step = decode_seconds(table, sequences, load.context_tokens)
        return load.generated_tokens * step + chunk * sequences

    return Network(1, 0.0, shape.colocated, demand, load.environment_seconds)


def disaggregated_network(shape: Shape, load: Workload, table: EngineTable, *, local_below: int) -> Network:
    """Prefill workers, decode workers that prefill appends below `local_below` themselves, and the hand-off."""
    local, local_mean, remote_mean = split_appends(load, local_below)
    retained = load.retained_share * load.generated_tokens
    new = max(1.0, remote_mean + retained + load.missed("disaggregated"))
    tokens = _must_prefill(new, load, table, shape.prefill)
    remote_seconds = prefill_seconds(table, tokens, load.context_tokens - tokens)
    chunk = chunk_seconds(table, local_mean, load.context_tokens - local_mean) if local > 0 else 0.0

    def demand(sequences: float) -> float:
        step = decode_seconds(table, sequences, load.context_tokens)
        return load.generated_tokens * step + local * chunk * sequences

    delay = load.environment_seconds + (1.0 - local) * transfer_seconds(table, new)
    return Network(shape.prefill, (1.0 - local) * remote_seconds, shape.decode, demand, delay)


def local_append_tokens(load: Workload, table: EngineTable, *, sequences: float) -> int:
    """Uncached tokens up to which the decode worker prefills itself.

    It holds up its other sequences for the chunk; elsewhere costs the retained tokens again, a step's fixed time and
    the hand-off. The threshold is where both are equal (docs/models.md, "Local append").
    """
    retained = load.retained_share * load.generated_tokens
    held_up = max(sequences - 1.0, 0.0)

    def worth(tokens: float) -> bool:
        here = chunk_seconds(table, tokens, load.context_tokens) * (1.0 + held_up)
        elsewhere = prefill_seconds(table, tokens + retained, load.context_tokens)
        return here <= elsewhere + transfer_seconds(table, tokens + retained)

    threshold = 0
    for power in range(1, 17):
        if not worth(float(2**power)):
            break
        threshold = 2**power
    return threshold


def split_appends(load: Workload, local_below: int) -> tuple[float, float, float]:
    """(share of turns prefilled locally, their mean appended tokens, the mean of the others), from the histogram."""
    total = sum(load.appended_bins)
    if total <= 0 or local_below <= 0:
        return 0.0, 0.0, load.appended_tokens
    middles = [1.5 * 2**k for k in range(len(load.appended_bins))]
    below = [count if 2 ** (k + 1) <= local_below else 0.0 for k, count in enumerate(load.appended_bins)]
    share = sum(below) / total
    weighted = sum(count * middle for count, middle in zip(load.appended_bins, middles, strict=True))
    scale = load.appended_tokens * total / weighted  # keeps the exact mean that the bins only approximate
    local_sum = scale * sum(count * middle for count, middle in zip(below, middles, strict=True))
    if share >= 1.0:
        return 1.0, load.appended_tokens, 0.0
    local_mean = local_sum / sum(below) if share > 0 else 0.0
    return share, local_mean, (load.appended_tokens * total - local_sum) / (total - sum(below))


def _must_prefill(new_tokens: float, load: Workload, table: EngineTable, workers: int) -> float:
    """New tokens plus the history that does not fit the caches of the workers that prefill."""
    new = min(max(new_tokens, 1.0), max(load.context_tokens, 1.0))
    if table.kv_capacity_tokens is None:
        return new
    wanted = load.trajectories * load.context_tokens
    lost = max(0.0, 1.0 - workers * table.kv_capacity_tokens / wanted)
    return new + lost * max(0.0, load.context_tokens - new)


def _in_flight(shape: Shape, load: Workload, table: EngineTable, window: int | None) -> float:
    """Trajectories that run at once: those there are, within the window and the KV room of the decoding side."""
    room = math.inf
    if table.kv_capacity_tokens is not None:
        holders = shape.colocated + shape.decode
        room = holders * table.kv_capacity_tokens / load.context_tokens
    return min(float(load.trajectories), math.inf if window is None else float(window), room)


def _judge(shape: Shape, load: Workload, solution: Solution, in_flight: float, local: int) -> Forecast:
    rate = solution.at(in_flight)
    makespan = None if load.rest is None else makespan_seconds(load.rest, solution, in_flight)
    if not (math.isfinite(rate) and rate > 0) or (makespan is not None and not math.isfinite(makespan)):
        return _infeasible(shape, "the engine model gives no finite time")
    return Forecast(Prediction(shape, rate, makespan, 0.0, feasible=True), local)


def _infeasible(shape: Shape, note: str) -> Forecast:
    return Forecast(Prediction(shape, None, None, 0.0, feasible=False, note=note), 0)
