"""One turn, from a prompt to its whole answer, through every loss of a worker.

route → (prefill elsewhere →) generate → log; a worker that dies, is reclaimed, drained or updated costs a resume
with prompt + what was generated, never a token. A turn ends with its whole answer or with a typed error.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from pearl_api.names import Activity
from pearl_api.wire.gateway import SegmentReason
from pearl_gateway.draft import Draft, bound_by_grammar, engine_request, room, salt_with_version
from pearl_gateway.engine import TURN_WAITS_SECONDS
from pearl_gateway.errors import (
    EngineClosedError,
    EngineFaultError,
    EngineRefusedError,
    EngineStalledError,
    EngineUnreachableError,
    EngineWeightsError,
    GatewayError,
    try_later,
)
from pearl_gateway.handoff import HandoffFailed, Handoffs
from pearl_gateway.places import Places
from pearl_gateway.tries import Tries

if TYPE_CHECKING:
    from collections.abc import Callable

    from pearl_gateway.chunks import Span
    from pearl_gateway.engine import EngineClient
    from pearl_gateway.fleet import Busy, Fleet, Worker
    from pearl_gateway.groups import Groups
    from pearl_gateway.router import Route
    from pearl_gateway.settings import Limits
    from pearl_gateway.stops import StopWatch
    from pearl_gateway.tally import Tally
    from pearl_gateway.trajectory import Trajectory
    from pearl_gateway.turn_state import Turn
    from pearl_gateway.versions import Accepted, Staleness

_LOG = logging.getLogger(__name__)

_CLOSED_SECONDS = 0.25
_PRIME_SECONDS = 10.0
"""Longest wait of a group's members for the one that computes their prompt."""


