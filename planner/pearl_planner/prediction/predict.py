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

from pearl_planner.engine.model import chunk_seconds, prefill_seconds, transfer_seconds
from pearl_planner.numbers import clamp
from pearl_planner.prediction.makespan import Limits, Member, course, finish_seconds, settle
from pearl_planner.prediction.paths import Remainder, remainder
from pearl_planner.prediction.stations import Stations, Turn
from pearl_planner.types import Mode, Prediction, Shape
from pearl_planner.workload.lengths import lengths
from pearl_planner.workload.profile import Profile

if TYPE_CHECKING:
    from pearl_planner.engine.model import EngineTable
    from pearl_planner.prediction.makespan import Flow
    from pearl_planner.types import Batch

MIN_TURNS = 12.0
"""Effective turns below which nothing is predicted."""
MAX_ERROR = 0.15
SAME_THRESHOLD = 0.01
STAGE_TURNS = (1.0, 2.0, 3.5, 6.5, 12.5, 24.5, 48.5, 80.0)
"""Middle turn of each stage of a profile."""
EXPERIMENT_PATHS = 1000


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
    progress: tuple[tuple[float, float, float], ...] = ()
    """(turn number, context and appended tokens there as a share of the mean turn's), ascending; empty = all alike."""
    turns_per_trajectory: float | None = None
    """Expected turns of a whole trajectory; None = none ever finished."""
    edge_seconds: float = 0.0
    """Reset and reward of a trajectory together, outside of the engines."""
    refill: bool = False
    """Whether trajectories of later batches take the places of those of this batch that end."""

    def missed(self, route: str) -> float:
        """Measured tokens beyond the derived ones on this route; a rate of one mode is never carried to another.

        Only a decode worker that never prefilled is held to miss as little as the best of the others, since what the
        agent itself breaks is missed everywhere.
        """
        known = dict(self.missed_tokens)
        if route == "local" and route not in known:
            return max(0.0, min(known.values(), default=0.0))
        return known.get(route, 0.0)

    def at(self, turn: float) -> tuple[float, float]:
        """Context and appended tokens of a turn of this number."""
        context, appended = _between(self.progress, turn)
        return self.context_tokens * context, self.appended_tokens * appended

    @property
    def delay_seconds(self) -> float:
        """Outside of the engines, per turn; one wait less than turns, but reset and reward."""
        if not self.turns_per_trajectory:
            return self.environment_seconds
        share = 1.0 / max(self.turns_per_trajectory, 1.0)
        return self.environment_seconds * (1.0 - share) + self.edge_seconds * share


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


def workload(profile: Profile, trajectories: int, rest: Remainder | None, *, refill: bool = False) -> Workload | None:
    """The mean turn; None while the profile rests on too few turns."""
    if profile.effective_turns < MIN_TURNS:
        return None
    retained = profile.retained.known_mean()
    known = lengths(profile)
    return Workload(
        appended_tokens=_appended(profile),
        generated_tokens=max(profile.generated.mean, 1.0),
        retained_share=1.0 if retained is None else retained,
        environment_seconds=profile.environment.known_mean() or 0.0,
        context_tokens=max(profile.context.mean, 1.0),
        missed_tokens=tuple(sorted((route, moments.mean) for route, moments in profile.missed.items())),
        appended_bins=profile.appended_bins,
        trajectories=max(trajectories, 1),
        rest=rest,
        error=comparison_error(profile),
        progress=_progress(profile),
        turns_per_trajectory=None if known is None else known.mean,
        edge_seconds=(profile.reset.known_mean() or 0.0) + (profile.reward.known_mean() or 0.0),
        refill=refill,
    )


def _progress(profile: Profile) -> tuple[tuple[float, float, float], ...]:
    """Shares of the mean turn's context and appended tokens by stage."""
    context, appended = max(profile.context.mean, 1.0), _appended(profile)
    first = profile.first_computed.known_mean()
    rows = []
    for turn, stage in zip(STAGE_TURNS, profile.stages, strict=False):
        if stage.context.count >= 1.0:
            new = stage.appended.mean if turn > 1 or first is None else first
            rows.append((turn, max(stage.context.mean, 1.0) / context, max(new, 1.0) / appended))
    return tuple(rows)


