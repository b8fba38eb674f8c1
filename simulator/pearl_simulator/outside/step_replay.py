"""Turn times that the step formula predicts: agents replayed step by step through engines that batch like vLLM.

Far too slow for fleets, and not used for them: it exists to hold the engine model against measured turns
(`engine_check.py`). Scheduling as in vLLM: every decoding sequence gets one token per step, what is left of the token
budget goes to prompts in order of arrival, in chunks; full blocks of what an engine has computed stay cached.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from pearl_planner.engine.model import step_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pearl_planner.engine.model import EngineTable


@dataclass(frozen=True, slots=True)
class Asked:
    """One turn of an agent."""

    prompt_tokens: int
    """The whole prompt, history included."""
    generated_tokens: int
    environment_seconds: float
    """After it."""


@dataclass(frozen=True, slots=True)
class Setup:
    """One worker, or one that prefills and one that decodes."""

    table: EngineTable
    disaggregated: bool
    max_sequences: int = 16
    max_batched_tokens: int = 512
    block_tokens: int = 32
    request_seconds: float = 0.0
    """Of one turn outside of engine steps: HTTP, tokens in and out."""
    handover_seconds: float = 0.0
    """Between the end of a prefill and its request at the decoding engine with its KV there."""


@dataclass(slots=True)
class _Request:
    agent: int
    to_prefill: int
    prefix: int
    to_generate: int

    @property
    def context(self) -> int:
        return self.prefix


@dataclass(slots=True)
class _Engine:
    setup: Setup
    waiting: list[_Request] = field(default_factory=list)
    running: list[_Request] = field(default_factory=list)
    chunks: list[tuple[_Request, int]] = field(default_factory=list)
    """Of the step that runs now."""
    decoding: list[_Request] = field(default_factory=list)
    busy: bool = False

    def begin(self) -> float | None:
        """Start a step; its seconds, or None when there is nothing to do."""
        while self.waiting and len(self.running) < self.setup.max_sequences:
            self.running.append(self.waiting.pop(0))
        self.decoding = [one for one in self.running if one.to_prefill == 0]
        self.chunks = []
        budget, pairs = self.setup.max_batched_tokens - len(self.decoding), 0.0
        for one in self.running:
            tokens = min(one.to_prefill, budget)
            if tokens > 0:
                self.chunks.append((one, tokens))
                budget -= tokens
                pairs += tokens * one.prefix + tokens * tokens / 2
        total = sum(tokens for _, tokens in self.chunks)
        self.busy = bool(self.decoding or self.chunks)
        if not self.busy:
            return None
        contexts = sum(one.context + 1 for one in self.decoding)
        prefix = pairs / total - total / 2 if total else 0.0
        sequences = len(self.decoding)
        return step_seconds(self.setup.table, sequences, contexts / max(sequences, 1), total, prefix)

    def end(self) -> list[_Request]:
        """Finish the step; the requests that are complete with it."""
        for one, tokens in self.chunks:
            one.to_prefill -= tokens
            one.prefix += tokens
        got_token = [*self.decoding, *(one for one, _ in self.chunks if one.to_prefill == 0)]
        for one in self.decoding:
            one.prefix += 1
        for one in got_token:
            one.to_generate -= 1
        done = [one for one in got_token if one.to_generate == 0]
        self.running = [one for one in self.running if one not in done]
        return done


def turn_seconds(agents: Sequence[Sequence[Asked]], setup: Setup) -> list[list[float]]:
    """Seconds of every turn of every agent when all of them start together."""
    return _Replay(agents, setup).run()


class _Replay:
    def __init__(self, agents: Sequence[Sequence[Asked]], setup: Setup) -> None:
        self._agents, self._setup = agents, setup
        self._engines = [_Engine(setup), _Engine(setup)]
        self._order: Iterator[int] = count()
        self._events: list[tuple[float, int, str, int]] = []
        self._turn = [0] * len(agents)
        self._started = [0.0] * len(agents)
        self._cached = [0] * len(agents)
        self._seconds: list[list[float]] = [[] for _ in agents]

    def run(self) -> list[list[float]]:
        for agent in range(len(self._agents)):
            self._at(0.0, "ask", agent)
        while self._events:
            now, _, kind, which = heapq.heappop(self._events)
            if kind == "ask":
                self._started[which] = now
                self._at(now + self._setup.request_seconds / 2, "arrive", which)
            elif kind == "arrive":
                self._arrive(which)
                self._kick(0, now)
            elif kind == "handed":
                asked = self._agents[which][self._turn[which]]
                # The last prompt token is computed again where decoding happens: one token, so a decode step.
                self._engines[1].waiting.append(_Request(which, 0, asked.prompt_tokens - 1, asked.generated_tokens))
                self._kick(1, now)
            elif kind == "step":
                for request in self._engines[which].end():
                    self._complete(which, request, now)
                self._engines[which].busy = False
                self._kick(which, now)
            else:
                self._finish_turn(which, now)
        return self._seconds

    def _arrive(self, agent: int) -> None:
        asked = self._agents[agent][self._turn[agent]]
        block = self._setup.block_tokens
        cached = min(self._cached[agent], asked.prompt_tokens - 1) // block * block
        generate = 1 if self._setup.disaggregated else asked.generated_tokens
        self._engines[0].waiting.append(_Request(agent, asked.prompt_tokens - cached, cached, generate))

    def _complete(self, engine: int, request: _Request, now: float) -> None:
        if engine == 0:
            self._cached[request.agent] = request.prefix
        if self._setup.disaggregated and engine == 0:
            self._at(now + self._setup.handover_seconds, "handed", request.agent)
        else:
            self._at(now + self._setup.request_seconds / 2, "answer", request.agent)

    def _finish_turn(self, agent: int, now: float) -> None:
        self._seconds[agent].append(now - self._started[agent])
        asked = self._agents[agent][self._turn[agent]]
        self._turn[agent] += 1
        if self._turn[agent] < len(self._agents[agent]):
            self._at(now + asked.environment_seconds, "ask", agent)

    def _kick(self, which: int, now: float) -> None:
        engine = self._engines[which]
        if not engine.busy:
            seconds = engine.begin()
            if seconds is not None:
                self._at(now + seconds, "step", which)

    def _at(self, time: float, kind: str, which: int) -> None:
        heapq.heappush(self._events, (time, next(self._order), kind, which))
