"""What one decision knows, and what shapes are worth in it.

docs/models.md, "Choice". Numbers of the workload are rounded to a grid before anything is predicted from them: what
differs by less than the grid is the same situation, so that a fleet at rest does not compute the same forecasts again
and again. Rounding moves all shapes alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from pearl_planner.fleet.room import Many, room_of
from pearl_planner.fleet.shapes import may_be, split
from pearl_planner.prediction.predict import Forecast, predict
from pearl_planner.prediction.scale import corrected
from pearl_planner.types import Feeding, Memory, Mode, Policy, Shape

if TYPE_CHECKING:
    from collections.abc import Callable

    from pearl_planner.engine.model import EngineTable
    from pearl_planner.fleet.room import Room
    from pearl_planner.prediction.mean_turn import Workload

GRID = 0.04
"""Relative width of the grid."""
EXACT_TRAJECTORIES = 32
"""Counts up to this are not rounded."""
COARSEST, COARSEST_SIZES = 64, 24
"""Large fleets are searched in steps of one part in so many; coarser where only the number of workers is in question,
since the time hardly depends on the ratio near the best one."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What every comparison of one decision shares."""

    load: Workload
    """What is compared: the steady state of what is in flight, or (`situation.exact`) the rest of the batch."""
    table: EngineTable
    """As measured, of colocated workers and, without `split_table`, of all."""
    policy: Policy
    memory: Memory
    window: int | None
    feeding: Feeding | None = None
    """None = no batch is open."""
    rounds: tuple[tuple[int, float], ...] = ()
    """(trajectories alive, rounds in which about so many are) of a batch from its beginning, with a barrier; sizes are
    judged by it, since the tail of a batch needs few workers but the next one needs them again. Empty = steady."""
    full: int | None = None
    """Trajectories in flight by which sizes are judged where `rounds` is empty; None = those of `load`."""
    returns: bool = False
    """Whether the shape must change again as soon as this batch is complete: then a switch costs twice."""
    horizon_seconds: float = 300.0
    """Steady work over which a switch must pay."""
    floor_seconds: float = 0.0
    """Seconds per turn that the trainer can consume at most; being faster helps nobody. 0 = no such limit."""
    errors: tuple[tuple[str, float], ...] = ()
    """(field of `load`, its relative standard error)."""
    split_table: EngineTable | None = None
    """As measured, of a disaggregated fleet whose workers are of other sizes; None = `table`."""

    @property
    def steady(self) -> bool:
        """Whether batches follow each other without a gap, as far as is known."""
        return self.feeding is not Feeding.BARRIER

    def forecast(self, shape: Shape, load: Workload | None = None) -> Forecast:
        """Prediction of one shape, for `load` where it is given."""
        present = self.memory.local_append_tokens
        return forecast_of(shape, load or self.load, self.table_of(shape), self.window, present)

    def table_of(self, shape: Shape) -> EngineTable:
        """Of the workers of a shape."""
        return self.table if shape.mode is Mode.COLOCATED or self.split_table is None else self.split_table

    def with_alive(self, count: int) -> Workload:
        """The steady state of so many in flight."""
        return replace(self.load, trajectories=count, rest=None)

    def seconds(self, forecast: Forecast) -> float:
        """What is compared: seconds per turn or per batch; no less than the trainer takes where it runs beside."""
        value = forecast.value_seconds
        return max(value, self.floor_seconds) if forecast.prediction.makespan_seconds is None else value


@lru_cache(maxsize=4096)
def forecast_of(shape: Shape, load: Workload, table: EngineTable, window: int | None, present: int | None) -> Forecast:
    """`predict`, remembered; worth it for what lies on the grid."""
    return predict(shape, load, table, window=window, present_threshold=present)


def coarse(load: Workload) -> Workload:
    """The same workload on the grid."""
    bins = sum(load.appended_bins)
    return replace(
        load,
        appended_tokens=grid(load.appended_tokens),
        generated_tokens=grid(load.generated_tokens),
        retained_share=round(load.retained_share / GRID) * GRID,
        environment_seconds=grid(load.environment_seconds),
        context_tokens=grid(load.context_tokens),
        missed_tokens=tuple((route, grid(tokens)) for route, tokens in load.missed_tokens),
        appended_bins=tuple(round(count / bins, 2) for count in load.appended_bins) if bins > 0 else load.appended_bins,
        trajectories=coarse_count(load.trajectories),
        progress=tuple((turn, grid(context), grid(appended)) for turn, context, appended in load.progress),
        turns_per_trajectory=None if load.turns_per_trajectory is None else grid(load.turns_per_trajectory),
        edge_seconds=grid(load.edge_seconds),
        error=0.0,
    )


