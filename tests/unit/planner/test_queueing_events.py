"""The product form and the planner's predictor against events: other service times, sessions that stick.

The simulation below shares no code with the planner or the simulator. It breaks the assumptions of the product form
on purpose: prefill takes a fixed or a log-normal time, decode work and environment times are log-normal, and every
session returns to the prefill worker (unless that is busy and another is idle) and to the decode worker that it had.
"""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass, field
from statistics import mean
from typing import TYPE_CHECKING

import pytest

from pearl_planner.engine.model import EngineTable
from pearl_planner.prediction.mean_turn import Workload
from pearl_planner.prediction.predict import predict
from pearl_planner.prediction.queueing import Network, solve
from pearl_planner.types import Shape

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Case:
    """A closed network; times in seconds."""

    prefill_workers: int
    decode_workers: int
    sessions: int
    prefill: float
    """Mean of one prefill."""
    fixed: float
    """Of a decode turn that is alone, and what each further sequence adds to it."""
    each: float
    environment: float
    prefill_spread: float = 0.0
    """Coefficient of variation; 0 = fixed."""
    sticky: bool = True

    def demand(self, sequences: float) -> float:
        return self.fixed + self.each * sequences


def lognormal(chance: random.Random, average: float, spread: float) -> float:
    if spread == 0 or average == 0:
        return average
    variance = math.log(1 + spread**2)
    return chance.lognormvariate(math.log(average) - variance / 2, math.sqrt(variance))


@dataclass
class Decoder:
    """Shares its time: with m inside, each makes 1/demand(m) of a mean turn per second."""

    demand: Callable[[float], float]
    done: float = 0.0
    """Turns that a sequence present from the start would have made."""
    at: float = 0.0
    inside: list[tuple[float, int]] = field(default_factory=list)

    def advance(self, now: float) -> None:
        if self.inside:
            self.done += (now - self.at) / self.demand(len(self.inside))
        self.at = now

    def next_end(self) -> float:
        return self.at + (self.inside[0][0] - self.done) * self.demand(len(self.inside)) if self.inside else math.inf


def turns_per_second(case: Case, turns: int, seed: int) -> float:
    """Of the second half or so of a run: the first fifth is thrown away."""
    chance = random.Random(seed)
    decoders = [Decoder(case.demand) for _ in range(case.decode_workers)]
    queues: list[list[int]] = [[] for _ in range(case.prefill_workers)]
    events = [(lognormal(chance, case.environment, 1.0), "ask", session, 0) for session in range(case.sessions)]
    heapq.heapify(events)
    finished, began, now, skip = 0, 0.0, 0.0, turns // 5

    def serve(worker: int, now: float) -> None:
        length = lognormal(chance, case.prefill, case.prefill_spread)
        heapq.heappush(events, (now + length, "prefilled", queues[worker][0], worker))

    while finished < turns:
        ends = [decoder.next_end() for decoder in decoders]
        first = min(range(len(ends)), key=ends.__getitem__)
        if ends[first] <= (events[0][0] if events else math.inf):
            now = ends[first]
            decoders[first].advance(now)
            _, session = heapq.heappop(decoders[first].inside)
            finished += 1
            if finished == skip:
                began = now
            heapq.heappush(events, (now + lognormal(chance, case.environment, 1.0), "ask", session, 0))
            continue
        now, kind, session, worker = heapq.heappop(events)
        if kind == "ask":
            shortest = min(range(len(queues)), key=lambda w: len(queues[w]))
            home = session % len(queues)
            go = home if case.sticky and (not queues[home] or queues[shortest]) else shortest
            queues[go].append(session)
            if len(queues[go]) == 1:
                serve(go, now)
        else:
            queues[worker].pop(0)
            if queues[worker]:
                serve(worker, now)
            least = min(range(len(decoders)), key=lambda d: len(decoders[d].inside))
            decoder = decoders[session % len(decoders) if case.sticky else least]
            decoder.advance(now)
            heapq.heappush(decoder.inside, (decoder.done + lognormal(chance, 1.0, 0.5), session))
    return (finished - skip) / (now - began)


def solved(case: Case) -> float:
    network = Network(
        prefill_servers=case.prefill_workers,
        prefill_seconds=case.prefill,
        sharers=case.decode_workers,
        shared_seconds=case.demand,
        delay_seconds=case.environment,
    )
    return solve(network, case.sessions).at(case.sessions)


def predicted(case: Case) -> float:
    """What the planner predicts for an engine with these times; a turn decodes 100 tokens."""
    table = EngineTable(
        "case", case.fixed / 100, case.each / 100, 0.0, case.prefill, 0.0, 0.0, transfer_fixed_seconds=0.0
    )
    load = Workload(1.0, 100.0, 0.0, case.environment, 1000.0, (), (), case.sessions, None)
    shape = Shape(prefill=case.prefill_workers, decode=case.decode_workers)
    rate = predict(shape, load, table).prediction.turns_per_second
    assert rate is not None
    return rate


def error(case: Case, turns: int = 3000, seed: int = 1, answer: Callable[[Case], float] = solved) -> float:
    return answer(case) / turns_per_second(case, turns, seed) - 1


GRID = [
    Case(p, d, n, prefill, 1.0, 0.1, environment, spread)
    for p, d in ((1, 2), (2, 3), (4, 4))
    for n, environment in ((16, 2.0), (64, 5.0))
    for prefill in (0.05, 0.2, 0.5)
    for spread in (0.0, 1.5)
]


def test_the_simulation_agrees_with_the_exact_solution_where_that_is_exact() -> None:
    # One exponential server and a delay: X = (1/s)·(1 − Erlang-B-like loss); with s = Z = 1 and two sessions 4/5.
    # G(0) = 1, G(1) = s + Z = 2, G(2) = s² + s·Z + Z²/2 = 2.5.
    assert solved(Case(1, 1, 2, 1.0, 1e-9, 0.0, 1.0)) == pytest.approx(2 / 2.5, rel=1e-6)
    # A server without competition and fixed times: one session's cycle is 0.5 + (1 + 0.1) + 2 seconds in the mean.
    alone = turns_per_second(Case(1, 1, 1, 0.5, 1.0, 0.1, 2.0), 4000, seed=3)
    assert alone == pytest.approx(1 / 3.6, rel=0.03)


@pytest.mark.parametrize("spread", [0.0, 1.5])
@pytest.mark.parametrize("answer", [solved, predicted])
def test_throughput_is_right_though_service_is_not_exponential_and_sessions_stick(
    answer: Callable[[Case], float], spread: float
) -> None:
    errors = [error(case, answer=answer) for case in GRID if case.prefill_spread == spread]
    assert mean(map(abs, errors)) < 0.05, errors
    assert max(map(abs, errors)) < 0.15, errors