class Runner:
    """Runs turns; one per process."""

    def __init__(  # noqa: PLR0913 - its parts are made elsewhere
        self,
        *,
        fleet: Fleet,
        engine: EngineClient,
        limits: Limits,
        tally: Tally,
        clock: Callable[[], float],
        local_append_tokens: Callable[[], int],
        measured_from: Callable[[], str],
        staleness: Callable[[], Staleness],
        keeps_kv: Callable[[], bool],
        stop_watch: Callable[[Turn], StopWatch],
        groups: Groups,
    ) -> None:
        self._fleet = fleet
        self._engine = engine
        self._limits = limits
        self._tally = tally
        self._clock = clock
        self._measured_from = measured_from
        self._keeps_kv = keeps_kv
        self._stop_watch = stop_watch
        self._groups = groups
        self._places = Places(
            fleet=fleet,
            groups=groups,
            tally=tally,
            clock=clock,
            queue_seconds=limits.queue_seconds,
            worker_turns=limits.worker_turns,
            prefill_queue_tokens=limits.prefill_queue_tokens,
            local_append_tokens=local_append_tokens,
            staleness=staleness,
        )
        self._handoffs = Handoffs(
            fleet=fleet, engine=engine, limits=limits, tally=tally, clock=clock, prefilled=self._places.prefilled
        )

    async def run(self, trajectory: Trajectory, turn: Turn) -> None:
        """Complete `turn`, or give it an error. Cancelling it stops the engine at once; what came stays."""
        with self._tally.queued():
            primes = not trajectory.ids and await self._groups.wait_or_prime(trajectory.group, _PRIME_SECONDS)
        try:
            await self._run(trajectory, turn)
        finally:
            if primes:
                self._groups.primed(trajectory.group)

    async def _run(self, trajectory: Trajectory, turn: Turn) -> None:
        turn.error = None
        try:
            await self._complete(trajectory, turn)
        except GatewayError as error:
            _LOG.warning("turn of %s given back: %s: %s", trajectory.id, error.error, error.message)
            turn.error = error
        except EngineRefusedError as error:
            turn.error = error.passed_on()
        turn.ended_at = self._clock()

    async def _complete(self, trajectory: Trajectory, turn: Turn) -> None:
        """Try route after route until the answer is whole.

        Raises:
            GatewayError: nothing serves it (retryable).
            EngineRefusedError: the request itself is wrong.
        """
        tries = Tries(self._clock())
        if not turn.complete and bound_by_grammar(turn):
            self._begin_anew(turn)
        while not turn.complete:
            if room(turn, self._limits.max_model_len) <= 0:
                turn.finish_reason = "length"
                return
            if pause := tries.pause():
                await asyncio.sleep(pause)
            before, turn.fault = len(turn.token_ids), None
            async with self._places.place(trajectory, turn, tries.excluded) as (route, weights):
                reason = await self._serve(trajectory, turn, route, weights)
            if reason is SegmentReason.COMPLETE:
                return
            progress = len(turn.token_ids) > before
            if progress and bound_by_grammar(turn):
                progress = False
                if self._begin_anew(turn):
                    message = "a structured answer cannot be continued elsewhere: repeat the request for a new one"
                    raise try_later("StructureInterrupted", message, 0.5)
            if progress or reason is not SegmentReason.DRAINED:
                self._tally.resumes += 1
            tries.note(route, reason, self._clock(), progress=progress, fault=turn.fault)
            tries.check(self._clock(), self._limits.queue_seconds)

    def _begin_anew(self, turn: Turn) -> bool:
        """Drop what came of an answer; whether a stream has passed some of it on."""
        shown, turn.shown = turn.shown, 0
        self._tally.wasted_tokens += len(turn.token_ids)
        turn.cut(0)
        turn.pieces.clear()
        return shown > 0

    def forget_group(self, group: str) -> None:
        """The group is over; nobody will ask for its prompt again."""
        self._groups.forget(group)

    def forget_workers(self) -> None:
        """Drop what is remembered of workers that are gone."""
        self._handoffs.forget_workers()

    async def _serve(self, trajectory: Trajectory, turn: Turn, route: Route, weights: Accepted) -> SegmentReason:
        """Try one route; the answer says why it ended. Only refusals raise."""
        worker = self._fleet.workers.get(route.worker)
        prefill = self._fleet.workers.get(route.prefill) if route.prefill else None
        if worker is None or (route.prefill and prefill is None):
            return SegmentReason.WORKER_LOST
        turn.route, turn.degraded = route.kind, route.cause
        trajectory.routed(turn, self._fleet.changes)
        draft = Draft(trajectory, turn, worker, prefill, weights)
        try:
            await self._generate(trajectory, turn, draft)
            reason = await self._after_abort(worker) if turn.finish_reason is None else SegmentReason.COMPLETE
        except HandoffFailed:
            reason = SegmentReason.HANDOFF_FAILED
        except EngineWeightsError as error:
            self._fleet.saw_version(draft.called, error.version)
            reason = SegmentReason.HANDOFF_FAILED if draft.kv_sent else SegmentReason.DRAINED
        except EngineClosedError:
            self._fleet.close_for(draft.called, _CLOSED_SECONDS)
            reason = SegmentReason.DRAINED
        except EngineStalledError:
            reason = SegmentReason.WORKER_LOST
        except EngineUnreachableError as error:
            turn.fault = str(error) if isinstance(error, EngineFaultError) else None
            if not draft.lost:
                _LOG.warning("%s failed on a turn, ejected until it answers: %s", draft.called.facts.pod, error)
                self._fleet.eject(draft.called)
            reason = SegmentReason.WORKER_LOST
        except asyncio.CancelledError:
            draft.end(SegmentReason.CLIENT_LEFT, crosses=self._keeps_kv())
            raise
        draft.end(reason, crosses=self._keeps_kv())
        return reason

    async def _generate(self, trajectory: Trajectory, turn: Turn, draft: Draft) -> None:
        worker = draft.worker
        body = engine_request(turn, self._limits.max_model_len)
        if self._keeps_kv():
            version = trajectory.first_version
            if version is None and worker.weight_version is not None:
                # It may have newer weights by now, and must not find KV of the older ones.
                draft.weights = draft.weights.exactly(worker.weight_version)
            salt_with_version(body, worker.weight_version if version is None else version)
        prompt_tokens = len(body["token_ids"])
        uncached = prompt_tokens - (trajectory.cached_tokens if trajectory.home == worker.facts.uid else 0)
        # The decode slot is taken before the prefill starts, so that its KV does not wait for one.
        with self._fleet.busy(worker, 0 if draft.prefill else max(uncached, 0), draft.lose) as busy:
            if draft.prefill is not None:
                await self._handoffs.hand_over(body, draft.prefill, draft)
            self._tally.prefilled_tokens += max(uncached, 0)
            self._remember(trajectory, draft)
            await self._stream(draft, body, busy)
            trajectory.cached_tokens = prompt_tokens + len(turn.token_ids) - draft.start

    async def _stream(self, draft: Draft, body: dict[str, Any], busy: Busy) -> None:
        turn, url = draft.turn, draft.worker.facts.url
        if url is None:
            raise EngineUnreachableError("the worker has no address any more")
        stops = await self._watch_stops(draft, body)
        chunks = self._engine.generate(
            url,
            body,
            first_seconds=self._handoffs.first_token_by(draft),
            stall_seconds=self._limits.stall_seconds,
            on_open=draft.closers.append,
            on_version=lambda version: self._told(draft, version),
            weights=draft.weights.exactly(draft.kv_version),
        )
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    if draft.first:
                        self._first_chunk(turn, draft, busy)
                    draft.add(chunk)
                    if chunk.spans:
                        self._saw_spans(draft, chunk.spans)
                    if stops is not None and await stops.check():
                        return
                    # Not before the check: a turn that is stopped in it would pass for complete.
                    if chunk.finish_reason not in (None, "abort"):
                        draft.turn.finish_reason, draft.turn.stop_reason = chunk.finish_reason, chunk.stop_reason
        except EngineStalledError:
            if draft.first and draft.kv_sent:
                await self._handoffs.stalled(draft)
            raise

    def _told(self, draft: Draft, version: int) -> None:
        draft.told = version
        self._fleet.saw_version(draft.worker, version)

    async def _watch_stops(self, draft: Draft, body: dict[str, Any]) -> StopWatch | None:
        if not draft.start or not draft.turn.sampling.get("stop"):
            return None
        # From the first resume on, stop strings may cross the seam: they are found in the joined text instead.
        body["sampling_params"] = {**body["sampling_params"], "stop": []}
        stops = self._stop_watch(draft.turn)
        await stops.begin()
        return stops

    def _first_chunk(self, turn: Turn, draft: Draft, busy: Busy) -> None:
        draft.first = False
        self._groups.primed(draft.trajectory.group)
        if draft.trajectory.first_version is None:
            draft.trajectory.first_version = draft.worker.weight_version
        busy.prefilled()
        self._fleet.served(draft.worker)
        if turn.first_token_at is None:
            turn.first_token_at = self._clock()
        if draft.prefill is not None:
            self._handoffs.arrived(draft.prefill, draft.worker)

    def _saw_spans(self, draft: Draft, spans: list[Span]) -> None:
        self._fleet.saw_version(draft.worker, spans[-1].version)
        if draft.kv_version not in (None, spans[0].version) and not self._keeps_kv():
            self._handoffs.mixed(draft)

    def _remember(self, trajectory: Trajectory, draft: Draft) -> None:
        if trajectory.first_version is None and self._measured_from() == "Dispatch":
            trajectory.first_version = draft.worker.weight_version
        if trajectory.home != draft.worker.facts.uid:
            trajectory.home, trajectory.cached_tokens = draft.worker.facts.uid, 0
        if draft.prefill is not None:
            trajectory.prefill_home = draft.prefill.facts.uid
        self._groups.remember(trajectory.group, draft.worker, draft.prefill)

    async def _after_abort(self, worker: Worker) -> SegmentReason:
        """Why an engine gave back an unfinished answer, as its agent or its labels say."""
        facts = worker.facts
        state = await self._engine.agent_state(facts.agent_url, TURN_WAITS_SECONDS) if facts.agent_url else None
        if state is not None:
            loan = state.get("loan") or {}
            if loan.get("fenced"):
                return SegmentReason.RECLAIMED
            wanted = state.get("wantedVersion")
            if wanted is not None and wanted != worker.weight_version:
                return SegmentReason.WEIGHTS_UPDATED
        return SegmentReason.DRAINED if facts.activity is not Activity.ACTIVE else SegmentReason.WEIGHTS_UPDATED
