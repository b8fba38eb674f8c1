"""Engines replayed step by step, written without the predictor, to hold its throughputs against.

Every worker runs steps: one token of each of its sequences, and as many waiting prompts as fit 2,048 tokens. Token
counts and environment times are exponential; turns go to the worker with the fewest sequences or waiting tokens.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pearl_planner.engine.model import step_seconds, transfer_seconds

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from pearl_planner.engine.model import EngineTable
    from pearl_planner.types import Shape

MAX_CHUNK = 2048


@dataclass
class Engine:
    decoding: dict[int, int] = field(default_factory=dict)
    waiting: list[tuple[int, int]] = field(default_factory=list)
    busy: bool = False

    @property
    def load(self) -> int:
        return len(self.decoding) + len(self.waiting)

    @property
    def queue(self) -> int:
        return sum(tokens for _, tokens in self.waiting) + self.busy


@dataclass
class Replay:
    """`trajectories` circulate for `seconds`; `turns` counts those finished after the first fifth."""

    shape: Shape
    table: EngineTable
    appended: int
    generated: int
    context: int
    wait: float
    seconds: float
    rng: random.Random
    turns: int = 0
    events: list[tuple[float, int, Callable[[float], None]]] = field(default_factory=list)
    count: int = 0
    tokens: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        both = self.shape.colocated
        self.prefillers = [Engine() for _ in range(self.shape.prefill)]
        self.decoders = [Engine() for _ in range(both or self.shape.decode)]

    def run(self, trajectories: int) -> float:
        for number in range(trajectories):
            self.at(self.rng.random() * self.wait, lambda t, n=number: self.arrive(t, n))
        while self.events and self.events[0][0] < self.seconds:
            t, _, call = heapq.heappop(self.events)
            call(t)
        return self.turns / (self.seconds * 0.8)

    def at(self, t: float, call: Callable[[float], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (t, self.count, call))

    def draw(self, mean: float) -> int:
        return max(1, int(self.rng.expovariate(1 / mean)))

    def arrive(self, t: float, number: int) -> None:
        before, new = self.tokens.get(number, self.generated), self.draw(self.appended)
        self.tokens[number] = self.draw(self.generated)
        if self.prefillers:
            engine = min(self.prefillers, key=lambda one: one.queue)
            engine.waiting.append((number, new + before))
        else:
            engine = min(self.decoders, key=lambda one: one.load)
            engine.waiting.append((number, new))
        self.step(t, engine)

    def step(self, t: float, engine: Engine) -> None:
        if engine.busy or not engine.load:
            return
        chunk: list[tuple[int, int]] = []
        while engine.waiting and (not chunk or sum(n for _, n in chunk) + engine.waiting[0][1] <= MAX_CHUNK):
            chunk.append(engine.waiting.pop(0))
        new = sum(tokens for _, tokens in chunk)
        seconds = step_seconds(self.table, len(engine.decoding), self.context, new, max(0, self.context - new))
        engine.busy = True
        decoded = list(engine.decoding)
        self.at(t + seconds, lambda end: self.end(end, engine, decoded, chunk))

    def end(self, t: float, engine: Engine, decoded: list[int], chunk: list[tuple[int, int]]) -> None:
        engine.busy = False
        for number in decoded:
            engine.decoding[number] -= 1
            if engine.decoding[number] <= 0:
                del engine.decoding[number]
                self.turns += t > self.seconds / 5
                self.at(t + self.rng.expovariate(1 / self.wait), lambda back, n=number: self.arrive(back, n))
        for number, tokens in chunk:
            if self.prefillers:
                self.at(t + transfer_seconds(self.table, tokens), lambda there, n=number: self.hand_over(there, n))
            else:
                engine.decoding[number] = max(1, self.tokens[number] - 1)
        self.step(t, engine)

    def hand_over(self, t: float, number: int) -> None:
        engine = min(self.decoders, key=lambda one: one.load)
        engine.decoding[number] = self.tokens[number]
        self.step(t, engine)
