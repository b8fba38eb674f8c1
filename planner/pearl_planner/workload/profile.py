"""What is known of the workload: the sketch that the gateway keeps and the planner reads (≤ 8 KiB as JSON).

`update(profile, records) -> profile` is pure. Everything in it is a fact of the workload and not of the mode that
served it: tokens to prefill are derived per mode by the predictor. Old records fade with the number of newer ones
(half-lives in `accumulate`), and a change of phase is noticed and makes old ones weigh little at once.
Evaluation and other traffic (`kind` ≠ train) never enters.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pearl_planner.numbers import clamp, known, known_count
from pearl_planner.workload.accumulate import Accumulator
from pearl_planner.workload.bins import STAGES, TOKEN_BINS, TURN_BINS, WAIT_BINS, token_bin, turn_bin
from pearl_planner.workload.moments import UNKNOWN, Moments, pooled, short
from pearl_planner.workload.records import TrajectoryRecord, TurnRecord, prefilled_beyond, retained_share

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

VERSION = 2
PRIOR_LIKENESS = 0.3
PRIOR_PAIRS = 60.0
"""Pairs of siblings' worth of `PRIOR_LIKENESS` that the measured likeness is mixed with."""
ALIKE = 1.5
"""Mean histories within this factor are compared as they are: what is missed is not quite in proportion to them."""

__all__ = [
    "TOKEN_BINS",
    "TURN_BINS",
    "Length",
    "Moments",
    "Profile",
    "Stage",
    "TrajectoryRecord",
    "TurnRecord",
    "prefilled_beyond",
    "retained_share",
    "token_bin",
    "turn_bin",
    "update",
]


@dataclass(frozen=True, slots=True)
class Stage:
    """Turns whose numbers are in one stage (`bins.stage`)."""

    appended: Moments = UNKNOWN
    generated: Moments = UNKNOWN
    context: Moments = UNKNOWN
    log_appended: Moments = UNKNOWN
    """Of log(a + 1); what a change of phase is noticed by."""
    log_generated: Moments = UNKNOWN


@dataclass(frozen=True, slots=True)
class Length:
    """Finished trajectories whose length is in one bin (`bins.stage`).

    Where contexts are limited, longer ones make fewer tokens per turn.
    """

    turns: Moments = UNKNOWN
    generated: Moments = UNKNOWN
    """Tokens of all turns together."""
    covariance: float = 0.0
    """Of the two."""

    def sane(self) -> Length:
        """Itself, or nothing known where a number is impossible."""
        covariance = known(self.covariance, low=-1e18, high=1e18)
        parts = self.turns.sane(), self.generated.sane()
        return Length(*parts, covariance) if covariance is not None and all(part.count for part in parts) else Length()


