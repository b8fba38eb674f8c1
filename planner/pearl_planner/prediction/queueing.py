"""Throughput of a closed network of prefill, decode and environment stations: exact product form.

docs/models.md, "Closed network". `n` trajectories circulate: prefill (P workers, first come first served), decode
(D workers that share their time among their sequences, balanced), and a delay (environment and hand-off) without
queue. With the factors F of each station, G(n) = Σ F_P(p)·F_D(d)·F_E(e) over p+d+e = n and X(n) = G(n−1)/G(n).
F spans hundreds of orders of magnitude: it is built as logarithms and convolved after a tilt that keeps G nearly flat,
or in logarithms where that does not do. The textbook recursion over marginal probabilities loses all precision here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import mul
from typing import TYPE_CHECKING

from pearl_planner.numbers import log_sum_exp

if TYPE_CHECKING:
    from collections.abc import Callable

EXACT_POPULATION = 128
"""Largest population that is solved exactly (its cost grows with the square)."""

SMALLEST_CONSTANT = 1e-290
"""Below it terms of a sum may have been lost to underflow."""


@dataclass(frozen=True, slots=True)
class Network:
    """One shape as stations. Seconds per turn; unbounded population."""

    prefill_servers: float
    prefill_seconds: float
    """Service of one turn at a prefill server; 0 = no such station."""
    sharers: float
    """Workers that share their time among their sequences: decode, or colocated."""
    shared_seconds: Callable[[float], float]
    """Demand of one turn when each of the sharers holds this many sequences (≥ 1)."""
    delay_seconds: float


@dataclass(frozen=True, slots=True)
class Solution:
    """Turns per second by population: `throughput[n]` for n = 0 … population."""

    throughput: tuple[float, ...]

    def at(self, population: float) -> float:
        """X(n), interpolated; the last value beyond the solved range."""
        top = len(self.throughput) - 1
        if population >= top:
            return self.throughput[top]
        low = max(int(population), 0)
        share = max(population, 0.0) - low
        return self.throughput[low] * (1 - share) + self.throughput[low + 1] * share


def solve(network: Network, population: int) -> Solution:
    """X(0 … population): exact up to `EXACT_POPULATION`, beyond it by scaling."""
    exact = exact_throughput(network, min(population, EXACT_POPULATION))
    if population <= EXACT_POPULATION:
        return Solution(exact)
    return Solution(exact + _scaled(network, population))


def exact_throughput(network: Network, population: int) -> tuple[float, ...]:
    """Product form by convolution; O(population²)."""
    stations = [_prefill_factors(network, population), _delay_factors(network, population)]
    stations.append(shared_factors(network, population))
    bound = throughput_bound(network, population)
    tilted = _tilted_throughput(stations, bound) if bound > 0 else None
    return tilted or _logarithmic_throughput(stations)


def _logarithmic_throughput(stations: list[list[float]]) -> tuple[float, ...]:
    """X(n) with every number kept as a logarithm: always right, ten times slower."""
    constants = _convolve(_convolve(stations[0], stations[1]), stations[2])
    rates = [math.exp(before - after) for before, after in pairwise(constants)]
    return (0.0, *rates)


def _tilted_throughput(stations: list[list[float]], rate: float) -> tuple[float, ...] | None:
    """X(n) in plain numbers after F(j) → F(j)·rate^j, which keeps G nearly flat; None if the range does not do."""
    tilt = math.log(rate)
    plain = []
    for logs in stations:
        raised = [value + j * tilt for j, value in enumerate(logs)]
        top = max(raised)
        plain.append([math.exp(value - top) for value in raised])
    constants = _convolve_plain(_convolve_plain(plain[0], plain[1]), plain[2])
    if not min(constants) > SMALLEST_CONSTANT:
        return None
    return (0.0, *(rate * before / after for before, after in pairwise(constants)))


def _convolve_plain(left: list[float], right: list[float]) -> list[float]:
    backwards = right[::-1]
    size = len(right)
    return [sum(map(mul, left[: n + 1], backwards[size - 1 - n :])) for n in range(size)]


def throughput_bound(network: Network, population: int) -> float:
    """Upper bound: the slowest station alone, or nobody ever waiting."""
    per_sequence = network.shared_seconds(float(max(population, 1))) / max(population, 1)
    bounds = [network.sharers / per_sequence] if per_sequence > 0 else []
    if network.prefill_seconds > 0:
        bounds.append(network.prefill_servers / network.prefill_seconds)
    alone = network.prefill_seconds + network.shared_seconds(1.0) + network.delay_seconds
    if alone > 0:
        bounds.append(population / alone)
    return min(bounds, default=0.0)


def shared_factors(network: Network, population: int) -> list[float]:
    """Log F of balanced sharing stations: with i sequences the mean time per turn is demand(i/D) and i/demand leave."""
    logs, total = [0.0], 0.0
    for i in range(1, population + 1):
        total += math.log(network.shared_seconds(max(i / network.sharers, 1.0)) / i)
        logs.append(total)
    return logs


def _prefill_factors(network: Network, population: int) -> list[float]:
    if network.prefill_seconds <= 0:
        return [0.0] + [-math.inf] * population
    logs, total = [0.0], 0.0
    for i in range(1, population + 1):
        total += math.log(network.prefill_seconds / min(i, network.prefill_servers))
        logs.append(total)
    return logs


def _delay_factors(network: Network, population: int) -> list[float]:
    if network.delay_seconds <= 0:
        return [0.0] + [-math.inf] * population
    step = math.log(network.delay_seconds)
    return [i * step - math.lgamma(i + 1) for i in range(population + 1)]


def _convolve(left: list[float], right: list[float]) -> list[float]:
    """Log of the convolution of exp(left) and exp(right)."""
    backwards = right[::-1]
    size = len(right)
    return [
        log_sum_exp([a + b for a, b in zip(left[: n + 1], backwards[size - 1 - n :], strict=True)]) for n in range(size)
    ]


def _scaled(network: Network, population: int) -> tuple[float, ...]:
    """X(n) above the exact range from the same network shrunk by k: a fluid of size n behaves like n/k in 1/k of it."""
    k = population / EXACT_POPULATION
    small = replace(network, prefill_servers=network.prefill_servers / k, sharers=network.sharers / k)
    shrunk = Solution(exact_throughput(small, EXACT_POPULATION))
    return tuple(k * shrunk.at(n / k) for n in range(EXACT_POPULATION + 1, population + 1))
