from __future__ import annotations

import pytest

from pearl_planner.prediction.queueing import (
    Network,
    _delay_factors,
    _logarithmic_throughput,
    _prefill_factors,
    exact_throughput,
    shared_factors,
    solve,
    throughput_bound,
)

STEP = 0.00423
PER_SEQUENCE = (0.0065 + 0.0242 * 16) / 1000  # 16 thousand tokens of context


def calibrated(prefill: int, decode: int) -> Network:
    """200 generated tokens, 4,000 new ones at 25 µs, one second of environment."""
    return Network(prefill, 0.1, decode, lambda n: 200 * (STEP + PER_SEQUENCE * n), 1.0)


@pytest.mark.parametrize(
    ("prefill", "decode", "turns_per_second"),
    [(1, 1, 9.77), (2, 3, 19.24), (3, 3, 21.00), (3, 5, 24.69), (4, 4, 23.64), (4, 9, 28.31), (4, 12, 29.27)],
)
def test_the_published_throughputs_of_64_trajectories(prefill: int, decode: int, turns_per_second: float) -> None:
    network = calibrated(prefill, decode)
    assert solve(network, 64).at(64) == pytest.approx(turns_per_second, abs=0.005)
    assert solve(network, 64).at(64) <= throughput_bound(network, 64)


def test_one_trajectory_never_waits() -> None:
    # 0.1 s prefill + 200 · (4.23 + 0.3937) ms decode + 1 s environment
    assert solve(calibrated(2, 3), 1).at(1) == pytest.approx(1 / (0.1 + 0.92474 + 1.0), rel=1e-4)


def test_the_bounds_are_met_at_their_ends() -> None:
    prefill_bound = Network(2, 0.5, 50, lambda n: 0.01 + 0.0001 * n, 0.0)
    assert solve(prefill_bound, 60).at(60) == pytest.approx(4.0, rel=1e-3)  # 2 / 0.5 s
    decode_bound = Network(50, 0.001, 2, lambda n: 0.1 * n, 0.0)
    assert solve(decode_bound, 60).at(60) == pytest.approx(20.0, rel=1e-2)  # 2 · 1/0.1 s
    waiting = Network(50, 0.001, 50, lambda _: 0.001, 10.0)
    assert solve(waiting, 20).at(20) == pytest.approx(2.0, rel=1e-2)  # 20 / 10 s


def markov_chain_throughput(network: Network, population: int) -> float:
    """Turns per second from the stationary distribution of the chain over (prefill, decode), by elimination."""
    states = [(p, d) for p in range(population + 1) for d in range(population + 1 - p)]
    number = {state: i for i, state in enumerate(states)}
    size = len(states)
    flow = [[0.0] * size for _ in range(size)]
    for p, d in states:
        e = population - p - d
        moves = []
        if p:
            moves.append((min(p, network.prefill_servers) / network.prefill_seconds, (p - 1, d + 1)))
        if d:
            moves.append((d / network.shared_seconds(max(d / network.sharers, 1)), (p, d - 1)))
        if e:
            moves.append((e / network.delay_seconds, (p + 1, d)))
        for rate, to in moves:
            flow[number[to]][number[p, d]] += rate
            flow[number[p, d]][number[p, d]] -= rate
    flow[-1] = [1.0] * size  # probabilities sum to one
    right = [0.0] * (size - 1) + [1.0]
    for i in range(size):
        pivot = max(range(i, size), key=lambda row: abs(flow[row][i]))
        flow[i], flow[pivot] = flow[pivot], flow[i]
        right[i], right[pivot] = right[pivot], right[i]
        for row in range(size):
            if row != i and flow[row][i]:
                factor = flow[row][i] / flow[i][i]
                flow[row] = [a - factor * b for a, b in zip(flow[row], flow[i], strict=True)]
                right[row] -= factor * right[i]
    share = [right[i] / flow[i][i] for i in range(size)]
    return sum(share[number[p, d]] * min(p, network.prefill_servers) / network.prefill_seconds for p, d in states if p)


@pytest.mark.parametrize(("prefill", "decode", "population"), [(1, 1, 3), (2, 1, 6), (1, 2, 7), (2, 3, 8)])
def test_the_product_form_equals_the_markov_chain(prefill: int, decode: int, population: int) -> None:
    network = Network(prefill, 0.4, decode, lambda n: 0.3 + 0.2 * n, 0.7)
    expected = markov_chain_throughput(network, population)
    assert solve(network, population).at(population) == pytest.approx(expected, rel=1e-9)


def test_large_populations_are_close_to_the_exact_solution() -> None:
    network = calibrated(30, 50)
    exact, quick = exact_throughput(network, 600), solve(network, 600)
    for population in (129, 300, 600):
        assert quick.at(population) == pytest.approx(exact[population], rel=0.02)


def test_a_station_that_costs_nothing_is_left_out() -> None:
    colocated = Network(1, 0.0, 2, lambda n: 1.0 * n, 0.0)
    assert solve(colocated, 4).at(4) == pytest.approx(2.0)  # two workers, one turn a second each


@pytest.mark.parametrize("seconds", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("wait", [0.0, 1e-3, 1e5])
def test_plain_and_logarithmic_numbers_agree_over_the_whole_range(seconds: float, wait: float) -> None:
    network = Network(2, 0.1 * seconds, 3, lambda n: seconds * (0.4 + 0.01 * n), wait)
    stations = [_prefill_factors(network, 160), _delay_factors(network, 160), shared_factors(network, 160)]
    assert exact_throughput(network, 160) == pytest.approx(_logarithmic_throughput(stations), rel=1e-9)
