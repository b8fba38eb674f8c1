"""No rule can do better than this, in trajectories per hour: what shares and gaps are measured against.

Four limits, the lowest holds. `trainer`: updates cannot overlap. `critical path`: a batch takes at least its longest
needed trajectory alone, and may start only so many versions early. `kv`: contexts that decode must fit. `work`: for
every price x ≥ 0 of a second in flight against a worker second,

    worker seconds + x · (trajectories in flight · seconds)  ≥  Σ over trajectories of their least cost at that price.

A decode step of n sequences lasts A + Σβ; it costs A + Σβ worker seconds and n·(A + Σβ) seconds in flight, and for any
n the sum is at least Σ over its tokens of β + x·A + 2·√(x·A·β) (arithmetic-geometric mean, then Cauchy's inequality),
so the bound holds for every shape, schedule and mixture of contexts. x = 0 is work over capacity alone, x → ∞ Little's
law alone. Prices are tried on a grid; each gives a valid bound. See docs/models.md, "Bound".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from pearl_simulator.bounds.effort import Effort, Engine, engine_of, group_efforts, total
from pearl_simulator.errors import InputError
from pearl_simulator.types import CapacityChange, Feeding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pearl_simulator.types import Scenario, Script

PRICES: tuple[float, ...] = (0.0, *(10.0 ** (k / 10) for k in range(-35, 21)))
"""Worker seconds per second of a trajectory in flight."""
MOST_TRAJECTORIES = 4096
"""Beyond them the means over the batches so far are taken for all."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What limits a scenario under one seed."""

    trajectories_per_hour: float
    """In the long run: a run that ends in the middle of a batch may have finished up to `slack` more."""
    binds: str
    """The term that is lowest."""
    terms: dict[str, float]
    """Trajectories per hour that each would allow for the batches that are met, the last one whole; infinite where it
    does not limit."""
    slack_trajectories: int


@dataclass(frozen=True, slots=True)
class _Group:
    """One group of the workload."""

    effort: Effort
    alone_seconds: float
    """Until its last member ends, everybody alone."""
    after_first_token_seconds: float
    """Part of it after the first token of its last member."""


