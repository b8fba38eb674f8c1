"""The prompts of one worker: the queue, and steps of at most `max_batched_tokens` packed from it.

MIXED: a step lasts `engine_model.step_seconds` and every decoding turn gets its token at its end. EXCLUSIVE: decode
waits. Several steps in which one long prompt is alone are one event: their times add up exactly, and what arrives
meanwhile could at most have shared the last of them.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import ceil, floor
from typing import TYPE_CHECKING

from pearl_planner.engine.model import prefill_seconds, step_seconds
from pearl_simulator.cluster.jobs import Stage
from pearl_simulator.types import PrefillStyle

if TYPE_CHECKING:
    from collections.abc import Callable

    from pearl_simulator.cluster.decoding import Decoding
    from pearl_simulator.cluster.jobs import Job
    from pearl_simulator.types import Calibration

FIRST = -1e18
"""Rank of a preempted turn."""


class Prefilling:
    """Queue and step in progress."""

    __slots__ = (
        "_calibration",
        "_mixed",
        "_order",
        "_seconds",
        "_started",
        "chunks",
        "gain",
        "partial",
        "pending",
        "queue",
        "tokens",
    )

    def __init__(self, calibration: Calibration) -> None:
        self._calibration = calibration
        self._mixed = calibration.style is PrefillStyle.MIXED
        self._order = 0
        self._started = 0.0
        self._seconds = 1.0
        self.queue: list[tuple[float, int, Job]] = []
        self.partial: Job | None = None
        """Admitted, with tokens left for the next step."""
        self.chunks: list[tuple[Job, int]] | None = None
        """Of the step in progress; None = there is none."""
        self.gain = 0.0
        """Tokens that each decoding turn gets from it."""
        self.pending = 0
        """Tokens that wait for their prefill, or are in it."""
        self.tokens = 0
        """Prefilled, ever."""

    def enqueue(self, job: Job, tokens: int, *, first: bool) -> None:
        """A prompt with so many tokens to prefill, as far as can be told now."""
        self._order += 1
        job.stage = Stage.QUEUED
        job.owed = tokens
        self.pending += tokens
        heappush(self.queue, (FIRST if first else -job.priority, self._order, job))

    def admit(self, job: Job, cached: int) -> None:
        """The head of the queue has room."""
        heappop(self.queue)
        job.cached = cached
        job.uncached = max(job.tokens - cached, 1)
        job.prefix = job.tokens - job.uncached
        job.computed = 0
        job.stage = Stage.PREFILLING
        self.pending += job.uncached - job.owed
        job.owed = job.uncached

    def take_out(self, job: Job) -> None:
        """A queued prompt, or one in a step, is not wanted any more."""
        self.pending -= job.owed
        job.owed = 0
        if job.stage is Stage.QUEUED:
            self.queue = [entry for entry in self.queue if entry[2] is not job]
            heapify(self.queue)
            return
        if self.partial is job:
            self.partial = None
        if self.chunks is not None:
            self.chunks = [one for one in self.chunks if one[0] is not job]

    def start(
        self, following: Callable[[], Job | None], decoding: Decoding, now: float, *, alone: bool
    ) -> float | None:
        """Pack a step from what `following` admits; its seconds, None when nothing that waits has room.

        `alone` says that no hand-off can land meanwhile, so that the steps of a long prompt may be one event.
        """
        calibration = self._calibration
        chunks: list[tuple[Job, int]] = []
        tokens = pairs = residual = 0.0
        job = following()
        if job is None:
            return None
        steps = self._steps_of(job, decoding) if alone else 1
        left = calibration.max_batched_tokens * steps
        while job is not None:
            count = min(left, job.uncached)
            tokens += count * job.noise
            pairs += (count * job.prefix + count * count / 2.0) * job.noise
            residual += calibration.interference_seconds if not job.handoff and job.computed == 0 else 0.0
            job.computed += count
            job.prefix += count
            job.uncached -= count
            left -= count
            self.partial = job if job.uncached > 0 else None
            chunks.append((job, count))
            job = following() if left > 0 else None
        self.chunks = chunks
        self._started = now
        self._seconds = self._duration(decoding, steps, tokens, pairs) + residual
        return self._seconds

    def _steps_of(self, job: Job, decoding: Decoding) -> int:
        """How many steps of one prompt follow each other before a turn ends."""
        limit = self._calibration.max_batched_tokens
        if job.uncached <= limit:
            return 1
        steps = ceil(job.uncached / limit)
        if decoding.running and self._mixed:
            steps = min(steps, max(ceil(decoding.running[0][0] - decoding.v), 1))
        return steps

    def _duration(self, decoding: Decoding, steps: int, tokens: float, pairs: float) -> float:
        """Of `steps` alike with so many tokens, and pairs of tokens, in all."""
        table, n = self._calibration.table, len(decoding.running)
        each = tokens / steps
        prefix = pairs / tokens - each / 2.0
        if n and self._mixed:
            self.gain = float(steps)
            context = decoding.contexts() / n + (steps - 1) / 2.0
            return steps * (step_seconds(table, n, context, each, prefix) + self._calibration.host_seconds)
        self.gain = 0.0
        return steps * (prefill_seconds(table, each, prefix) + self._calibration.host_seconds)

    def steps_made(self, now: float) -> int:
        """Whole decode steps of the event in progress."""
        return 0 if self.chunks is None else floor(self.gain * (now - self._started) / self._seconds)

    def end(self) -> list[Job]:
        """The step is over; prompts that are complete with it."""
        chunks, self.chunks, self.gain = self.chunks or [], None, 0.0
        complete = []
        for job, count in chunks:
            job.owed -= count
            self.pending -= count
            self.tokens += count
            if job.uncached == 0 and job.stage is Stage.PREFILLING:
                complete.append(job)
        return complete

    def clear(self) -> None:
        """Nothing waits, nothing runs."""
        self.queue.clear()
        self.chunks = self.partial = None
        self.gain = 0.0
        self.pending = 0
