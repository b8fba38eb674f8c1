"""What the next engine step does: continuous batching with chunked prefill, preemption and a prefix cache. Pure.

The order is vLLM's: running sequences first, one token or the next chunk each; then waiting ones, first come first
served, as long as the token budget, the sequence limit and the KV room last. Without room the youngest running
sequence is thrown out and computed again later.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pearl_simulator.emulator.sequence import Sequence, State

if TYPE_CHECKING:
    from collections.abc import Callable

    from pearl_simulator.emulator.blocks import BlockPool


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one engine."""

    max_model_len: int
    max_sequences: int
    max_batched_tokens: int


@dataclass(slots=True)
class Step:
    """One engine step."""

    parts: list[tuple[Sequence, int]] = field(default_factory=list)
    """(sequence, tokens computed in this step)."""
    decoding: int = 0
    """Sequences that only the token before is computed of."""
    context_tokens: int = 0
    """Summed over those."""
    chunk_tokens: int = 0
    """Prompt tokens computed."""
    chunk_pairs: float = 0.0
    """Pairs of a computed prompt token and one it attends to: Σ c·prefix + c²/2."""

    @property
    def tokens(self) -> int:
        """All that is computed."""
        return self.decoding + self.chunk_tokens

    def add(self, sequence: Sequence, count: int) -> None:
        """Compute `count` more tokens of a sequence."""
        self.parts.append((sequence, count))
        if count == 1 and sequence.computed > 0 and sequence.computed + 1 == len(sequence.tokens):
            self.decoding += 1
            self.context_tokens += len(sequence.tokens)
        else:
            self.chunk_tokens += count
            self.chunk_pairs += count * sequence.computed + count * count / 2


class Scheduler:
    """Queues of one engine. Not thread-safe; nothing in it waits."""

    def __init__(self, limits: Limits, pool: BlockPool) -> None:
        self.limits = limits
        self.pool = pool
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.fetching: list[Sequence] = []
        self.admitting = True
        """False while paused: what runs goes on, nothing new starts."""
        self.frozen = False
        """True while paused in mode keep: nothing runs."""
        self.preempted = 0

    @property
    def holding(self) -> bool:
        """Whether any sequence has KV or will have some without being admitted."""
        return bool(self.running or self.fetching)

    def add(self, sequence: Sequence) -> None:
        """Queue one."""
        self.waiting.append(sequence)

    def step(self, wants_fetch: Callable[[Sequence], int]) -> Step | None:
        """The next step, None if there is nothing to compute.

        `wants_fetch(sequence)` says how many prompt tokens beyond `computed` come from another engine; such a
        sequence gets its blocks and goes to `fetching`, from where `fetched` brings it back.
        """
        if self.frozen:
            return None
        step = Step()
        kept = self._continue_running(step)
        if self.admitting and kept:
            self._admit(step, wants_fetch)
        return step if step.parts else None

    def _continue_running(self, step: Step) -> bool:
        """Whether nobody had to be thrown out."""
        left, kept, at = self.limits.max_batched_tokens, True, 0
        while at < len(self.running) and left > 0:
            sequence = self.running[at]
            count = min(len(sequence.tokens) - sequence.computed, left)
            while not self._room(sequence, sequence.computed + count):
                kept = False
                victim = self.running.pop()
                self._throw_out(victim)
                if victim is sequence:
                    return kept
            step.add(sequence, count)
            left -= count
            at += 1
        return kept

    def _room(self, sequence: Sequence, until: int) -> bool:
        missing = -(-until // self.pool.size) - len(sequence.blocks)
        if missing <= 0:
            return True
        if missing > self.pool.free:
            return False
        sequence.blocks += self.pool.take(missing)
        return True

    def _throw_out(self, sequence: Sequence) -> None:
        self.pool.release(sequence.blocks)
        sequence.blocks, sequence.computed, sequence.remembered, sequence.state = [], 0, 0, State.WAITING
        sequence.preemptions += 1
        self.preempted += 1
        self.waiting.appendleft(sequence)

    def throw_out_all(self) -> None:
        """Take the KV of every running sequence; they are computed again, in their order."""
        while self.running:
            self._throw_out(self.running.pop())

    def _admit(self, step: Step, wants_fetch: Callable[[Sequence], int]) -> None:
        while self.waiting and len(self.running) < self.limits.max_sequences:
            left = self.limits.max_batched_tokens - step.tokens
            sequence = self.waiting[0]
            if left <= 0 or not self._start(sequence, wants_fetch):
                return
            self.waiting.popleft()
            if sequence.state is State.FETCHING:
                self.fetching.append(sequence)
                continue
            sequence.state = State.RUNNING
            self.running.append(sequence)
            step.add(sequence, min(len(sequence.tokens) - sequence.computed, left))

    def _start(self, sequence: Sequence, wants_fetch: Callable[[Sequence], int]) -> bool:
        """Give a waiting sequence what the cache has of it and blocks for the rest; False if there is no room."""
        if sequence.blocks:  # it was fetched
            return True
        size, length = self.pool.size, len(sequence.tokens)
        # The last token is always computed: its logits are the answer's first token.
        hit = self.pool.match(sequence.whole_blocks(size, length - 1))
        self.pool.hold(hit)
        missing = -(-length // size) - len(hit)
        if missing > self.pool.free:
            self.pool.release(hit)
            return False
        sequence.blocks = hit + self.pool.take(missing)
        sequence.computed = len(hit) * size
        if sequence.cached is None:
            sequence.cached = sequence.computed
        sequence.external = wants_fetch(sequence)
        if sequence.external > 0:
            sequence.state = State.FETCHING
        return True

    def fetched(self, sequence: Sequence, *, arrived: bool) -> None:
        """The transfer is over; without its KV the sequence is computed here."""
        self.fetching.remove(sequence)
        sequence.state = State.WAITING
        if arrived:
            sequence.computed = len(sequence.tokens) - 1
        else:
            sequence.external = 0
        self.waiting.appendleft(sequence)

    def advance(self, step: Step) -> list[Sequence]:
        """The step was computed; returns the sequences that now get a token."""
        ready = []
        for sequence, count in step.parts:
            if sequence.state is not State.RUNNING:
                continue  # it ended meanwhile
            sequence.computed += count
            self._remember(sequence)
            if sequence.computed == len(sequence.tokens):
                ready.append(sequence)
        return ready

    def _remember(self, sequence: Sequence) -> None:
        contents = sequence.whole_blocks(self.pool.size, sequence.computed)
        for at in range(sequence.remembered, len(contents)):
            self.pool.remember(sequence.blocks[at], contents[at])
        sequence.remembered = len(contents)

    def remove(self, sequence: Sequence) -> list[int]:
        """Take an ended sequence out; its blocks, still held, are the caller's."""
        if sequence.state is State.RUNNING:
            self.running.remove(sequence)
        elif sequence.state is State.FETCHING:
            self.fetching.remove(sequence)
        elif sequence.state is State.WAITING:
            self.waiting.remove(sequence)
        sequence.state = State.FINISHED
        blocks, sequence.blocks = sequence.blocks, []
        return blocks