def _appended(profile: Profile) -> float:
    """Mean new tokens of a turn, without what of first prompts was cached since a sibling brought it."""
    first, computed = profile.stages[0].appended, profile.first_computed.known_mean()
    if computed is None or profile.appended.count <= 0:
        return max(profile.appended.mean, 1.0)
    saved = max(first.mean - computed, 0.0) * first.count / profile.appended.count
    return max(profile.appended.mean - saved, 1.0)


def _between(rows: tuple[tuple[float, float, float], ...], turn: float) -> tuple[float, float]:
    """Interpolated; the ends go on flat."""
    if not rows:
        return 1.0, 1.0
    before = rows[0]
    for row in rows:
        if turn <= row[0]:
            width = row[0] - before[0]
            share = (turn - before[0]) / width if width > 0 else 1.0
            share = min(max(share, 0.0), 1.0)
            return before[1] + share * (row[1] - before[1]), before[2] + share * (row[2] - before[2])
        before = row
    return before[1], before[2]


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
        return _judge(shape, load, table, in_flight, 0)
    wanted = local_append_tokens(load, table, sequences=in_flight / shape.decode)
    thresholds = sorted({0, wanted, *(() if present_threshold is None else (present_threshold,))})
    rates = {tokens: _steady(shape, load, table, in_flight, tokens).turns_per_second for tokens in thresholds}
    best = max(thresholds, key=lambda tokens: (rates[tokens], -tokens))
    if present_threshold is not None and rates[present_threshold] * (1 + SAME_THRESHOLD) >= rates[best]:
        best = present_threshold
    return _judge(shape, load, table, in_flight, best)


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


def local_append_tokens(load: Workload, table: EngineTable, *, sequences: float) -> int:
    """Uncached tokens up to which the decode worker prefills itself.

    It holds up its other sequences for the chunk; elsewhere costs the retained tokens again, a step's fixed time and
    the hand-off. The threshold is where both are equal (docs/models.md, "Local append").
    """
    retained = load.retained_share * load.generated_tokens
    held_up = max(sequences - 1.0, 0.0)

    def worth(tokens: float) -> bool:
        chunk = chunk_seconds(table, tokens, load.context_tokens) + table.interference_seconds
        elsewhere = prefill_seconds(table, tokens + retained, load.context_tokens)
        return chunk * (1.0 + held_up) <= elsewhere + transfer_seconds(table, tokens + retained)

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


def _steady(shape: Shape, load: Workload, table: EngineTable, in_flight: float, local: int) -> Flow:
    """The flow with always as many in flight."""
    member = Member(in_flight, load.delay_seconds, 1.0, load.generated_tokens)
    return settle(stations_of(shape, load, table, in_flight), turn_of(shape, load, local), [member], in_flight)


def _judge(shape: Shape, load: Workload, table: EngineTable, in_flight: float, local: int) -> Forecast:
    rate = _steady(shape, load, table, in_flight, local).turns_per_second
    if not (math.isfinite(rate) and rate > 0):
        return _infeasible(shape, "the engine model gives no finite time")
    makespan = None if load.rest is None else _makespan(shape, load, table, in_flight, local)
    if makespan is not None and not math.isfinite(makespan.mean):
        return _infeasible(shape, "the engine model gives no finite time")
    mean = None if makespan is None else makespan.mean
    return Forecast(Prediction(shape, rate, mean, 0.0, feasible=True), local, makespan)


def _makespan(shape: Shape, load: Workload, table: EngineTable, in_flight: float, local: int) -> Makespan:
    """Of all paths."""
    rest = load.rest
    if rest is None or not rest.paths:
        return Makespan(0.0, 0.0, 0.0, 0.0)
    limits = Limits(
        in_flight,
        refill=in_flight if load.refill else 0.0,
        first_seconds=prefill_seconds(table, load.at(1.0)[1], 0.0),
        tokens=load.generated_tokens / rest.generated_tokens,
        waits=load.environment_seconds / rest.environment_seconds if rest.environment_seconds > 0 else 1.0,
    )
    stations = stations_of(shape, load, table, in_flight)
    steps = course(rest, stations, lambda number: turn_of(shape, load, local, number), limits)
    ends = finish_seconds(rest, steps, limits)
    return Makespan(sum(ends) / len(ends), *(_quantile(ends, share) for share in (0.1, 0.5, 0.9)))


def _quantile(ordered: list[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def _infeasible(shape: Shape, note: str) -> Forecast:
    return Forecast(Prediction(shape, None, None, 0.0, feasible=False, note=note), 0)
