"""Adds records to a profile: sums are thawed once, added to for every record, and frozen once.

Old records fade with the number of newer ones. Instead of shrinking every sum at every record, newer records weigh
more, and everything is scaled back at the end: some microseconds per record.

A change of phase would otherwise hide behind many old turns: residuals of the logarithms of appended and generated
tokens against the mean of their stage are averaged over the last turns, and where they are off by more than noise
explains, what was known before is kept as a guess that weighs few turns (docs/models.md, "Profile").
"""

from __future__ import annotations

import math
import zlib
from typing import TYPE_CHECKING, Any

from pearl_planner.numbers import known, known_count
from pearl_planner.workload.bins import STAGES, stage, token_bin, turn_bin, wait_bin
from pearl_planner.workload.moments import Moments, Pairs, Sums, pooled
from pearl_planner.workload.records import TurnRecord, prefilled_beyond

if TYPE_CHECKING:
    from pearl_planner.workload.profile import Profile
    from pearl_planner.workload.records import TrajectoryRecord

TURN_HALF_LIFE = 16384.0
"""Turns after which a turn counts half."""
TRAJECTORY_HALF_LIFE = 4096.0
RECENT_HALF_LIFE = 48.0
"""Turns whose residuals show a change of phase."""
FIRST = 3
"""Place of the first turns' residuals, behind those of appended, generated and waits of later turns."""
FIRST_ALIKE = 16.0
"""First prompts that are one: a group's."""
TURNS_ALIKE = 3.0
"""Turns that tell as much as one: those of one trajectory are alike, and answers to one prompt."""
MIN_RECENT = 16.0
MIN_JUMP = 0.6
"""Least mean residual (of a logarithm) of the last turns that is taken for a change of phase."""
JUMP_SIGMAS = 5.0
KEPT_TURNS = 16.0
"""Weight, in turns and in trajectories, of what was known before a change of phase."""
MOST_KEEP = 1.0 - 1e-4
"""Per finished trajectory: the most that one ever generated is forgotten slowly."""
MAX_TOKENS = 1e8
SHORT_WAIT = 0.01
"""Seconds added to a wait before its logarithm is taken."""
MAX_GROUPS = 48
"""Groups whose members are still paired with each other."""

_TURN_GROWTH = 2.0 ** (1.0 / TURN_HALF_LIFE)
_TRAJECTORY_GROWTH = 2.0 ** (1.0 / TRAJECTORY_HALF_LIFE)
_RECENT_KEEP = 0.5 ** (1.0 / RECENT_HALF_LIFE)
_STAGED = ("appended", "generated", "context", "log_appended", "log_generated")


