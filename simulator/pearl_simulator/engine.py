"""One simulated engine: continuous batching, prefill in steps, KV room, prefix cache.

Decode is fluid between changes of membership: a virtual token clock V advances by one per step, the step time is
`engine_model.decode_seconds(n, mean context)` and grows linearly with V (contexts grow by a token per step), so the
time from V₀ to V₁ is the mean of both step times times V₁ − V₀, exactly where the formula is linear in the context.
A turn that joins at V with r tokens to go finishes at V + r.

Prefill runs in steps of at most `max_batched_tokens`, packed with as many queued turns as fit (chunked where one does
not). MIXED: the step lasts `step_seconds` and every decoding turn gets its token at its end. EXCLUSIVE: decode waits.
The last prefill step yields the first token, so r - 1 steps follow; after a hand-off the decode worker computes the
last prompt token again and r steps follow. A turn that arrives while only decode runs starts its prefill at once (half
a step early); one that ends inside a mixed step ends with it (half a step late).

KV: a prompt is admitted when its tokens fit beside what is active (1 % stays free unless the worker is empty); idle
contexts are evicted for it. When decoding contexts outgrow the room, the youngest turn is preempted and computed again.
Members of a group share their first prompt where one of them has it; each is counted with its own copy.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from math import ceil, floor, inf, sqrt
from typing import TYPE_CHECKING, Protocol

from pearl_planner.engine_model import decode_seconds, prefill_seconds, step_seconds, transfer_seconds
from pearl_planner.types import Role
from pearl_simulator.cache import PrefixCache
from pearl_simulator.clock import SimulationError
from pearl_simulator.jobs import Stage
from pearl_simulator.types import PrefillStyle

if TYPE_CHECKING:
    from pearl_simulator.clock import Clock
    from pearl_simulator.jobs import Job
    from pearl_simulator.types import Calibration

WATERMARK = 0.01
"""Share of the KV room that admission leaves free for growth, as engines do."""
_NEAR = 1e-6


class Hooks(Protocol):
    """Whom an engine tells."""

    def turn_done(self, job: Job, engine: Engine) -> None:
        """All tokens of the turn are there."""
        ...

    def first_token(self, job: Job, engine: Engine) -> None:
        """The prompt is computed where it is decoded, or has arrived there."""
        ...

    def prefilled(self, job: Job, engine: Engine) -> None:
        """The prompt of a hand-off is computed and pinned here: `offer` it to a decode worker."""
        ...

    def left(self, engine: Engine) -> None:
        """A turn left the engine."""
        ...


class Load:
    """What an engine did since it was last asked, as its metrics would say."""

    __slots__ = ("busy", "decoding", "generated", "prefilled", "sequence_seconds")

    def __init__(self) -> None:
        self.busy = 0.0
        self.decoding = 0.0
        """Seconds in which something decoded."""
        self.sequence_seconds = 0.0
        self.generated = 0.0
        self.prefilled = 0


class Engine:
    """Serves turns from `submit` or `offer` until `Hooks.turn_done`."""

    __slots__ = (
        "_base",
        "_calibration",
        "_capacity",
        "_chunks",
        "_clock",
        "_gain",
        "_hooks",
        "_host",
        "_linear",
        "_mixed",
        "_order",
        "_overflow",
        "_partial",
        "_planned",
        "_queue",
        "_running",
        "_since",
        "_slope",
        "_step_seconds",
        "_step_started",
        "_target",
        "_tau",
        "_token",
        "_v",
        "cache",
        "held",
        "inside",
        "jobs",
        "landing",
        "load",
        "pending",
        "preemptions",
        "prefilled_tokens",
        "role",
        "table",
        "uid",
        "version",
    )

    def __init__(self, uid: str, clock: Clock, calibration: Calibration, hooks: Hooks, version: int) -> None:
        self.uid = uid
        self.table = calibration.table
        self.version = version
        self.cache = PrefixCache()
        self.jobs: dict[Job, None] = {}
        """Inside, in the order of arrival: queued, prefilling, pinned, landing, moving here, decoding."""
        self.inside = 0
        """Requests: those of `jobs` but without pinned KV of others' turns."""
        self.pending = 0
        """Prompt tokens that wait for their prefill, or are in it."""
        self.landing: deque[Job] = deque()
        self.role: Role | None = None
        """What the gateway routes to it; None = nothing, for good or while it drains."""
        self.load = Load()
        self.preemptions = 0
        self.prefilled_tokens = 0
        self.held = 0.0
        """KV of prompts in prefill, pinned, or on their way here."""
        self._clock = clock
        self._calibration = calibration
        self._capacity = calibration.table.kv_capacity_tokens
        self._host = calibration.host_seconds
        self._linear = (
            calibration.table.decode_per_root_sequence_seconds == 0.0
            and calibration.table.decode_per_context_token_seconds >= 0.0
            and calibration.table.decode_per_sequence_seconds >= 0.0
        )
        """The step time is linear in the contexts; otherwise it is interpolated from change to change."""
        self._mixed = calibration.style is PrefillStyle.MIXED
        self._hooks = hooks
        self._queue: list[tuple[float, int, int, Job]] = []
        self._running: list[tuple[float, int, Job]] = []
        self._chunks: list[tuple[Job, int]] | None = None
        """Of the step in progress; None = decode only, or idle."""
        self._partial: Job | None = None
        """Admitted, with tokens left for the next step."""
        self._gain = 0.0
        self._planned = inf
        """When the valid event of this engine comes, outside of steps."""
        self._step_started = 0.0
        self._step_seconds = 1.0
        self._base = 0.0
        """Σ context of the decoding turns − n·V."""
        self._v = 0.0
        self._since = 0.0
        self._tau = 0.0
        self._slope = 0.0
        self._target = 0.0
        self._overflow = False
        self._token = 0
        self._order = 0

    @property
    def decoding(self) -> int:
        """Turns that decode."""
        return len(self._running)

    @property
    def queued(self) -> int:
        """Turns that wait for their prefill, or for room."""
        return len(self._queue) + len(self.landing)

    def active_tokens(self) -> float:
        """KV that cannot be evicted."""
        return self._base + len(self._running) * self._v + self.held

    def usable(self, job: Job) -> int:
        """Tokens of the prompt whose KV is here and may be used."""
        if job.turn == 0 and not job.done:
            return max(self.cache.peek(job.uid), self._shared(job))
        return min(self.cache.peek(job.uid), _reusable(job))

    def expected_seconds(self, job: Job, generated: float) -> float:
        """Until a turn of so many tokens would be done here, roughly: what waits, its prefill, its decode."""
        new = self.pending + job.tokens - self.usable(job)
        count = len(self._running) + 1
        context = (self._base + (count - 1) * self._v + job.tokens) / count
        return prefill_seconds(self.table, new, 0.0) + generated * decode_seconds(self.table, count, context)

    # ---- what the router does -----

    def submit(self, job: Job, *, first: bool = False) -> None:
        """Prefill a prompt here: `job.tokens`, then `job.left` tokens here or on `job.decoder`."""
        self._settle()
        self._enqueue(job, first=first)
        if self._chunks is None:
            self._go()

    def offer(self, job: Job) -> None:
        """A prompt that was prefilled on `job.source` wants to decode here; waits for room there."""
        job.stage = Stage.LANDING
        job.engine = self
        self.jobs[job] = None
        self.inside += 1
        self.landing.append(job)
        self._settle()
        if self._chunks is None:
            self._go()
        else:
            self._land()

    def keep_here(self, job: Job) -> None:
        """A prompt of a hand-off decodes where it was prefilled, since nothing else does; called in `prefilled`."""
        job.handoff = False
        job.source = None
        self.inside += 1
        self._begin_here(job)

    def remove(self, job: Job) -> None:
        """Take a turn out, wherever it is; `job.done` says what was generated. Its KV is gone from here.

        Raises:
            SimulationError: it is not here.
        """
        if job not in self.jobs:
            raise SimulationError(f"{job.name} is not on {self.uid}")
        self._settle()
        if job.engine is not self:  # its pinned KV only; the turn itself waits elsewhere
            raise SimulationError(f"{job.name} is pinned on {self.uid}: remove it where it goes")
        self._take_out(job)
        del self.jobs[job]
        self.inside -= 1
        job.engine = None
        job.ticket += 1
        if job.source is not None:
            job.source.release(job)
        if self._chunks is None:
            self._go()

    def release(self, job: Job) -> None:
        """The pinned KV of a hand-off is free: it arrived, or is not wanted any more."""
        if job not in self.jobs:
            return
        del self.jobs[job]
        job.source = None
        self._settle()
        self.held -= job.tokens
        self.cache.keep(job.uid, job.tokens)
        self._trim()
        self._hooks.left(self)
        if self._chunks is None:
            self._go()

    def stop(self) -> list[Job]:
        """The engine is gone: everything inside, oldest first, taken out."""
        self._settle()
        self._token += 1
        self._planned = inf
        jobs = list(self.jobs)
        for job in jobs:
            if job.engine is self:
                if job.source is not None:
                    job.source.release(job)
                self._take_out(job)
            else:  # pinned here, waits or moves elsewhere
                job.source = None
                if job.engine is not None:
                    job.engine.remove(job)
            job.engine = None
            job.ticket += 1
        self.jobs.clear()
        self.landing.clear()
        self._queue.clear()
        self._running.clear()
        self._chunks = self._partial = None
        self.inside = self.pending = 0
        self._base = self.held = 0.0
        self.cache.clear()
        return jobs

    # ---- inside -----

    def _enqueue(self, job: Job, *, first: bool) -> None:
        self._order += 1
        job.engine = self
        job.stage = Stage.QUEUED
        job.owed = job.tokens - self.usable(job)
        self.pending += job.owed
        self.jobs[job] = None
        self.inside += 1
        rank = -1e18 if first else -job.priority
        heappush(self._queue, (rank, self._order, job.ticket, job))

    def _take_out(self, job: Job) -> None:
        """Undo what a turn holds here, by its stage."""
        stage = job.stage
        self.pending -= job.owed
        job.owed = 0
        if stage is Stage.DECODING:
            passed = 0.0 if self._chunks is None else (self._clock.now - self._step_started) / self._step_seconds
            made = (self._v + floor(self._gain * passed) - job.joined_v) / job.noise
            job.done += max(min(int(made + _NEAR), job.left - 1), 0)
            self._running = [entry for entry in self._running if entry[2] is not job]
            heapify(self._running)
            self._base -= job.joined_context - job.joined_v
        elif stage is Stage.QUEUED:
            self._queue = [entry for entry in self._queue if entry[3] is not job]
            heapify(self._queue)
        elif stage is Stage.PREFILLING:
            self.held -= job.tokens
            if self._partial is job:
                self._partial = None
            self._chunks = None if self._chunks is None else [one for one in self._chunks if one[0] is not job]
        elif stage is Stage.LANDING:
            self.landing.remove(job)
        elif stage is Stage.MOVING:
            self.held -= job.tokens

    def _settle(self) -> None:
        """Bring V to now."""
        now = self._clock.now
        seconds = now - self._since
        self._since = now
        n = len(self._running)
        if seconds <= 0.0 or n == 0 or self._chunks is not None:
            return
        tau, slope = self._tau, self._slope
        gained = 2.0 * seconds / (tau + sqrt(tau * tau + 2.0 * slope * seconds))
        self._v += gained
        self._tau = tau + slope * gained
        load = self.load
        load.busy += seconds
        load.decoding += seconds
        load.sequence_seconds += n * seconds
        load.generated += n * gained

    def _go(self) -> None:
        """What comes next: a step with prefill, or decode until the next end."""
        if self.landing:
            self._land()
        if (self._partial is not None or self._queue) and self._start_step():
            return
        self._coast()

    def _coast(self) -> None:
        """Decode only: plan the next end, or the moment at which the KV is full."""
        running = self._running
        n = len(running)
        if n == 0:
            self._token += 1
            self._planned = inf
            return
        v, target = self._v, running[0][0]
        contexts = self._base + n * v
        self._overflow = False
        if self._capacity is not None:
            room = self._capacity - contexts - self.held
            if n * (target - v) > room:
                target = v + max(room, 0.0) / n
                self._overflow = True
        span = target - v if target > v else 0.0
        tau = decode_seconds(self.table, n, contexts / n) + self._host
        if self._linear:
            slope = n * self.table.decode_per_context_token_seconds
        elif span > 0.0:
            end = decode_seconds(self.table, n, contexts / n + span) + self._host
            slope = (end - tau) / span if end > tau else 0.0
        else:
            slope = 0.0
        self._tau, self._slope, self._target = tau, slope, target
        self._since = now = self._clock.now
        due = now + span * (tau + slope * span / 2.0)
        if due < self._planned:  # otherwise the wake that is planned comes first, and plans again
            self._planned = due
            self._token += 1
            self._clock.at(due, self._wake, self._token)

    def _wake(self, token: int) -> None:
        if token != self._token:
            return
        self._planned = inf
        if self._chunks is not None:
            self._end_step()
        else:
            self._settle()
            if self._v < self._target - _NEAR:  # others joined since this was planned
                self._coast()
                return
            self._v = self._target
            if self._overflow:
                self._preempt()
        self._finish_due()
        self._go()

    def _start_step(self) -> bool:
        """Pack a step; False when nothing that waits has room."""
        chunks: list[tuple[Job, int]] = []
        tokens = pairs = residual = 0.0
        job = self._next_admitted()
        steps = 1 if job is None else self._steps_of(job)
        left = self._calibration.max_batched_tokens * steps
        while job is not None:
            count = min(left, job.uncached)
            tokens += count * job.noise
            pairs += (count * job.prefix + count * count / 2.0) * job.noise
            residual += self._calibration.interference_seconds if not job.handoff and job.computed == 0 else 0.0
            job.computed += count
            job.prefix += count
            job.uncached -= count
            left -= count
            self._partial = job if job.uncached > 0 else None
            chunks.append((job, count))
            job = self._next_admitted() if left > 0 else None
        if not chunks:
            return False
        self._chunks = chunks
        self._begin(steps, tokens, pairs, residual)
        return True

    def _steps_of(self, job: Job) -> int:
        """How many steps of one long prompt follow each other before a turn ends.

        They are one event; what arrives meanwhile could at most have shared the last of them. A worker on which
        hand-offs may land takes one step at a time.
        """
        limit = self._calibration.max_batched_tokens
        if job.uncached <= limit or self.role is Role.DECODE:
            return 1
        steps = ceil(job.uncached / limit)
        if self._running and self._mixed:
            steps = min(steps, max(ceil(self._running[0][0] - self._v), 1))
        return steps

    def _begin(self, steps: int, tokens: float, pairs: float, residual: float) -> None:
        """`steps` alike with so many tokens and pairs of tokens in all."""
        n = len(self._running)
        each = tokens / steps
        prefix = pairs / tokens - each / 2.0
        if n and self._mixed:
            context = self._base / n + self._v + (steps - 1) / 2.0
            seconds = steps * step_seconds(self.table, n, context, each, prefix)
            self._gain = float(steps)
        else:
            seconds = steps * prefill_seconds(self.table, each, prefix)
            self._gain = 0.0
        seconds += steps * self._host + residual
        self._token += 1
        self._planned = inf
        self._since = self._step_started = self._clock.now
        self._step_seconds = seconds
        load = self.load
        load.busy += seconds
        load.decoding += seconds if n else 0.0
        load.sequence_seconds += n * seconds
        load.generated += n * self._gain
        self._clock.after(seconds, self._wake, self._token)

    def _next_admitted(self) -> Job | None:
        """The prompt in progress, or the next of the queue if it has room."""
        if self._partial is not None:
            return self._partial
        if not self._queue:
            return None
        job = self._queue[0][3]
        if not self._room(job.tokens):
            return None
        heappop(self._queue)
        job.cached = self.usable(job)
        self.cache.take(job.uid)
        job.uncached = max(job.tokens - job.cached, 1)
        job.prefix = job.tokens - job.uncached
        self.pending += job.uncached - job.owed
        job.owed = job.uncached
        job.computed = 0
        job.stage = Stage.PREFILLING
        self.held += job.tokens
        self._trim()
        return job

    def _room(self, tokens: int) -> bool:
        capacity = self._capacity
        if capacity is None:
            return True
        active = self.active_tokens()
        if active <= _NEAR:
            if tokens > capacity:
                raise SimulationError(f"a prompt of {tokens} tokens does not fit the KV room of {capacity} tokens")
            return True
        return active + tokens <= capacity * (1.0 - WATERMARK)

    def _shared(self, job: Job) -> int:
        """First prompt of the group, if a member has it here."""
        found = 0
        for member in job.group.jobs:
            here = member.engine is self and member.stage > Stage.QUEUED
            held = member.prompt if here else self.cache.peek(member.uid)
            if held and member is not job:
                found = max(found, min(held, member.script.turns[0].appended_tokens))
        return min(found, job.prompt)

    def _trim(self) -> None:
        if self._capacity is not None:
            room = self._capacity - self.active_tokens()
            if self.cache.total > room:
                self.cache.trim(max(room, 0.0))

    def _end_step(self) -> None:
        self._v += self._gain
        self._since = self._clock.now
        chunks, self._chunks = self._chunks or [], None
        for job, count in chunks:
            job.owed -= count
            self.pending -= count
            self.prefilled_tokens += count
            self.load.prefilled += count
        self._gain = 0.0
        finished = {job: None for job, _ in chunks if job.uncached == 0 and job.stage is Stage.PREFILLING}
        for job in finished:
            if job.handoff:
                self.inside -= 1
                job.source = self
                self._hooks.prefilled(job, self)
            else:
                self._begin_here(job)

    def _begin_here(self, job: Job) -> None:
        self.held -= job.tokens
        self._hooks.first_token(job, self)
        self._decode_here(job, job.tokens + 1, job.left - 1)

    def _decode_here(self, job: Job, context: int, left: int) -> None:
        """Join the decoding turns; `left` tokens to go."""
        at = self._v + (self._gain if self._chunks is not None else 0.0)
        job.done += job.left - left
        job.left = left
        job.joined_v = at
        job.joined_context = context
        job.stage = Stage.DECODING
        self._base += context - at
        self._order += 1
        heappush(self._running, (at + left * job.noise, self._order, job))

    def _land(self) -> None:
        """Hand-offs that have room now start to move, the first one first; then decode goes on."""
        while self.landing and self._room(self.landing[0].tokens):
            job = self.landing.popleft()
            job.stage = Stage.MOVING
            here = self.usable(job)
            self.cache.take(job.uid)
            self.held += job.tokens
            self._trim()
            seconds = transfer_seconds(self.table, job.tokens - here)
            self._clock.after(seconds, self._landed, (job, job.ticket))

    def _landed(self, arrival: tuple[Job, int]) -> None:
        job, ticket = arrival
        if job.ticket != ticket or job.engine is not self:
            return
        self._settle()
        source = job.source
        self.held -= job.tokens
        self._hooks.first_token(job, self)
        self._decode_here(job, job.tokens, job.left)
        if self._chunks is None:
            self._coast()
        if source is not None:
            source.release(job)

    def _finish_due(self) -> None:
        running = self._running
        while running and running[0][0] <= self._v + _NEAR:
            job = heappop(running)[2]
            self._base -= job.joined_context - job.joined_v
            if not running:
                self._base = self._v = 0.0
            job.done += job.left
            job.left = 0
            self._leave(job)

    def _leave(self, job: Job) -> None:
        """The turn is complete; its context stays as idle KV, up to what the next prompt drops."""
        del self.jobs[job]
        self.inside -= 1
        job.engine = None
        turn = job.script.turns[job.turn]
        kept = job.prompt + (turn.generated_tokens if turn.retained_tokens >= turn.generated_tokens else 0)
        self.cache.keep(job.uid, kept)
        self._trim()
        self._hooks.turn_done(job, self)
        self._hooks.left(self)

    def _preempt(self) -> None:
        """KV is full: the youngest turn starts again from its tokens, as soon as there is room."""
        if not self._running:
            return
        job = max(self._running, key=lambda entry: entry[1])[2]
        if len(self._running) == 1 and self.held <= _NEAR:
            raise SimulationError(f"the context of {job.name} outgrows the KV room of {self.uid}")
        self._take_out(job)
        self.preemptions += 1
        del self.jobs[job]
        self.inside -= 1
        job.ticket += 1
        job.tokens = job.prompt + job.done
        job.left = job.script.turns[job.turn].generated_tokens - job.done
        job.handoff = False
        self._enqueue(job, first=True)


def _reusable(job: Job) -> int:
    """Of a prompt after the first: its history but the share that is computed again anyway, or all that was sent."""
    if job.done:
        return job.prompt
    return int((1.0 - job.script.turns[job.turn].missed_share) * job.history)