def bound(scenario: Scenario, seed: int) -> Bound:
    """Upper bound of the throughput of every rule on the groups that it would meet.

    Raises:
        InputError: workers of several sizes, of which the bound knows nothing.
    """
    if scenario.fleet.budget().staged:
        raise InputError("the bound knows workers of one size: leave prefill_gpus and decode_gpus of the fleet out")
    engine = engine_of(scenario.calibration, in_flight(scenario), may_split="Disaggregated" in scenario.modes)
    size = scenario.workload.groups * scenario.workload.group_size
    most = max(MOST_TRAJECTORIES // size, 1)
    groups: list[_Group] = []
    terms: dict[str, float] = {}
    before, counted, rate = 0.0, 0, math.inf
    for step in range(min(scenario.max_batches or most, most)):
        groups += _groups(scenario.workload.batch(step, seed), engine)
        terms = _terms(scenario, engine, groups)
        rate = min(terms.values())
        counted += size
        seconds = counted / rate
        if seconds >= scenario.horizon_seconds:  # the horizon lies within this batch, no later one is met
            part = (scenario.horizon_seconds - before) / max(seconds - before, 1e-9)
            rate = (counted - size + size * part) / scenario.horizon_seconds
            break
        before = seconds
    binds = min(terms, key=lambda name: terms[name])
    in_hours = {name: 3600.0 * value for name, value in terms.items()}
    return Bound(3600.0 * rate, binds, in_hours, step_size(scenario) * (versions_ahead(scenario) + 1))


def step_size(scenario: Scenario) -> int:
    """Trajectories that may start per weight version: with refill those that a step consumes."""
    training, workload = scenario.training, scenario.workload
    refill = training.feeding is Feeding.REFILL
    return (training.need_groups or workload.groups if refill else workload.groups) * workload.group_size


def in_flight(scenario: Scenario) -> int:
    """Trajectories at once: the batches that may be open, and a fixed window (a larger group goes alone)."""
    most, window = (versions_ahead(scenario) + 1) * step_size(scenario), scenario.router.window
    return most if window is None else min(most, max(window, scenario.workload.group_size))


def versions_ahead(scenario: Scenario) -> int:
    """Batches that may start before the weights of the one before are there."""
    training = scenario.training
    return 0 if training.feeding is Feeding.BARRIER else training.max_staleness


def _groups(scripts: Sequence[Script], engine: Engine) -> list[_Group]:
    made = []
    for members in group_efforts(scripts, engine).values():
        alone = [one.alone_seconds(engine) for one in members]
        later = [seconds - one.before_first_token_seconds for seconds, one in zip(alone, members, strict=True)]
        made.append(_Group(total(members), max(alone), max(later)))
    return made


def _terms(scenario: Scenario, engine: Engine, groups: Sequence[_Group]) -> dict[str, float]:
    """Trajectories per second that each limit allows."""
    size, update = step_size(scenario), scenario.training.update_seconds
    barrier = scenario.training.feeding is Feeding.BARRIER
    steps = _cheapest(scenario, groups) if barrier else [groups]
    effort = total([group.effort for step in steps for group in step])
    path = _barrier_rate(scenario, engine, groups) if barrier else _refill_rate(scenario, groups)
    return {
        "trainer": size / update if update > 0 else math.inf,
        "critical path": path,
        "kv": _kv_rate(scenario, engine, effort),
        "work": min(_work_rate(scenario, engine, effort, price) for price in PRICES),
    }


def _cheapest(scenario: Scenario, groups: Sequence[_Group]) -> list[list[_Group]]:
    """Per batch the groups that cost least, as many as are needed: others may be aborted."""
    per = scenario.workload.groups
    need = min(scenario.training.need_groups or per, per)
    steps = [groups[i : i + per] for i in range(0, len(groups), per)]
    return [sorted(step, key=lambda one: one.effort.tokens)[:need] for step in steps]


def _barrier_rate(scenario: Scenario, engine: Engine, groups: Sequence[_Group]) -> float:
    """Each batch is alone in the fleet: its longest needed group, or its work on the largest fleet; then the update."""
    per = scenario.workload.groups
    need = min(scenario.training.need_groups or per, per)
    seconds = 0.0
    for number, counted in enumerate(_cheapest(scenario, groups)):
        longest = sorted(group.alone_seconds for group in groups[number * per : (number + 1) * per])[need - 1]
        work = _alone_seconds(scenario, engine, total([group.effort for group in counted]))
        seconds += max(longest, work) + scenario.training.update_seconds
    return step_size(scenario) * (len(groups) / per) / seconds


def _refill_rate(scenario: Scenario, groups: Sequence[_Group]) -> float:
    """Versions follow each other no faster than their longest groups allow.

    A group whose first token has version v is consumed at version v + η at the latest, so with updates of u seconds
    t(v + η + 1) ≥ t(v) + u + M(v), M(v) the longest group of version v after its first token; hence the mean time per
    version is at least (u + mean M)/(η + 1). Which groups belong to version v is up to the rule: in their order, and
    between (v + 1)·G and (v + η + 1)·G of them up to v. The most favourable choice is taken.
    """
    ahead = versions_ahead(scenario)
    per = step_size(scenario) // scenario.workload.group_size
    versions = len(groups) // per
    lengths = [group.after_first_token_seconds for group in groups]
    best = {0: 0.0}
    for version in range(versions):
        after: dict[int, float] = {}
        low, high = (version + 1) * per, min((version + ahead + 1) * per, len(groups))
        for begin, cost in best.items():
            longest = max(lengths[begin:low], default=0.0)
            for end in range(max(begin, low), high + 1):
                longest = max(longest, lengths[end - 1]) if end > begin else longest
                after[end] = min(after.get(end, math.inf), cost + longest)
        best = after
    seconds = (min(best.values()) + versions * scenario.training.update_seconds) / (ahead + 1)
    return step_size(scenario) * versions / seconds if seconds > 0 else math.inf


def _alone_seconds(scenario: Scenario, engine: Engine, effort: Effort) -> float:
    """Of one batch on the largest fleet there ever is."""
    workers = most_workers(scenario)
    return max(effort.cost(engine, price) / (workers + price * in_flight(scenario)) for price in PRICES)


def _work_rate(scenario: Scenario, engine: Engine, effort: Effort, price: float) -> float:
    """N ≤ (worker seconds + x · seconds in flight) / cost, per second; updates take what they hold."""
    own, lent = mean_workers(scenario), lent_workers(scenario)
    update = scenario.training.update_seconds / step_size(scenario)  # per trajectory
    idle = in_flight(scenario) if scenario.training.feeding is Feeding.BARRIER else 0
    each = effort.cost(engine, price) / effort.trajectories
    return (own + lent + price * in_flight(scenario)) / (each + update * (lent + price * idle))


def _kv_rate(scenario: Scenario, engine: Engine, effort: Effort) -> float:
    if engine.kv_tokens is None or effort.kv_token_seconds <= 0:
        return math.inf
    room = (mean_workers(scenario) + lent_workers(scenario)) * engine.kv_tokens
    return room * effort.trajectories / effort.kv_token_seconds


def lent_workers(scenario: Scenario) -> int:
    """That the trainer may lend."""
    return scenario.fleet.borrowed_max_gpus // scenario.fleet.gpus_per_worker


def most_workers(scenario: Scenario) -> int:
    """At any time."""
    return max(_workers(scenario, change.elastic_gpus) for change in _capacity(scenario)) + lent_workers(scenario)


def mean_workers(scenario: Scenario) -> float:
    """Reserved and elastic ones over the horizon; a run that may end early might see only the best part of it."""
    changes = _capacity(scenario)
    if scenario.max_batches is not None:
        return float(max(_workers(scenario, change.elastic_gpus) for change in changes))
    horizon = scenario.horizon_seconds
    ends = [*changes, CapacityChange(horizon, 0)]
    seconds = [max(0.0, min(then.at_seconds, horizon) - min(now.at_seconds, horizon)) for now, then in pairwise(ends)]
    held = sum(_workers(scenario, now.elastic_gpus) * span for now, span in zip(changes, seconds, strict=True))
    return held / horizon


def _capacity(scenario: Scenario) -> list[CapacityChange]:
    """From 0 on; what the trace does not say is all that may be used."""
    given = list(scenario.capacity)
    if not given or given[0].at_seconds > 0:
        given.insert(0, CapacityChange(0.0, scenario.fleet.elastic_max_gpus))
    return given


def _workers(scenario: Scenario, elastic_gpus: int) -> int:
    """Whole workers of both zones."""
    fleet = scenario.fleet
    elastic = min(elastic_gpus, fleet.elastic_max_gpus) // fleet.gpus_per_worker
    return fleet.reserved_gpus // fleet.gpus_per_worker + elastic
