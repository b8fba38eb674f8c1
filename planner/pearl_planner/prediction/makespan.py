"""When the rest of a batch is complete on a shape: a mean field of the crowd, then every path's last trajectory.

docs/models.md, "Rest of the batch". In steps of time the crowd (`Remainder.crowd`) says how many trajectories are in
flight and in which turns; the stations answer how slow they are with so many; a trajectory with waits E, turns m and
tokens R then advances by dt / (E + m·w + R·k) of all that it has left. The crowd fixes w and k over time once per
shape; the paths' candidates are then followed through the same steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pearl_planner.prediction.paths import Remainder, remainder
from pearl_planner.prediction.stations import Presence, Slowness, Stations, Turn
from pearl_planner.workload.lengths import MAX_TURNS, end_chances

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pearl_planner.prediction.work import Work

MAX_ROUNDS = MAX_TURNS
__all__ = ["MAX_ROUNDS", "Remainder", "course", "end_chances", "finish_seconds", "remainder", "settle"]

TOLERANCE = 2e-3
MAX_PASSES = 24
ENDING_SHARE = 0.22
"""Part of those alive that end within one step of time."""
LONGEST_SHARE = 0.12
"""No step is longer than this share of what the last one has left, unless nobody ends in it."""
MAX_STEPS = 64


class Member(NamedTuple):
    """Trajectories of the crowd that are alike."""

    many: float
    waits: float
    turns: float
    tokens: float


class Step(NamedTuple):
    """A stretch of time with the same speeds."""

    seconds: float
    per_turn: float
    per_token: float
    per_wait: float
    """More than 1 while more are alive than may run at once."""


class Flow(NamedTuple):
    """A settled moment."""

    slowness: Slowness
    turns_per_second: float


@dataclass(frozen=True, slots=True)
class Limits:
    """What the crowd runs under, and how the workload differs from the one that the paths were drawn from."""

    in_flight: float
    """Most trajectories at once."""
    refill: float = 0.0
    """So many are always in flight, as others take the places of those that end; 0 = nobody does."""
    first_seconds: float = 0.0
    """Of a first prompt, beyond what any turn costs."""
    tokens: float = 1.0
    """Factor of the tokens of the paths."""
    waits: float = 1.0


def settle(
    stations: Stations, turn: Turn, members: Sequence[Member], running: float, guess: Slowness | None = None
) -> Flow:
    """Speeds at which what `running` trajectories like the members do and what the stations say agree."""
    share = running / max(sum(member.many for member in members), 1e-9)
    running = max(running, 1.0)
    slowness = stations.moment(turn, running, running)
    slow = guess or slowness(Presence(running, 0.0, 0.0, 0.0))
    per_second = 0.0
    for _ in range(MAX_PASSES):
        per_turn, per_token = slow.per_turn, slow.per_token
        per_second = tokens = 0.0
        for count, waits, turns, made in members:
            seconds = waits + turns * per_turn + made * per_token
            if seconds > 0:
                per_second += count * turns / seconds
                tokens += count * made / seconds
        per_second *= share
        decoding, local = tokens * share * per_token, per_second * slow.per_local
        new = slowness(Presence(running, per_second, per_second * slow.per_prefill, decoding, local))
        change = abs(new.per_turn - per_turn) + abs(new.per_token - per_token) * turn.generated_tokens
        size = per_turn + per_token * turn.generated_tokens
        slow = new
        if change <= TOLERANCE * size:
            break
    return Flow(slow, per_second)


def course(rest: Remainder, stations: Stations, turn_at: Callable[[float], Turn], limits: Limits) -> list[Step]:
    """The steps until the crowd is done, and one more for whoever is last."""
    members = [
        Member(
            count,
            limits.waits * work.waits + work.first * limits.first_seconds,
            work.turns,
            limits.tokens * work.tokens,
        )
        for count, work in rest.crowd
    ]
    made = [work.done for _, work in rest.crowd]
    left = [1.0] * len(members)
    steps: list[Step] = []
    guess: Slowness | None = None
    alive = list(range(len(members)))
    while alive and len(steps) < MAX_STEPS:
        turn = turn_at(_progress(members, made, left, alive))
        here = [members[i] for i in alive]
        flow, ratio = _flow(here, stations, turn, limits, guess)
        seconds, order = _ahead(members, left, alive, flow.slowness)
        # Half-way through the step some have ended and the others are further.
        half = [left[i] * max(1.0 - seconds / (2.0 * order[i]), 0.0) if order[i] > 0 else 0.0 for i in alive]
        turn = turn_at(_progress(members, made, dict(zip(alive, half, strict=True)), alive))
        mean = [members[i]._replace(many=members[i].many * min(1.0, order[i] / seconds)) for i in alive]
        flow, ratio = _flow(mean, stations, turn, limits, flow.slowness)
        guess = flow.slowness
        seconds, order = _ahead(members, left, alive, guess)
        steps.append(Step(seconds * ratio, guess.per_turn * ratio, guess.per_token * ratio, ratio))
        for i in alive:
            left[i] -= seconds * left[i] / order[i] if order[i] > 0 else left[i]
        alive = [i for i in alive if left[i] > 1e-9]  # noqa: PLR2004 - rounding
    turn = turn_at(max((done + member.turns for member, done in zip(members, made, strict=True)), default=1.0))
    alone = stations.slowness(turn, Presence(1.0, 0.0, 0.0, 0.0), 1.0)
    last = guess if limits.refill and guess is not None else alone
    steps.append(Step(math.inf, last.per_turn, last.per_token, 1.0))
    return steps


def _flow(
    members: Sequence[Member], stations: Stations, turn: Turn, limits: Limits, guess: Slowness | None
) -> tuple[Flow, float]:
    """Speeds with these alive, and by how much their time is stretched because not all of them may run."""
    alive = max(sum(member.many for member in members), 1e-9)
    wanted = max(alive, limits.refill)
    running = max(min(wanted, limits.in_flight), min(1.0, alive))
    return settle(stations, turn, members, running, guess), max(alive / running, 1.0)


def _progress(
    members: Sequence[Member], made: Sequence[float], left: Sequence[float] | dict[int, float], alive: Sequence[int]
) -> float:
    """Mean turn number of those alive."""
    count = sum(members[i].many for i in alive)
    return sum(members[i].many * (made[i] + 1.0 + members[i].turns * (1.0 - left[i])) for i in alive) / count


def _ahead(
    members: Sequence[Member], left: Sequence[float], alive: Sequence[int], slow: Slowness
) -> tuple[float, dict[int, float]]:
    """Seconds until the next share of those alive has ended, and until each has."""
    per_turn, per_token = slow.per_turn, slow.per_token
    order = {
        i: left[i] * (members[i].waits + members[i].turns * per_turn + members[i].tokens * per_token) for i in alive
    }
    ends = sorted(order.values())
    seconds = min(ends[int(ENDING_SHARE * (len(ends) - 1))], LONGEST_SHARE * ends[-1])
    return max(seconds, ends[0], 1e-9), order


def finish_seconds(rest: Remainder, steps: Sequence[Step], limits: Limits) -> list[float]:
    """When each path has its groups complete, in order."""
    found = []
    for path in rest.paths:
        ends = [max(_end(work, steps, limits) for work in group) for group in path]
        found.append(ends[0] if len(ends) == 1 else sorted(ends)[rest.need - 1])
    return sorted(found)


def _end(work: Work, steps: Sequence[Step], limits: Limits) -> float:
    """When one trajectory is done."""
    away, turns, made = limits.waits * work[0] + work[4] * limits.first_seconds, work[1], limits.tokens * work[2]
    now, left = 0.0, 1.0
    for seconds, per_turn, per_token, per_wait in steps:
        whole = away * per_wait + turns * per_turn + made * per_token
        if left * whole <= seconds:
            return now + left * whole
        left -= seconds / whole
        now += seconds
    return now
