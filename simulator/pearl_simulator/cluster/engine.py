"""One simulated engine: continuous batching, prefill in steps, KV room, prefix cache, hand-offs.

The last prefill step of a prompt yields the first token, so r - 1 steps follow; after a hand-off the decode worker
computes the last prompt token again and r steps follow. A turn that arrives while only decode runs starts its prefill
at once (half a step early); one that ends inside a mixed step ends with it (half a step late).

KV: a prompt is admitted when its tokens fit beside what is active (1 % stays free unless the worker is empty); idle
contexts are evicted for it. When decoding contexts outgrow the room, the youngest turn is preempted and computed again.
Members of a group share their first prompt where one of them has it; each is counted with its own copy.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import TYPE_CHECKING, Protocol

from pearl_planner.engine.model import decode_seconds, prefill_seconds, transfer_seconds
from pearl_planner.types import Role
from pearl_simulator.cluster.cache import PrefixCache
from pearl_simulator.cluster.clock import SimulationError
from pearl_simulator.cluster.decoding import NEAR, Decoding, Load
from pearl_simulator.cluster.jobs import Stage
from pearl_simulator.cluster.prefilling import Prefilling

if TYPE_CHECKING:
    from pearl_simulator.cluster.clock import Clock
    from pearl_simulator.cluster.jobs import Job
    from pearl_simulator.types import Calibration

WATERMARK = 0.01
"""Share of the KV room that admission leaves free for growth, as engines do."""


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


class Engine:
    """Serves turns from `submit` or `offer` until `Hooks.turn_done`."""

    __slots__ = (
        "_capacity",
        "_clock",
        "_decode",
        "_held",
        "_hooks",
        "_landing",
        "_planned",
        "_prefill",
        "_token",
        "cache",
        "inside",
        "jobs",
        "load",
        "preemptions",
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
        """Requests: those of `jobs` but without pinned KV of turns that went on."""
        self.role: Role | None = None
        """What the gateway routes to it; None = nothing, for good or while it drains."""
        self.load = Load()
        self.preemptions = 0
        self._clock = clock
        self._hooks = hooks
        self._capacity = calibration.table.kv_capacity_tokens
        self._decode = Decoding(calibration)
        self._prefill = Prefilling(calibration)
        self._landing: deque[Job] = deque()
        self._held = 0.0
        """KV of prompts in prefill, pinned, or on their way here."""
        self._token = 0
        """Of the valid event of this engine."""
        self._planned = inf
        """When it comes, while only decode runs."""

    @property
    def pending(self) -> int:
        """Prompt tokens that wait for their prefill, or are in it."""
        return self._prefill.pending

    @property
    def prefilled_tokens(self) -> int:
        """All that were computed here."""
        return self._prefill.tokens

    @property
    def queued(self) -> int:
        """Turns that wait for their prefill, or for room."""
        return len(self._prefill.queue) + len(self._landing)

    def usable(self, job: Job) -> int:
        """Tokens of the prompt whose KV is here and may be used."""
        if job.turn == 0 and not job.done:
            return max(self.cache.peek(job.uid), self._shared(job))
        return min(self.cache.peek(job.uid), _reusable(job))

    def expected_seconds(self, job: Job, generated: float) -> float:
        """Until a turn of so many tokens would be done here, roughly: what waits, its prefill, its decode."""
        new = self._prefill.pending + job.tokens - self.usable(job)
        count = len(self._decode.running) + 1
        context = (self._decode.contexts() + job.tokens) / count
        return prefill_seconds(self.table, new, 0.0) + generated * decode_seconds(self.table, count, context)

    # ---- what the gateway does -----

    def submit(self, job: Job) -> None:
        """Prefill a prompt here: `job.tokens`; then `job.left` tokens here, unless it is handed on."""
        self._settle()
        self._enqueue(job, first=False)
        self._go()

    def offer(self, job: Job) -> None:
        """A prompt that was prefilled on `job.source` wants to decode here; waits for room there."""
        job.stage = Stage.LANDING
        self._enter(job)
        self._landing.append(job)
        self._settle()
        self._go()

    def keep_here(self, job: Job) -> None:
        """A prompt of a hand-off decodes where it was prefilled, since nothing else does; called in `prefilled`."""
        job.handoff = False
        job.source = None
        self.inside += 1
        self._begin(job)

    def remove(self, job: Job) -> None:
        """Take a turn out, wherever it is; `job.done` says what was generated. Its KV is gone from here.

        Raises:
            SimulationError: it is not here, or only its pinned KV is.
        """
        if job not in self.jobs or job.engine is not self:
            raise SimulationError(f"{job.name} is not on {self.uid}")
        self._settle()
        self._take_out(job)
        self._exit(job)
        if job.source is not None:
            job.source.release(job)
        self._go()

    def release(self, job: Job) -> None:
        """The pinned KV of a hand-off is free: it arrived, or is not wanted any more."""
        if job not in self.jobs:
            return
        del self.jobs[job]
        job.source = None
        self._settle()
        self._held -= job.tokens
        self.cache.keep(job.uid, job.tokens)
        self._trim()
        self._hooks.left(self)
        self._go()

    def stop(self) -> list[Job]:
        """The engine is gone: everything inside, oldest first, taken out."""
        self._settle()
        self._void()
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
        self._landing.clear()
        self._decode.clear()
        self._prefill.clear()
        self.cache.clear()
        self.inside, self._held = 0, 0.0
        return jobs

    # ---- events -----

    def _go(self) -> None:
        """What comes next: a step with prefill, or decode until the next end; nothing while a step runs."""
        if self._landing:
            self._land()
        prefill = self._prefill
        if prefill.chunks is not None:
            return
        if prefill.partial is not None or prefill.queue:
            seconds = prefill.start(
                self._next_admitted, self._decode, self._clock.now, alone=self.role is not Role.DECODE
            )
            if seconds is not None:
                self._void()
                self.load.add(seconds, len(self._decode.running), prefill.gain)
                self._clock.after(seconds, self._wake, self._token)
                return
        self._coast()

    def _coast(self) -> None:
        """Decode only, until the next end, or until the KV is full."""
        decode = self._decode
        if not decode.running:
            self._void()
            return
        room = None if self._capacity is None else self._capacity - decode.contexts() - self._held
        due = decode.plan(self._clock.now, room)
        if due < self._planned:  # otherwise the wake that is planned comes first, and plans again
            self._void()
            self._planned = due
            self._clock.at(due, self._wake, self._token)

    def _void(self) -> None:
        """The event that was planned is not valid any more."""
        self._token += 1
        self._planned = inf

    def _wake(self, token: int) -> None:
        if token != self._token:
            return
        self._planned = inf
        decode = self._decode
        if self._prefill.chunks is not None:
            self._end_step()
        else:
            self._settle()
            if decode.v < decode.target - NEAR:  # others joined since this was planned
                self._coast()
                return
            decode.v = decode.target
            if decode.overflows:
                self._preempt()
        while (job := decode.ended()) is not None:
            self._leave(job)
        self._go()

    def _settle(self) -> None:
        if self._prefill.chunks is None:
            self._decode.settle(self._clock.now, self.load)

    def _end_step(self) -> None:
        before = self._prefill.tokens
        self._decode.v += self._prefill.gain
        self._decode.since = self._clock.now
        for job in self._prefill.end():
            if job.handoff:
                self.inside -= 1
                job.source = self
                self._hooks.prefilled(job, self)
            else:
                self._begin(job)
        self.load.prefilled += self._prefill.tokens - before

    def _begin(self, job: Job) -> None:
        """A prompt that is computed here decodes here; its first token is there."""
        self._held -= job.tokens
        self._hooks.first_token(job, self)
        self._decode.join(job, job.tokens + 1, job.left - 1, self._prefill.gain)

    def _land(self) -> None:
        """Hand-offs that have room now start to move, the first one first."""
        while self._landing and self._room(self._landing[0].tokens):
            job = self._landing.popleft()
            job.stage = Stage.MOVING
            here = self.usable(job)
            self._hold(job)
            seconds = transfer_seconds(self.table, job.tokens - here)
            self._clock.after(seconds, self._landed, (job, job.ticket))

    def _landed(self, arrival: tuple[Job, int]) -> None:
        job, ticket = arrival
        if job.ticket != ticket or job.engine is not self:
            return
        self._settle()
        source = job.source
        self._held -= job.tokens
        self._hooks.first_token(job, self)
        self._decode.join(job, job.tokens, job.left, self._prefill.gain)
        if self._prefill.chunks is None:
            self._coast()
        if source is not None:
            source.release(job)

    def _leave(self, job: Job) -> None:
        """The turn is complete; its context stays as idle KV, up to what the next prompt drops."""
        self._exit(job)
        turn = job.script.turns[job.turn]
        kept = job.prompt + (turn.generated_tokens if turn.retained_tokens >= turn.generated_tokens else 0)
        self.cache.keep(job.uid, kept)
        self._trim()
        self._hooks.turn_done(job, self)
        self._hooks.left(self)

    def _preempt(self) -> None:
        """KV is full: the youngest turn starts again from its tokens, as soon as there is room."""
        job = self._decode.youngest()
        if len(self._decode.running) == 1 and self._held <= NEAR:
            raise SimulationError(f"the context of {job.name} outgrows the KV room of {self.uid}")
        self._take_out(job)
        self._exit(job)
        self.preemptions += 1
        job.tokens = job.prompt + job.done
        job.left = job.script.turns[job.turn].generated_tokens - job.done
        job.handoff = False
        self._enqueue(job, first=True)

    # ---- who is inside, and its KV -----

    def _enter(self, job: Job) -> None:
        job.engine = self
        self.jobs[job] = None
        self.inside += 1

    def _exit(self, job: Job) -> None:
        del self.jobs[job]
        self.inside -= 1
        job.engine = None
        job.ticket += 1

    def _enqueue(self, job: Job, *, first: bool) -> None:
        self._enter(job)
        self._prefill.enqueue(job, job.tokens - self.usable(job), first=first)

    def _take_out(self, job: Job) -> None:
        """Undo what a turn holds here, by its stage."""
        if job.stage is Stage.DECODING:
            self._decode.leave(job, self._prefill.steps_made(self._clock.now))
        elif job.stage is Stage.LANDING:
            self._landing.remove(job)
        else:
            if job.stage is not Stage.QUEUED:
                self._held -= job.tokens
            if job.stage is not Stage.MOVING:
                self._prefill.take_out(job)

    def _next_admitted(self) -> Job | None:
        """The prompt in progress, or the next of the queue if it has room."""
        prefill = self._prefill
        if prefill.partial is not None or not prefill.queue:
            return prefill.partial
        job = prefill.queue[0][2]
        if not self._room(job.tokens):
            return None
        prefill.admit(job, self.usable(job))
        self._hold(job)
        return job

    def _hold(self, job: Job) -> None:
        """Its KV is active from now on."""
        self.cache.take(job.uid)
        self._held += job.tokens
        self._trim()

    def _active_tokens(self) -> float:
        """KV that cannot be evicted."""
        return self._decode.contexts() + self._held

    def _room(self, tokens: int) -> bool:
        capacity = self._capacity
        if capacity is None:
            return True
        active = self._active_tokens()
        if active <= NEAR:
            if tokens > capacity:
                raise SimulationError(f"a prompt of {tokens} tokens does not fit the KV room of {capacity} tokens")
            return True
        return active + tokens <= capacity * (1.0 - WATERMARK)

    def _trim(self) -> None:
        if self._capacity is not None:
            room = self._capacity - self._active_tokens()
            if self.cache.total > room:
                self.cache.trim(max(room, 0.0))

    def _shared(self, job: Job) -> int:
        """First prompt of the group, if a member has it here."""
        found = 0
        for member in job.group.jobs:
            here = member.engine is self and member.stage > Stage.QUEUED
            held = member.prompt if here else self.cache.peek(member.uid)
            if held and member is not job:
                found = max(found, min(held, member.script.turns[0].appended_tokens))
        return min(found, job.prompt)


def _reusable(job: Job) -> int:
    """Of a prompt after the first: its history but the share that is computed again anyway, or all that was sent."""
    if job.done:
        return job.prompt
    return int((1.0 - job.script.turns[job.turn].missed_share) * job.history)