class Accumulator:
    """The sums of one profile while records are added; `changes()` are the fields of the profile after them."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._turn_weight = self._trajectory_weight = 1.0
        self._stages = [[Sums(getattr(one, name)) for name in _STAGED] for one in profile.stages]
        self._logs = [(one.log_appended, one.log_generated) for one in profile.stages]
        self._retained, self._environment = Sums(profile.retained), Sums(profile.environment)
        self._reset, self._reward = Sums(profile.reset), Sums(profile.reward)
        self._missed = {route: Sums(value) for route, value in profile.missed.items()}
        self._missed_of = {route: Sums(value) for route, value in profile.missed_of.items()}
        self._first = Sums(profile.first_computed)
        self._tokens, self._waits = list(profile.appended_bins), list(profile.environment_bins)
        self._continued, self._ended = list(profile.continued), list(profile.ended)
        self._length = Sums(profile.log_length)
        self._most = profile.most_generated
        self._lengths = [Pairs(one.turns, one.generated, one.covariance) for one in profile.lengths]
        self._siblings, self._pairs = dict(profile.siblings), list(profile.sibling_pairs)
        self._log_wait, self._wait_before = Sums(profile.log_environment), profile.log_environment
        self._recent = list(profile.recent)
        self._turns, self._trajectories, self._aborted = profile.turns, profile.trajectories, profile.aborted
        self._newest = profile.newest_version

    def turn(self, record: TurnRecord) -> None:
        """One turn; impossible numbers are left out."""
        appended, generated = record.appended_tokens, record.generated_tokens
        context, number = record.context_tokens, record.turn
        if not _usable(appended, generated, context, number):
            return
        self._turn_weight = weight = self._turn_weight * _TURN_GROWTH
        where = stage(int(number))
        logs = math.log(appended + 1.0), math.log(generated + 1.0)
        for sums, value in zip(self._stages[where], (appended, generated, context, *logs), strict=True):
            sums.add(value, weight)
        self._tokens[token_bin(appended)] += weight
        self._turns += 1
        version = record.weight_version
        if version is not None and (self._newest is None or version > self._newest):
            self._newest = known_count(version)
        if number > 1:
            self._later(record, where, logs, weight)
        elif self._first_jumps(record, logs):
            self._change_of_phase()
        if record.cached_tokens is not None:
            self._cache(record, weight)

    def _later(self, record: TurnRecord, where: int, logs: tuple[float, float], weight: float) -> None:
        """What only turns after the first have."""
        self._continued[turn_bin(record.turn - 1)] += self._trajectory_weight
        kept, before = known(record.retained_tokens), known(record.previous_generated_tokens, low=1.0)
        if kept is not None and before is not None:
            self._retained.add(min(1.0, kept / before), weight)
        wait = known(record.environment_seconds, high=1e6)
        if wait is not None:
            self._environment.add(wait, weight)
            self._waits[wait_bin(wait)] += weight
            self._log_wait.add(math.log(wait + SHORT_WAIT), weight)
        self._residuals(where, (*logs, None if wait is None else math.log(wait + SHORT_WAIT)))

    def _cache(self, record: TurnRecord, weight: float) -> None:
        """What was computed of a first prompt, and of later ones beyond what had to be."""
        beyond = prefilled_beyond(record)
        if beyond is None:
            return
        if record.turn > 1:
            route, history = str(record.route), max(record.context_tokens - record.appended_tokens, 0)
            self._missed.setdefault(route, Sums(Moments())).add(beyond, weight)
            self._missed_of.setdefault(route, Sums(Moments())).add(history, weight)
        else:
            self._first.add(max(record.appended_tokens + beyond, 0.0), weight)

    def _residuals(self, where: int, logs: tuple[float, float, float | None]) -> None:
        """Recent means of the residuals of later turns; a jump of one of them is a change of phase."""
        means = (*self._logs[where], self._wait_before)
        jumps = [value is not None and self._jumps(i, value, means[i], TURNS_ALIKE) for i, value in enumerate(logs)]
        if any(jumps):
            self._change_of_phase()

    def _first_jumps(self, record: TurnRecord, logs: tuple[float, float]) -> bool:
        """The same of first turns: a group's prompts are one, those of trajectories in no group are independent."""
        alike = (1.0, 1.0) if record.group == record.trajectory else (TURNS_ALIKE * FIRST_ALIKE, TURNS_ALIKE)
        jumps = [self._jumps(FIRST + i, value, self._logs[0][i], alike[i]) for i, value in enumerate(logs)]
        return any(jumps)

    def _jumps(self, place: int, value: float, usual: Moments, alike: float) -> bool:
        if usual.count < KEPT_TURNS:
            return False
        recent = self._recent[place] = _faded(self._recent[place], value - usual.mean)
        noise = JUMP_SIGMAS * math.sqrt(alike * max(usual.variance, 0.01) / recent.count)
        return recent.count >= MIN_RECENT and abs(recent.mean) > max(MIN_JUMP, noise)

    def _change_of_phase(self) -> None:
        """What was known moves with the jump and weighs little from now on."""
        shifts = [recent.mean for recent in self._recent]
        firsts = [recent.mean if recent.count >= MIN_RECENT else 0.0 for recent in self._recent[FIRST:]]
        scale = 1.0 / self._turn_weight
        staged = []
        total = sum(sums[0].weight for sums in self._stages) * scale
        share = min(1.0, KEPT_TURNS / total) if total > 0 else 0.0
        for number, sums in enumerate(self._stages):
            old = [one.frozen(scale) for one in sums]
            moved = shifts if number else firsts
            kept = [
                _moved(old[0], share, math.exp(moved[0])),
                _moved(old[1], share, math.exp(moved[1])),
                _moved(old[2], share, 1.0),
                Moments(old[3].count * share, old[3].mean + moved[0], old[3].variance),
                Moments(old[4].count * share, old[4].mean + moved[1], old[4].variance),
            ]
            staged.append([Sums(one) for one in kept])
            self._logs[number] = (
                Moments(KEPT_TURNS, kept[3].mean, kept[3].variance),
                Moments(KEPT_TURNS, kept[4].mean, kept[4].variance),
            )
        self._stages = staged
        waits, log_waits = _capped(self._environment.frozen(scale)), _capped(self._log_wait.frozen(scale))
        self._environment = Sums(_moved(waits, 1.0, math.exp(shifts[2])))
        self._wait_before = Moments(log_waits.count, log_waits.mean + shifts[2], log_waits.variance)
        self._log_wait = Sums(self._wait_before)
        self._retained = Sums(_capped(self._retained.frozen(scale)))
        self._missed, self._missed_of = {}, {}
        self._first = Sums(_capped(self._first.frozen(scale)))
        self._tokens = _few([value * scale for value in self._tokens])
        self._waits = _few([value * scale for value in self._waits])
        few = KEPT_TURNS * self._trajectory_weight / max(sum(self._ended), KEPT_TURNS * self._trajectory_weight)
        self._continued, self._ended = [v * few for v in self._continued], [v * few for v in self._ended]
        self._lengths = [Pairs(Moments(), Moments(), 0.0) for _ in range(STAGES)]
        self._most = 0.0
        self._turn_weight = 1.0
        self._recent = [Moments()] * (FIRST + 2)

    def trajectory(self, record: TrajectoryRecord) -> None:
        """One ended trajectory; only a finished one says how long they are."""
        turns = known_count(record.turns)
        if not turns:
            return
        if record.cause != "finished":
            self._aborted += 1
            return
        self._trajectory_weight = weight = self._trajectory_weight * _TRAJECTORY_GROWTH
        self._trajectories += 1
        self._ended[turn_bin(turns)] += weight
        for sums, value in ((self._reset, record.reset_seconds), (self._reward, record.reward_seconds)):
            number = known(value, high=1e6)
            if number is not None:
                sums.add(number, weight)
        made = known(record.generated_tokens, high=1e9)
        if made is not None:
            self._lengths[stage(turns)].add(turns, made, weight)
            self._most = max(self._most * MOST_KEEP, made)
        if record.group is not None:
            self._pair(record.group, math.log(turns), weight)
        self._length.add(math.log(turns), weight)

    def _pair(self, group: str, length: float, weight: float) -> None:
        """Products of the logarithms of the lengths of siblings, around the mean: their covariance."""
        key = format(zlib.crc32(group.encode()), "x")
        known_ones, total = self._siblings.pop(key, (0.0, 0.0))
        if known_ones and self._length.weight > 0:
            mean = self._length.shift + self._length.first / self._length.weight
            self._pairs[0] += weight * known_ones
            self._pairs[1] += weight * (length - mean) * (total - known_ones * mean)
        self._siblings[key] = (known_ones + 1.0, total + length)
        if len(self._siblings) > MAX_GROUPS:
            del self._siblings[next(iter(self._siblings))]

    def changes(self) -> dict[str, Any]:
        """Fields of the profile, by name."""
        turn, trajectory = 1.0 / self._turn_weight, 1.0 / self._trajectory_weight
        frozen = [[sums.frozen(turn) for sums in one] for one in self._stages]
        return {
            "staged": [dict(zip(_STAGED, one, strict=True)) for one in frozen],
            "appended": pooled([one[0] for one in frozen]),
            "generated": pooled([one[1] for one in frozen]),
            "context": pooled([one[2] for one in frozen]),
            "retained": self._retained.frozen(turn),
            "environment": self._environment.frozen(turn),
            "missed": {route: sums.frozen(turn) for route, sums in self._missed.items()},
            "missed_of": {route: sums.frozen(turn) for route, sums in self._missed_of.items()},
            "first_computed": self._first.frozen(turn),
            "appended_bins": tuple(value * turn for value in self._tokens),
            "environment_bins": tuple(value * turn for value in self._waits),
            "continued": tuple(value * trajectory for value in self._continued),
            "ended": tuple(value * trajectory for value in self._ended),
            "reset": self._reset.frozen(trajectory),
            "reward": self._reward.frozen(trajectory),
            "log_length": self._length.frozen(trajectory),
            "by_length": [
                (one.left.frozen(trajectory), one.right.frozen(trajectory), one.covariance()) for one in self._lengths
            ],
            "most_generated": self._most,
            "siblings": tuple(self._siblings.items()),
            "sibling_pairs": (self._pairs[0] * trajectory, self._pairs[1] * trajectory),
            "recent": tuple(self._recent),
            "log_environment": self._log_wait.frozen(turn),
            "turns": self._turns,
            "trajectories": self._trajectories,
            "aborted": self._aborted,
            "newest_version": self._newest,
        }


def _usable(appended: object, generated: object, context: object, number: object) -> bool:
    """Whether a turn has its four numbers, finite and possible."""
    return (
        isinstance(appended, (int, float))
        and isinstance(generated, (int, float))
        and isinstance(context, (int, float))
        and isinstance(number, (int, float))
        and 0 <= appended <= MAX_TOKENS
        and 0 <= generated <= MAX_TOKENS
        and 0 <= context <= MAX_TOKENS
        and 1 <= number <= MAX_TOKENS
    )


def _faded(moments: Moments, value: float) -> Moments:
    """One more value after the older ones faded."""
    old = moments.count * _RECENT_KEEP
    return Moments(old + 1.0, moments.mean + (value - moments.mean) / (old + 1.0), 0.0)


def _moved(moments: Moments, share: float, factor: float) -> Moments:
    return Moments(moments.count * share, moments.mean * factor, moments.variance * factor * factor)


def _capped(moments: Moments) -> Moments:
    return Moments(min(moments.count, KEPT_TURNS), moments.mean, moments.variance)


def _few(bins: list[float]) -> list[float]:
    """The same shares with the weight of few turns."""
    total = sum(bins)
    return [value * min(1.0, KEPT_TURNS / total) for value in bins] if total > 0 else bins