@dataclass(frozen=True, slots=True)
class Profile:
    """The workload in numbers. Counts are faded, so they are also how sure it is."""

    appended: Moments = UNKNOWN
    generated: Moments = UNKNOWN
    retained: Moments = UNKNOWN
    """ρ: share of the generated tokens that the next prompt holds."""
    environment: Moments = UNKNOWN
    """Seconds between an answer and the next request of the same trajectory."""
    context: Moments = UNKNOWN
    """Tokens of the prompt."""
    missed: dict[str, Moments] = field(default_factory=dict)
    """Route → prefilled tokens of later turns beyond what the route must prefill."""
    missed_of: dict[str, Moments] = field(default_factory=dict)
    """Route → history of those turns in tokens: what is missed is a share of it."""
    first_computed: Moments = UNKNOWN
    """Tokens of first prompts that were prefilled: those of a group's later members may be cached."""
    appended_bins: tuple[float, ...] = (0.0,) * TOKEN_BINS
    environment_bins: tuple[float, ...] = (0.0,) * WAIT_BINS
    """The tail of the environment time: few waits hold most of it."""
    continued: tuple[float, ...] = (0.0,) * TURN_BINS
    """Trajectories that went on after a turn of this number (bins of `turn_bin`)."""
    ended: tuple[float, ...] = (0.0,) * TURN_BINS
    """Trajectories that finished with a turn of this number."""
    stages: tuple[Stage, ...] = (Stage(),) * STAGES
    lengths: tuple[Length, ...] = (Length(),) * STAGES
    most_generated: float = 0.0
    """By one trajectory, forgotten slowly: where contexts are limited no other will make more."""
    reset: Moments = UNKNOWN
    """Seconds from the start of a trajectory to its first request."""
    reward: Moments = UNKNOWN
    """Seconds from the last answer to the end."""
    log_length: Moments = UNKNOWN
    """Of log S."""
    siblings: tuple[tuple[str, tuple[float, float]], ...] = ()
    """(group, (members finished, sum of log S)) of the groups seen last."""
    sibling_pairs: tuple[float, float] = (0.0, 0.0)
    """(pairs of siblings, sum of products of their log S around the mean)."""
    log_environment: Moments = UNKNOWN
    recent: tuple[Moments, ...] = (UNKNOWN,) * 5
    """Residuals of the last turns: log a, log r, log Z of later ones, log a, log r of first ones."""
    turns: int = 0
    """All training turns ever seen."""
    trajectories: int = 0
    aborted: int = 0
    newest_version: int | None = None

    @property
    def effective_turns(self) -> float:
        """Turns that the present means rest on, after fading."""
        return self.generated.count

    @property
    def effective_trajectories(self) -> float:
        """Finished trajectories that the turn counts rest on, after fading."""
        return sum(self.ended)

    @property
    def likeness(self) -> float:
        """Correlation of log S within a group (0..0.95), shrunken towards a prior while few pairs are known."""
        pairs, products = self.sibling_pairs
        variance = self.log_length.variance
        if pairs <= 0 or variance <= 0:
            return PRIOR_LIKENESS
        mixed = (products / variance + PRIOR_PAIRS * PRIOR_LIKENESS) / (pairs + PRIOR_PAIRS)
        return clamp(mixed, 0.0, 0.95)

    def sane(self) -> Profile:
        """The same with impossible numbers unknown."""
        usable: dict[str, Any] = {name: getattr(self, name).sane() for name in _MOMENTS}
        usable |= {name: tuple(known(value) or 0.0 for value in getattr(self, name)) for name in _BINS}
        usable["stages"] = tuple(Stage(*(m.sane() for m in _parts(one, _STAGE))) for one in self.stages)
        usable["lengths"] = tuple(one.sane() for one in self.lengths)
        usable["recent"] = tuple(moments.sane() for moments in self.recent)
        usable["most_generated"] = known(self.most_generated) or 0.0
        pairs, products = self.sibling_pairs
        usable["sibling_pairs"] = (known(pairs) or 0.0, known(products, low=-1e15) or 0.0)
        for name in ("missed", "missed_of"):
            usable[name] = {route: value.sane() for route, value in getattr(self, name).items()}
        return replace(self, **usable)

    def missed_tokens(self) -> dict[str, float]:
        """Route → tokens of a mean history that are prefilled again.

        Histories grow. What a route missed while it served quite another part of the trajectories (`ALIKE`) is carried,
        as a share of the history, to the mean history of all.
        """
        usual = pooled(list(self.missed_of.values())).mean
        found = {}
        for route, tokens in self.missed.items():
            seen = self.missed_of.get(route, UNKNOWN).mean
            alike = seen <= 0 or 1 / ALIKE < usual / seen < ALIKE
            found[route] = tokens.mean * (1.0 if alike else usual / seen)
        return found

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able form of at most 8 KiB; `from_dict` gives the same profile back up to 6 digits."""
        return {
            "version": VERSION,
            "turns": self.turns,
            "trajectories": self.trajectories,
            "aborted": self.aborted,
            "newestVersion": self.newest_version,
            "effectiveTurns": short(self.effective_turns),
            "effectiveTrajectories": short(self.effective_trajectories),
            **{name: getattr(self, name).to_list() for name in _MOMENTS},
            "missed": {route: value.to_list() for route, value in sorted(self.missed.items())},
            "missedOf": {route: value.to_list() for route, value in sorted(self.missed_of.items())},
            **{key: [short(value) for value in getattr(self, name)] for name, key in _BINS.items()},
            "stages": [[m.to_list() for m in _parts(one, _STAGE)] for one in self.stages],
            "lengths": [[one.turns.to_list(), one.generated.to_list(), short(one.covariance)] for one in self.lengths],
            "recent": [moments.to_list() for moments in self.recent],
            "siblings": [[key, short(count), short(total)] for key, (count, total) in self.siblings],
            "mostGenerated": short(self.most_generated),
            "siblingPairs": [short(value) for value in self.sibling_pairs],
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any] | None) -> Profile | None:
        """The profile of `to_dict`; None of anything else (another version, not a sketch): unknown, not an error."""
        if not data or data.get("version") not in (1, VERSION):
            return None
        fields: dict[str, Any] = {name: Moments.from_list(data.get(name)) for name in _MOMENTS}
        fields |= {name: _bins_in(data.get(key), len(getattr(Profile(), name))) for name, key in _BINS.items()}
        profile = Profile(
            **fields,
            missed=_by_route(data.get("missed")),
            missed_of=_by_route(data.get("missedOf")),
            stages=tuple(Stage(*_moments_in(row, len(_STAGE))) for row in _rows(data.get("stages"))),
            lengths=tuple(_length_in(row) for row in _rows(data.get("lengths"))),
            recent=tuple(_moments_in(data.get("recent"), 5)),
            siblings=_siblings_in(data.get("siblings")),
            most_generated=known(data.get("mostGenerated")) or 0.0,
            sibling_pairs=_pair_in(data.get("siblingPairs")),
            turns=known_count(data.get("turns")) or 0,
            trajectories=known_count(data.get("trajectories")) or 0,
            aborted=known_count(data.get("aborted")) or 0,
            newest_version=known_count(data.get("newestVersion")),
        )
        return profile if data["version"] == VERSION else _from_first_version(profile)


_MOMENTS = (
    "appended",
    "generated",
    "retained",
    "environment",
    "context",
    "reset",
    "reward",
    "log_length",
    "log_environment",
    "first_computed",
)
_BINS = {
    "appended_bins": "appendedBins",
    "environment_bins": "environmentBins",
    "continued": "continued",
    "ended": "ended",
}
_STAGE = ("appended", "generated", "context", "log_appended", "log_generated")


def update(profile: Profile | None, records: Iterable[TurnRecord | TrajectoryRecord]) -> Profile:
    """The profile after these records, oldest first. Records with impossible numbers are left out.

    A long list costs a few microseconds per record; a single record some ten (thawing and freezing the sums).
    """
    before = profile or Profile()
    sums = Accumulator(before)
    for record in records:
        if record.kind != "train":
            continue
        if isinstance(record, TurnRecord):
            sums.turn(record)
        else:
            sums.trajectory(record)
    changes = sums.changes()
    staged, by_length = changes.pop("staged"), changes.pop("by_length")
    stages, lengths = tuple(Stage(**one) for one in staged), tuple(Length(*one) for one in by_length)
    return replace(before, stages=stages, lengths=lengths, **changes)


def _from_first_version(profile: Profile) -> Profile:
    """Sketches of version 1 had no stages: all turns count as being in the middle one."""
    middle = Stage(profile.appended, profile.generated, profile.context)
    return replace(profile, stages=tuple(middle if i == STAGES // 2 else Stage() for i in range(STAGES)))


def _parts(one: object, names: tuple[str, ...]) -> list[Moments]:
    return [getattr(one, name) for name in names]


def _length_in(data: object) -> Length:
    turns, generated, covariance = ((list(data) if isinstance(data, (list, tuple)) else []) + [None] * 3)[:3]
    known_covariance = known(covariance, low=-1e18, high=1e18)
    return Length(Moments.from_list(turns), Moments.from_list(generated), known_covariance or 0.0)


def _rows(data: object) -> list[object]:
    rows = list(data) if isinstance(data, (list, tuple)) else []
    return (rows + [None] * STAGES)[:STAGES]


def _moments_in(data: object, size: int) -> list[Moments]:
    parts = list(data) if isinstance(data, (list, tuple)) else []
    return [Moments.from_list(part) for part in (parts + [None] * size)[:size]]


def _siblings_in(data: object) -> tuple[tuple[str, tuple[float, float]], ...]:
    rows = list(data) if isinstance(data, (list, tuple)) else []
    found = []
    for row in rows:
        key, count, total = (list(row) + [None] * 3)[:3] if isinstance(row, (list, tuple)) else (None, None, None)
        numbers = known(count), known(total)
        if isinstance(key, str) and numbers[0] is not None and numbers[1] is not None:
            found.append((key, (numbers[0], numbers[1])))
    return tuple(found)


def _pair_in(data: object) -> tuple[float, float]:
    pairs, products = ((list(data) if isinstance(data, (list, tuple)) else []) + [None, None])[:2]
    return known(pairs) or 0.0, known(products, low=-1e15) or 0.0


def _by_route(data: object) -> dict[str, Moments]:
    return {str(key): Moments.from_list(value) for key, value in data.items()} if isinstance(data, dict) else {}


def _bins_in(data: object, size: int) -> tuple[float, ...]:
    values = [known(value) or 0.0 for value in data] if isinstance(data, (list, tuple)) else []
    return tuple((values + [0.0] * size)[:size])
