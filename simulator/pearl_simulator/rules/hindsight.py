"""The best fixed choice and the best schedule of a scenario, found by trying: what nobody knows beforehand.

Neither is an upper bound. `static-best` keeps one proportion (or colocated), with or without loans. `clairvoyant` is
the best of everything offered to it and of a coordinate search over schedules that start from the static best, so it
knows how the run ends; only what the search reaches is found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pearl_simulator.rules import make_rule
from pearl_simulator.run import run
from pearl_simulator.types import Feeding

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pearl_simulator.types import Scenario

SHARES = (0.0, 0.15, 0.25, 0.375, 0.5, 0.625)
"""Of the workers that prefill; 0 = colocated."""
TAILS = (0.15, 0.4)
"""Shares of the batch below which a schedule may have another shape."""
PARTS = 3
"""At most so many parts of the time."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A rule with its parameters, as `make_rule` takes them."""

    rule: str
    parameters: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """The best candidate and its score."""

    candidate: Candidate
    score: float
    tried: int


class Scores(Protocol):
    """Judges candidates on the same scenario and seeds, higher is better; may run them in parallel."""

    def __call__(self, candidates: Sequence[Candidate], /) -> Sequence[float]:
        """One score for each, in order."""
        ...


def scores(scenario: Scenario, seeds: Sequence[int]) -> Scores:
    """Mean generated tokens per second over these seeds, one run after the other."""

    def all_of(candidates: Sequence[Candidate]) -> list[float]:
        return [sum(tokens(candidate, seed) for seed in seeds) / len(seeds) for candidate in candidates]

    def tokens(candidate: Candidate, seed: int) -> float:
        rule = make_rule(candidate.rule, dict(candidate.parameters))
        result = run(scenario, rule, seed, rule_name=candidate.rule)
        return result.generated_tokens / result.seconds

    return all_of


def static_best(scenario: Scenario, score: Scores) -> Found:
    """The best proportion for the whole run, with all loans or with none."""
    borrows = (0.0, 1.0) if scenario.fleet.borrowed_max_gpus else (0.0,)
    tried = [schedule((share,), (0.0,), borrow=borrow) for borrow in borrows for share in SHARES]
    return _best(tried, score)


def clairvoyant(
    scenario: Scenario,
    score: Scores,
    *,
    offered: Iterable[Candidate] = (),
    rounds: int = 1,
) -> Found:
    """The best of `offered` (give it every rule compared), the static best, and schedules searched from there."""
    best = static_best(scenario, score)
    starts = parts_of(scenario)
    parts = range(len(starts)) if len(starts) > 1 else range(0)
    for _ in range(rounds):
        before = best
        if scenario.training.feeding is Feeding.BARRIER:  # with refill the fleet stays full: there is no tail
            best = _better(best, _tails(best.candidate, starts), score)
        for part in parts:
            best = _better(best, _shares(best.candidate, starts, part), score)
        if best.candidate == before.candidate:
            break
    return _better(best, list(offered), score)


def schedule(
    shares: Sequence[float], starts: Sequence[float], *, borrow: float, tail: tuple[float, float] = (0.0, 0.0)
) -> Candidate:
    """A candidate of the rule `schedule`; `tail` is (share that prefills, share of the batch below which)."""
    parameters = {f"share_{i}": share for i, share in enumerate(shares)}
    parameters |= {f"start_{i}": start for i, start in enumerate(starts)}
    parameters |= {"tail_share": tail[0], "tail_below": tail[1], "borrow": borrow}
    return Candidate("schedule", tuple(sorted(parameters.items())))


def parts_of(scenario: Scenario) -> tuple[float, ...]:
    """When the parts of the time begin: at the capacity changes nearest to an even division."""
    changes = [change.at_seconds for change in scenario.capacity if 0 < change.at_seconds < scenario.horizon_seconds]
    wanted = [scenario.horizon_seconds * k / PARTS for k in range(1, PARTS)]
    nearest = {min(changes, key=lambda at: abs(at - want)) for want in wanted} if changes else set()
    return (0.0, *sorted(nearest))


def _tails(found: Candidate, starts: tuple[float, ...]) -> list[Candidate]:
    """Other shapes for the end of a batch."""
    known = dict(found.parameters)
    shares = _shares_of(known, starts)
    return [
        schedule(shares, starts, borrow=known["borrow"], tail=(share, below)) for below in TAILS for share in SHARES[:4]
    ]


def _shares(found: Candidate, starts: tuple[float, ...], part: int) -> list[Candidate]:
    """Other shapes for one part of the time."""
    known = dict(found.parameters)
    shares, tail = _shares_of(known, starts), (known["tail_share"], known["tail_below"])
    others = ([*shares[:part], share, *shares[part + 1 :]] for share in SHARES if share != shares[part])
    return [schedule(other, starts, borrow=known["borrow"], tail=tail) for other in others]


def _shares_of(known: Mapping[str, float], starts: tuple[float, ...]) -> list[float]:
    return [known.get(f"share_{i}", known["share_0"]) for i in range(len(starts))]


def _better(best: Found, candidates: Sequence[Candidate], score: Scores) -> Found:
    """The best of the one found so far and these."""
    if not candidates:
        return best
    found = _best(candidates, score)
    higher = max(best, found, key=lambda one: one.score)
    return Found(higher.candidate, higher.score, best.tried + found.tried)


def _best(candidates: Sequence[Candidate], score: Scores) -> Found:
    values = list(score(candidates))
    top = max(range(len(values)), key=lambda i: values[i])
    return Found(candidates[top], values[top], len(values))