def grid(value: float, width: float = GRID) -> float:
    """The nearest value of a logarithmic grid; zero and what cannot be placed on it stay."""
    if value == 0 or not math.isfinite(value):
        return value
    return math.copysign(math.exp(round(math.log(abs(value)) / width) * width), value)


def measured_table(policy: Policy, memory: Memory, mode: Mode = Mode.COLOCATED) -> EngineTable:
    """The user's table of a mode as the engines turned out to be, on the grid."""
    scale = None if memory.model_scale is None else grid(memory.model_scale)
    table = corrected(policy.table_of(mode), replace(memory, model_scale=scale))
    return replace(table, interference_seconds=grid(table.interference_seconds))


def coarse_count(count: int) -> int:
    """A count on the grid, exact where it is small."""
    return count if count <= EXACT_TRAJECTORIES else round(grid(count))


def candidates(
    situation: Situation,
    many: Many,
    *,
    near: Shape | None = None,
    load: Workload | None = None,
    parts: int = COARSEST,
) -> list[Forecast]:
    """Forecasts of the shapes of so many workers that may be the best, best first.

    The time has one valley over P, so it is searched downhill from `near`'s proportion (a third without one), in steps
    of one part in `parts`.
    """
    room, policy = room_of(many), situation.policy
    if room.colocated < 1:
        return []
    mixed = Shape(colocated=room.colocated)
    found = [situation.forecast(mixed, load)] if may_be(mixed, policy, room) else []
    if Mode.DISAGGREGATED in policy.modes and room.splits:
        if policy.ratio:
            found.append(situation.forecast(split(room, policy.ratio), load))
        else:
            found += _downhill(situation, room, near, load, parts)
    return sorted(found, key=lambda one: (one.value_seconds, str(one.prediction.shape)))


def _downhill(
    situation: Situation, room: Room, near: Shape | None, load: Workload | None, parts: int
) -> list[Forecast]:
    """Halving steps towards the least time; where the start is impossible, from the best of a few others."""
    seen: dict[int, Forecast] = {}
    high = room.splits

    def at(place: int) -> float:
        if place not in seen:
            seen[place] = situation.forecast(room.split_at(place), load)
        return seen[place].value_seconds

    middle = split(room, (near.prefill, near.decode) if near and near.prefill and near.decode else (1, 2))
    start = high + 1 - middle.decode
    if not math.isfinite(at(start)):
        start = min({1 + (high - 1) * k // 6 for k in range(7)}, key=lambda p: (at(p), p))
    _descend(at, start, high=high, finest=max(1, high // parts))
    return list(seen.values())


def _descend(at: Callable[[int], float], start: int, *, high: int, finest: int) -> int:
    """The place of the least value found from `start`, in 1..`high`."""
    best, step = start, max(finest, high // 16)
    while step >= finest:
        places = [p for p in (best, best - step, best + step) if 1 <= p <= high]
        better = min(places, key=lambda p: (at(p), p != best, p))
        if better == best:
            step //= 2
        best = better
    return best


def best_seconds(situation: Situation, many: Many, *, near: Shape | None = None) -> float:
    """What the best shape of so many workers needs per turn, or for a whole batch as it thins out."""
    if not situation.rounds:
        load = situation.with_alive(situation.full or situation.load.trajectories)
        found = candidates(situation, many, near=near, load=load, parts=COARSEST_SIZES)
        return situation.seconds(found[0]) if found else math.inf
    total = 0.0
    for alive, rounds in situation.rounds:
        load = situation.with_alive(alive)
        found = candidates(situation, many, near=near, load=load, parts=COARSEST_SIZES)
        total += rounds * alive * (found[0].value_seconds if found else math.inf)
    return total


def levels(alive: int) -> tuple[int, ...]:
    """How many are alive at some moments while `alive` trajectories thin out."""
    return tuple(sorted({max(1, coarse_count(alive) // 4**k) for k in range(4)} | {1}, reverse=True))


def contenders(situation: Situation, room: Room, present: Shape, threshold: Callable[[Shape], float]) -> list[Shape]:
    """Shapes of the same room that beat the present one by the threshold at some moment of the rest, best first.

    The rest of a batch is a sum over rounds, so a shape that is not better by a share in any round is not in the sum.
    """
    found: dict[Shape, float] = {}
    for alive in levels(situation.load.trajectories):
        load = situation.with_alive(alive)
        here = situation.forecast(present, load).value_seconds
        for one in candidates(situation, room, near=present, load=load):
            shape = one.prediction.shape
            gain = 1.0 - one.value_seconds / here if math.isfinite(here) else float(math.isfinite(one.value_seconds))
            if shape != present and gain > threshold(shape):
                found[shape] = max(gain, found.get(shape, 0.0))
    return sorted(found, key=lambda shape: (-found[shape], str(shape)))
