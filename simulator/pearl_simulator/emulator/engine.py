"""One emulated engine without its HTTP face: the loop of steps, hand-over of KV, pause, sleep and weights.

A step takes the time that the engine table says for what is in it, on the clock that was passed in; then each sequence
that is computed up to its last token gets the next one. Everything happens in one event loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pearl_planner.engine.model import transfer_seconds
from pearl_simulator.emulator import tokenizer, tokens
from pearl_simulator.emulator.blocks import BlockPool
from pearl_simulator.emulator.config import EngineConfig, believed_seconds
from pearl_simulator.emulator.errors import EngineDeadError
from pearl_simulator.emulator.handover import Handover
from pearl_simulator.emulator.metrics import EngineMetrics
from pearl_simulator.emulator.perturb import Perturbation
from pearl_simulator.emulator.scheduler import Scheduler, Step
from pearl_simulator.emulator.sequence import Sequence, State
from pearl_simulator.emulator.weights import Weights

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable

    from pearl_simulator.emulator.clock import Clock
    from pearl_simulator.emulator.peers import Offer, Peers

_REMOTE_FIELDS = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")
SLEEP_PARTS = ("weights", "kv_cache")


class Engine:
    """Serves sequences until stopped or dead. `start` needs a running event loop."""

    def __init__(  # noqa: PLR0913 - each one is a port
        self,
        config: EngineConfig,
        *,
        engine_id: str,
        clock: Clock,
        peers: Peers,
        draw: random.Random,
        perturbation: Perturbation | None = None,
        on_death: Callable[[], None] | None = None,
    ) -> None:
        self.config = config
        self.engine_id = engine_id
        self.perturbation = perturbation or Perturbation()
        self.pool = BlockPool(config.blocks, config.block_tokens, caching=config.prefix_caching)
        self.scheduler = Scheduler(config.limits, self.pool)
        self.metrics = EngineMetrics(config, self.pool.count)
        self.weights = Weights(self.perturbation, configured=config.weight_transfer)
        self.handover = Handover(config, engine_id, self.pool, clock, self.metrics)
        self.handover.on_change = self._wake
        self.dead = False
        self.asleep: set[str] = set()
        self.sleep_level = 0
        self.clock = clock
        self.draw = draw
        self._peers = peers
        self._on_death = on_death
        self._live: dict[str, list[Sequence]] = {}
        self._claims: dict[str, asyncio.Task[Offer | None]] = {}
        self._work = asyncio.Event()
        self._change = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._due = 0.0

    # -- life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to serve."""
        self._spawn(self._run())

    async def stop(self) -> None:
        """End quietly; whoever waits for an answer never gets it."""
        self.handover.close()
        tasks = [*self._tasks, *self._claims.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def die(self) -> None:
        """End as a crashed engine does: everybody inside gets an error, then the server goes."""
        if self.dead:
            return
        self.dead = True
        for sequence in self._everything():
            self._end(sequence, "error")
        if self._on_death is not None:
            self._on_death()

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- requests -----------------------------------------------------------------------------------------------

    def submit(self, sequences: list[Sequence]) -> None:
        """Take the sequences of one request in.

        Raises:
            EngineDeadError: nothing is served any more.
        """
        if self.dead:
            raise EngineDeadError
        for sequence in sequences:
            sequence.weights = self.weights.version
            self._live.setdefault(sequence.request_id, []).append(sequence)
            if sequence.kv_params and sequence.kv_params.get("do_remote_prefill") and self._complete(sequence):
                # From now on the holder keeps it for us, however long the queue here is.
                self._claims[sequence.internal_id] = asyncio.ensure_future(self._peers.claim(sequence.kv_params))
            self.scheduler.add(sequence)
        self._wake()

    def abort(self, request_ids: Iterable[str] | None = None) -> int:
        """End these requests, all without ids, with what they have; how many sequences there were."""
        chosen = (
            self._everything()
            if request_ids is None
            else [one for name in request_ids for one in self._live.get(name, ())]
        )
        for sequence in chosen:
            self._end(sequence, "abort")
        return len(chosen)

    def leave(self, sequences: list[Sequence]) -> None:
        """The client is gone: like an abort, but nobody counts it."""
        for sequence in sequences:
            if sequence.state is not State.FINISHED:
                self._end(sequence, "abort", counted=False)

    @property
    def load(self) -> int:
        """Sequences inside."""
        return len(self._everything())

    def _everything(self) -> list[Sequence]:
        return [one for some in self._live.values() for one in some]

    # -- steps --------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self.dead:
            step = self.scheduler.step(self._wants_fetch)
            self._start_fetches()
            if step is None:
                self.metrics.gauges(self.scheduler, self.pool)
                self._work.clear()
                await self._work.wait()
                self._due = self.clock.now()
                continue
            if self.weights.torn:
                self.die()
                return
            await self._pass_time(step)
            if not self.dead:
                self._finish_step(step)

    async def _pass_time(self, step: Step) -> None:
        table = self.config.table
        if table is None:
            await self.clock.sleep(0.0)
            return
        believed = believed_seconds(table, step)
        # Measured from when the step before was due, so that a slow host does not slow the engine down.
        self._due += self.perturbation.step_seconds(believed, self.draw)
        await self.clock.sleep(self._due - self.clock.now())

    def _finish_step(self, step: Step) -> None:
        now = self.clock.now()
        salt = tokens.weights_salt(self.weights.version)
        before = {id(one): one.generated for one, _ in step.parts}
        # Steps without duration need not be told apart, only the events of a stream do.
        per_step = 1 if self.config.table else self.config.stream_interval
        for sequence in self.scheduler.advance(step):
            for _ in range(per_step):
                self._next(sequence, salt)
                if sequence.finish_reason is not None:
                    break
            sequence.computed = len(sequence.tokens) - 1
            self.metrics.tokens(sequence, sequence.generated - before[id(sequence)], now)
            sequence.last_token = now
            if sequence.finish_reason is not None:
                self._end(sequence, sequence.finish_reason)
            else:
                sequence.put(self.config.stream_interval)
        self.metrics.step(step, self.scheduler)
        self.metrics.gauges(self.scheduler, self.pool)

    def _next(self, sequence: Sequence, salt: int) -> None:
        config, state = self.config, sequence.hashing
        if tokens.ends_here(state, salt, config.mean_answer_tokens) and not (
            sequence.sampling.ignore_eos or sequence.generated < sequence.sampling.min_tokens
        ):
            token = tokenizer.END
        else:
            token = tokens.next_token(state, salt)
        wanted = sequence.sampling.logprobs
        score = None
        if wanted is not None:
            likely = [one for one in tokens.candidates(state, salt, max(1, wanted)) if one[0] != token]
            score = [(token, tokens.top_logprob(state, salt)), *likely][: max(1, wanted)]
        sequence.append(token, self.weights.version, score)
        sequence.check_end(token, config.max_model_len)

    def _end(self, sequence: Sequence, reason: str, *, counted: bool = True) -> None:
        queue = self._live[sequence.request_id]
        queue.remove(sequence)
        if not queue:
            del self._live[sequence.request_id]
        waiting = sequence.state in (State.WAITING, State.FETCHING)
        blocks = self.scheduler.remove(sequence)
        sequence.finish_reason = reason
        if reason in ("stop", "length") and sequence.kv_params and sequence.kv_params.get("do_remote_decode"):
            sequence.kv_answer = self.handover.hold(sequence, blocks, self.weights.version)
        else:
            self.pool.release(blocks)
        claim = self._claims.pop(sequence.internal_id, None)
        if claim is not None and waiting and sequence.kv_params:
            self._spawn(self._peers.let_go(sequence.kv_params))
        if counted:
            self.metrics.finished(sequence, self.clock.now())
        sequence.put(self.config.stream_interval)
        self._wake()

    # -- KV of other engines ------------------------------------------------------------------------------------

    @staticmethod
    def _complete(sequence: Sequence) -> bool:
        params = sequence.kv_params or {}
        return bool(params.get("remote_block_ids")) and all(name in params for name in _REMOTE_FIELDS)

    def _wants_fetch(self, sequence: Sequence) -> int:
        if sequence.admitted is None:
            sequence.admitted = self.clock.now()
            self.metrics.admitted(sequence)
        params = sequence.kv_params
        if sequence.fetched or not params or not params.get("do_remote_prefill"):
            return 0
        sequence.fetched = True
        missing = len(sequence.prompt) - sequence.computed
        self.metrics.external(missing, 0)
        if not params.get("remote_block_ids"):
            self.weights.torn = True  # vLLM fails an assertion here, and that is its end
            return 0
        return missing if self._complete(sequence) else 0

    def _start_fetches(self) -> None:
        for sequence in self.scheduler.fetching:
            claim = self._claims.pop(sequence.internal_id, None)
            if claim is not None:
                self._spawn(self._fetch(sequence, claim))

    async def _fetch(self, sequence: Sequence, claim: asyncio.Task[Offer | None]) -> None:
        params = sequence.kv_params or {}
        offer = await claim
        seconds = 0.0
        if offer is not None and self.config.table is not None:
            seconds = transfer_seconds(self.config.table, sequence.external)
        await self.clock.sleep(seconds)
        if offer is not None:
            await self._peers.let_go(params)
        if sequence.state is not State.FETCHING:
            return
        if offer is None:
            self.metrics.failed_transfer()
            if not self.config.recompute_lost_kv:
                self._end(sequence, "error")
                return
        else:
            # What was fetched is what counts, even if it belongs to another prompt or to other weights.
            sequence.hashing = offer.hashing if offer.version == sequence.weights else offer.hashing ^ 1
            self.metrics.transferred(sequence.external, len(sequence.blocks), seconds)
            self.metrics.external(0, sequence.external)
        self.scheduler.fetched(sequence, arrived=offer is not None)
        self._wake()

    def claim(self, request_id: str) -> Offer | None:
        """See `peers.KvHolder`."""
        return None if self.dead else self.handover.claim(request_id)

    def let_go(self, request_id: str) -> None:
        """See `peers.KvHolder`."""
        self.handover.let_go(request_id)

    # -- pause, sleep, cache ------------------------------------------------------------------------------------

    async def pause(self, mode: str, *, clear_cache: bool = True) -> None:
        """Stop scheduling; returns when what `mode` waits for has happened. Held KV is waited for in every mode."""
        self.check_alive()
        if mode == "abort":
            self.abort()
        self.scheduler.admitting = False
        self.scheduler.frozen = mode == "keep"
        await self._until(lambda: not self.handover and (mode == "keep" or not self.scheduler.holding))
        if clear_cache:
            # What is frozen loses its KV and is computed again after `resume`.
            self.scheduler.throw_out_all()
            self.pool.forget()

    def resume(self) -> None:
        """Schedule again."""
        self.check_alive()
        self.scheduler.admitting, self.scheduler.frozen = True, False
        self._wake()

    @property
    def paused(self) -> bool:
        """Whether new requests only queue."""
        return not self.scheduler.admitting

    @property
    def sleeping(self) -> bool:
        """As vLLM says it: a paused engine counts as asleep."""
        return self.paused or bool(self.asleep)

    async def sleep(self, level: int, mode: str) -> None:
        """Pause, and give the device's memory away from level 1 on."""
        await self.pause(mode, clear_cache=level >= 1)
        if level >= 1:
            self.asleep, self.sleep_level = set(SLEEP_PARTS), level
            self.metrics.sleep_state(level)

    def wake(self, tags: list[str] | None) -> bool:
        """Take the memory of these parts back, all without tags; whether the engine is awake and serves."""
        self.check_alive()
        self.asleep -= set(SLEEP_PARTS if tags is None else tags)
        if self.asleep:
            return False
        self.sleep_level = 0
        self.metrics.sleep_state(0)
        self.resume()
        return True

    def reset_prefix_cache(self) -> bool:
        """Forget cached KV; False while any is held."""
        self.check_alive()
        return self.pool.forget()

    # -- waiting ------------------------------------------------------------------------------------------------

    def check_alive(self) -> None:
        """Raises EngineDeadError when nothing works any more."""
        if self.dead:
            raise EngineDeadError

    def _wake(self) -> None:
        self._work.set()
        self._change.set()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.check_alive()
            self._change.clear()
            await self._change.wait()
