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

from pearl_simulator.effort import Effort, Engine, engine_of, group_efforts, total
from pearl_simulator.types import CapacityChange, Feeding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pearl_simulator.types import Scenario, Script

PRICES: tuple[float, ...] = (0.0, *(10.0 ** (k / 10) for k in range(-35, 21)))
"""Worker seconds per second of a trajectory in flight."""
MOST_BATCHES = 48
MOST_TRAJECTORIES = 4096
"""Beyond either the means over the batches so far are taken for all."""
FIRST_BATCHES = 2


@dataclass(frozen=True, slots=True)
class Bound:
    """What limits a scenario under one seed."""

    trajectories_per_hour: float
    """In the long run: a run that ends in the middle of a batch may have finished up to `slack` more."""
    binds: str
    """The term that is lowest."""
    terms: dict[str, float]
    """Trajectories per hour that each would allow; infinite where it does not limit."""
    slack_trajectories: int


@dataclass(frozen=True, slots=True)
class _Batch:
    """One training step."""

    counted: Effort
    """Of the cheapest groups that are enough."""
    critical_seconds: float
    """Until enough groups are complete, everybody alone."""
    size: int


def bound(scenario: Scenario, seed: int) -> Bound:
    """Upper bound of the throughput of every rule on the batches that it would meet."""
    engine = engine_of(scenario.calibration, in_flight(scenario), may_split="Disaggregated" in scenario.modes)
    batches = _batches(scenario, seed, engine, 0, FIRST_BATCHES)
    while True:
        terms = _terms(scenario, engine, batches)
        rate = min(terms.values())
        reached = math.ceil(rate * scenario.horizon_seconds / max(batches[0].size, 1))
        most = min(MOST_BATCHES, MOST_TRAJECTORIES // batches[0].size)
        wanted = min(reached, scenario.max_batches or most, most)
        if wanted <= len(batches):
            break
        batches += _batches(scenario, seed, engine, len(batches), wanted)
    binds = min(terms, key=lambda name: terms[name])
    slack = batches[0].size * (versions_ahead(scenario) + 1)
    return Bound(3600.0 * rate, binds, {name: 3600.0 * value for name, value in terms.items()}, slack)


def in_flight(scenario: Scenario) -> int:
    """Trajectories at once: the batches that may be open, and a fixed window."""
    size = scenario.workload.groups * scenario.workload.group_size
    most = (versions_ahead(scenario) + 1) * size
    return most if scenario.router.window is None else min(most, scenario.router.window)


def versions_ahead(scenario: Scenario) -> int:
    """Batches that may start before the weights of the one before are there."""
    training = scenario.training
    return 0 if training.feeding is Feeding.BARRIER else training.max_staleness


def _batches(scenario: Scenario, seed: int, engine: Engine, first: int, end: int) -> list[_Batch]:
    return [_batch(scenario, scenario.workload.batch(step, seed), engine) for step in range(first, max(end, first))]


def _batch(scenario: Scenario, scripts: Sequence[Script], engine: Engine) -> _Batch:
    groups = group_efforts(scripts, engine)
    need = min(scenario.training.need_groups or len(groups), len(groups))
    critical = sorted(max(one.alone_seconds(engine) for one in members) for members in groups.values())
    sums = sorted((total(members) for members in groups.values()), key=lambda one: one.cost(engine, 0.1))
    return _Batch(total(sums[:need]), critical[need - 1], len(scripts))


def _terms(scenario: Scenario, engine: Engine, batches: Sequence[_Batch]) -> dict[str, float]:
    """Trajectories per second that each limit allows."""
    size, update = batches[0].size, scenario.training.update_seconds
    effort = total([batch.counted for batch in batches])
    return {
        "trainer": size / update if update > 0 else math.inf,
        "critical path": size * len(batches) / _chain_seconds(scenario, engine, batches),
        "kv": _kv_rate(scenario, engine, effort),
        "work": min(_work_rate(scenario, engine, effort, size, price) for price in PRICES),
    }


def _chain_seconds(scenario: Scenario, engine: Engine, batches: Sequence[_Batch]) -> float:
    """When the last batch and its update are over: batch k starts with the weights of k − 1 − versions ahead."""
    ahead, update = versions_ahead(scenario), scenario.training.update_seconds
    over: list[float] = []
    for k, batch in enumerate(batches):
        rollout = batch.critical_seconds
        if ahead == 0:  # it is alone in the fleet, so its work takes at least this as well
            rollout = max(rollout, _alone_seconds(scenario, engine, batch.counted))
        started = over[k - 1 - ahead] if k > ahead else 0.0
        free = over[-1] if over else 0.0
        over.append(max(started + rollout, free) + update)
    return over[-1]


def _alone_seconds(scenario: Scenario, engine: Engine, effort: Effort) -> float:
    """Of one batch on the largest fleet there ever is."""
    workers = most_workers(scenario)
    return max(effort.cost(engine, price) / (workers + price * in_flight(scenario)) for price in PRICES)


def _work_rate(scenario: Scenario, engine: Engine, effort: Effort, size: int, price: float) -> float:
    """N ≤ (worker seconds + x · seconds in flight) / cost, per second; updates take what they hold."""
    own, lent = mean_workers(scenario), lent_workers(scenario)
    update = scenario.training.update_seconds / size  # per trajectory
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
