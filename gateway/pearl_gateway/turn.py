"""One turn, from a prompt to its whole answer, through every loss of a worker.

route → (prefill elsewhere →) generate → log; a worker that dies, is reclaimed, drained or updated costs a resume
with prompt + what was generated, never a token. A turn ends with its whole answer or with a typed error.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import aclosing
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from pearl_api.names import Activity
from pearl_api.wire.gateway import SegmentReason
from pearl_gateway.engine import Span
from pearl_gateway.errors import (
    EngineClosedError,
    EngineRefusedError,
    EngineStalledError,
    EngineUnreachableError,
    GatewayError,
    try_later,
)
from pearl_gateway.groups import Groups
from pearl_gateway.router import Ask, Route, choose
from pearl_gateway.trajectory import Piece

if TYPE_CHECKING:
    from collections.abc import Callable

    from pearl_gateway.engine import Chunk, EngineClient
    from pearl_gateway.fleet import Busy, Fleet, Worker
    from pearl_gateway.settings import Limits
    from pearl_gateway.stops import StopWatch
    from pearl_gateway.tally import Tally
    from pearl_gateway.trajectory import Trajectory, Turn

_CLOSED_SECONDS = 0.25
_RETRY_SECONDS = (0.0, 0.05, 0.2, 0.5, 1.0)
"""Pauses before the next try while tries bring no token; the last one repeats."""
_STATE_SECONDS = 0.5
_PRIME_SECONDS = 10.0
"""Longest wait of a group's members for the one that computes their prompt."""
_STUCK_AFTER = 3
"""Hand-offs in a row that failed on one decode worker before its agent is told."""


class _HandoffFailed(Exception):  # noqa: N818 - a reason to go elsewhere, not an error anybody reports
    """The KV did not get across, or must not be used."""


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
        stop_watch: Callable[[Turn], StopWatch],
    ) -> None:
        self._fleet = fleet
        self._engine = engine
        self._limits = limits
        self._tally = tally
        self._clock = clock
        self._local_append_tokens = local_append_tokens
        self._measured_from = measured_from
        self._stop_watch = stop_watch
        self._groups = Groups()
        self._stuck: dict[str, int] = {}

    async def run(self, trajectory: Trajectory, turn: Turn) -> None:
        """Complete `turn`, or give it an error. Cancelling it stops the engine at once; what came stays."""
        primes = not trajectory.ids and await self._groups.wait_or_prime(trajectory.group, _PRIME_SECONDS)
        try:
            await self._run(trajectory, turn)
        finally:
            if primes:
                self._groups.primed(trajectory.group)

    async def _run(self, trajectory: Trajectory, turn: Turn) -> None:
        excluded: frozenset[str] = frozenset()
        fruitless = 0
        turn.error = None
        while not turn.complete:
            if _room(turn, self._limits.max_model_len) <= 0:
                turn.finish_reason = "length"
                break
            before = len(turn.token_ids)
            try:
                route = await self._wait_for_route(trajectory, turn, excluded)
                await asyncio.sleep(_RETRY_SECONDS[min(fruitless, len(_RETRY_SECONDS) - 1)])
                reason = await self._serve(trajectory, turn, route)
            except GatewayError as error:
                turn.error = error
                break
            except EngineRefusedError as error:
                turn.error = _refused(error)
                break
            if reason is SegmentReason.COMPLETE:
                break
            excluded = frozenset({route.worker} | ({route.prefill} if route.prefill else set()))
            fruitless = 0 if len(turn.token_ids) > before else fruitless + 1
            self._tally.resumes += 1
        turn.ended_at = self._clock()

    def forget_group(self, group: str) -> None:
        """The group is over; nobody will ask for its prompt again."""
        self._groups.forget(group)

    async def _wait_for_route(self, trajectory: Trajectory, turn: Turn, excluded: frozenset[str]) -> Route:
        deadline = self._clock() + self._limits.queue
        with self._tally.queued():
            while True:
                route = choose(self._fleet.candidates(), self._ask(trajectory, turn, excluded))
                if route is not None:
                    return route
                left = deadline - self._clock()
                if left <= 0:
                    raise try_later("NoWorker", f"no worker became ready within {self._limits.queue:.0f} s", 5.0)
                await self._fleet.wait_change(min(left, _CLOSED_SECONDS))

    def _ask(self, trajectory: Trajectory, turn: Turn, excluded: frozenset[str]) -> Ask:
        place = self._groups.place(trajectory.group)
        return Ask(
            prompt_tokens=len(turn.prompt) + len(turn.token_ids),
            cached_tokens=min(trajectory.cached_tokens, trajectory.common_prefix(turn.prompt)),
            home=trajectory.home,
            prefill_home=trajectory.prefill_home,
            group_home=place.home,
            group_prefill=place.prefill,
            local_append_tokens=self._local_append_tokens(),
            min_version=turn.min_version,
            excluded=excluded,
            bad_links=self._fleet.bad_links(),
        )

    async def _serve(self, trajectory: Trajectory, turn: Turn, route: Route) -> SegmentReason:
        """Try one route; the answer says why it ended. Only refusals raise."""
        worker = self._fleet.workers.get(route.worker)
        prefill = self._fleet.workers.get(route.prefill) if route.prefill else None
        if worker is None or (route.prefill and prefill is None):
            return SegmentReason.WORKER_LOST
        turn.route = route.kind
        draft = _Draft(trajectory, turn, worker, prefill)
        try:
            await self._generate(trajectory, turn, draft)
            reason = await self._after_abort(worker) if turn.finish_reason is None else SegmentReason.COMPLETE
        except _HandoffFailed:
            reason = SegmentReason.HANDOFF_FAILED
        except EngineClosedError:
            self._fleet.close_for(draft.called, _CLOSED_SECONDS)
            reason = SegmentReason.DRAINED
        except EngineStalledError:
            reason = SegmentReason.WORKER_LOST
        except EngineUnreachableError:
            if not draft.lost:
                self._fleet.eject(draft.called)
            reason = SegmentReason.WORKER_LOST
        except asyncio.CancelledError:
            draft.end(SegmentReason.CLIENT_LEFT)
            raise
        draft.end(reason)
        return reason

    async def _generate(self, trajectory: Trajectory, turn: Turn, draft: _Draft) -> None:
        worker = draft.worker
        body = _engine_request(turn, self._limits.max_model_len)
        prompt_tokens = len(body["token_ids"])
        uncached = prompt_tokens - (trajectory.cached_tokens if trajectory.home == worker.facts.uid else 0)
        # The decode slot is taken before the prefill starts, so that its KV does not wait for one.
        with self._fleet.busy(worker, 0 if draft.prefill else max(uncached, 0), draft.lose) as busy:
            if draft.prefill is not None:
                await self._hand_off(body, draft.prefill, draft)
            self._tally.prefilled_tokens += max(uncached, 0)
            self._remember(trajectory, draft)
            await self._stream(draft, body, busy)
            trajectory.cached_tokens = prompt_tokens + len(turn.token_ids) - draft.start

    async def _hand_off(self, body: dict[str, Any], prefill: Worker, draft: _Draft) -> None:
        """Prefill elsewhere and put the KV's address into `body`.

        Raises:
            EngineError: the prefill worker failed.
        """
        self._tally.handoffs += 1
        draft.called = prefill
        with self._fleet.busy(prefill, len(body["token_ids"]), draft.lose), self._tally.prefilling():
            if prefill.facts.url is None or draft.worker.facts.url is None:
                raise EngineUnreachableError("the worker has no address any more")
            call = asyncio.ensure_future(self._engine.prefill(prefill.facts.url, body, self._limits.prefill))
            draft.closers.append(call.cancel)
            try:
                done = await call
            except asyncio.CancelledError:
                if not draft.lost:
                    raise
                raise EngineUnreachableError("a worker of the pair is gone") from None
        self._fleet.served(prefill)
        draft.called = draft.worker
        draft.handed_at = self._clock()
        if done.version is not None:
            prefill.weight_version = done.version
        await self._learn_version(draft.worker)
        if done.version != draft.worker.weight_version and draft.worker.weight_version is not None:
            # The prefill is as good as any; the decode worker computes the prompt under its own weights.
            self._tally.handoff_failures += 1
            draft.prefill = None
            return
        draft.kv_version, draft.kv_sent = done.version, True
        body["kv_transfer_params"] = done.kv_transfer_params

    async def _learn_version(self, worker: Worker) -> None:
        """Ask the agent for the loaded version where no answer has told it yet."""
        if worker.weight_version is None and worker.facts.agent_url is not None:
            state = await self._engine.agent_state(worker.facts.agent_url, _STATE_SECONDS)
            worker.weight_version = state.get("weightVersion") if state is not None else None

    async def _stream(self, draft: _Draft, body: dict[str, Any], busy: Busy) -> None:
        turn, url = draft.turn, draft.worker.facts.url
        if url is None:
            raise EngineUnreachableError("the worker has no address any more")
        stops = await self._watch_stops(draft, body)
        chunks = self._engine.generate(
            url,
            body,
            first_seconds=self._first_token_by(draft),
            stall_seconds=self._limits.stall,
            on_open=draft.closers.append,
        )
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    if draft.first:
                        self._first_chunk(turn, draft, busy)
                    draft.add(chunk)
                    if chunk.finish_reason is not None:
                        self._final_chunk(draft, chunk)
                    if stops is not None and await stops.check():
                        return
        except EngineStalledError:
            if draft.first and draft.kv_sent:
                await self._handoff_stalled(draft)
            raise

    async def _watch_stops(self, draft: _Draft, body: dict[str, Any]) -> StopWatch | None:
        if not draft.start or not draft.turn.sampling.get("stop"):
            return None
        # From the first resume on, stop strings may cross the seam: they are found in the joined text instead.
        body["sampling_params"] = {**body["sampling_params"], "stop": []}
        stops = self._stop_watch(draft.turn)
        await stops.begin()
        return stops

    def _first_token_by(self, draft: _Draft) -> float:
        """Seconds until the first token must be there; raises _HandoffFailed if the KV is too old to be sent."""
        if not draft.kv_sent or draft.prefill is None:
            return self._limits.stall
        borrowed, age = draft.prefill.facts.borrowed, self._clock() - draft.handed_at
        if age > self._limits.kv_age_share * self._limits.lease(borrowed=borrowed):
            self._tally.handoff_failures += 1
            raise _HandoffFailed
        return self._limits.fetch_by(borrowed=borrowed, age=age)

    def _first_chunk(self, turn: Turn, draft: _Draft, busy: Busy) -> None:
        draft.first = False
        self._groups.primed(draft.trajectory.group)
        if draft.trajectory.first_version is None:
            draft.trajectory.first_version = draft.worker.weight_version
        busy.prefilled()
        self._fleet.served(draft.worker)
        if turn.first_token_at is None:
            turn.first_token_at = self._clock()
        if draft.prefill is not None:
            self._fleet.mend_link(draft.prefill, draft.worker)
            self._stuck.pop(draft.worker.facts.uid, None)

    def _final_chunk(self, draft: _Draft, chunk: Chunk) -> None:
        turn = draft.turn
        if chunk.spans:
            draft.worker.weight_version = chunk.spans[-1].version
            if draft.kv_version is not None and chunk.spans[0].version != draft.kv_version:
                self._mixed(draft)
        if chunk.finish_reason != "abort":
            turn.finish_reason, turn.stop_reason = chunk.finish_reason, chunk.stop_reason

    def _mixed(self, draft: _Draft) -> None:
        """The decode worker got new weights between the check and the request: KV of v was used under v'."""
        self._tally.mixed_versions += 1
        self._tally.handoff_failures += 1
        if draft.turn.shown > draft.start:
            return  # a stream has passed tokens on; the segments say under which weights they were made
        self._tally.wasted_tokens += len(draft.turn.token_ids) - draft.start
        draft.turn.cut(draft.start)
        raise _HandoffFailed

    async def _handoff_stalled(self, draft: _Draft) -> None:
        """The decode worker could not fetch the KV in time although both look healthy."""
        self._tally.handoff_failures += 1
        assert draft.prefill is not None  # noqa: S101 - the caller checked; this is for the type checker
        self._fleet.fail_link(draft.prefill, draft.worker)
        uid = draft.worker.facts.uid
        self._stuck[uid] = self._stuck.get(uid, 0) + 1
        if self._stuck[uid] >= _STUCK_AFTER and draft.worker.facts.agent_url:
            self._stuck[uid] = 0
            detail = f"{_STUCK_AFTER} hand-offs in a row did not arrive, the last from {draft.prefill.facts.pod}"
            await self._engine.report(draft.worker.facts.agent_url, "stuckTransfers", detail)
        raise _HandoffFailed

    def _remember(self, trajectory: Trajectory, draft: _Draft) -> None:
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
        state = await self._engine.agent_state(facts.agent_url, _STATE_SECONDS) if facts.agent_url else None
        if state is not None:
            loan = state.get("loan") or {}
            if loan.get("fenced"):
                return SegmentReason.RECLAIMED
            wanted = state.get("wantedVersion")
            if wanted is not None and wanted != worker.weight_version:
                return SegmentReason.WEIGHTS_UPDATED
        return SegmentReason.DRAINED if facts.activity is not Activity.ACTIVE else SegmentReason.WEIGHTS_UPDATED


class _Draft:
    """One call of a turn to a worker while it runs, and the piece of the answer that it brings."""

    __slots__ = (
        "called",
        "closers",
        "first",
        "handed_at",
        "kv_sent",
        "kv_version",
        "lost",
        "prefill",
        "spans",
        "start",
        "trajectory",
        "turn",
        "version_before",
        "worker",
    )

    def __init__(self, trajectory: Trajectory, turn: Turn, worker: Worker, prefill: Worker | None) -> None:
        self.trajectory = trajectory
        self.turn = turn
        self.worker = worker
        self.prefill = prefill
        self.called = prefill or worker
        self.start = len(turn.token_ids)
        self.first = True
        self.lost = False
        self.handed_at = 0.0
        self.kv_sent = False
        self.kv_version: int | None = None
        self.version_before = worker.weight_version
        self.spans: list[Span] | None = None
        self.closers: list[Callable[[], object]] = []

    def lose(self) -> None:
        """A worker of this call is gone: break whatever waits for it."""
        self.lost = True
        for close in self.closers:
            close()

    def add(self, chunk: Chunk) -> None:
        """Tokens arrived."""
        if chunk.spans is not None:
            self.spans = chunk.spans
        self.turn.add(chunk)

    def end(self, reason: SegmentReason) -> None:
        """Write the piece into the turn, unless nothing came."""
        end = len(self.turn.token_ids)
        if end == self.start:
            return
        if self.spans:
            spans = [Span(one.version, one.start + self.start, min(one.end + self.start, end)) for one in self.spans]
        else:
            # The engine died before it told; a weight update would have ended the call otherwise.
            known = self.version_before if self.version_before == self.worker.weight_version else None
            spans = [Span(known, self.start, end)]
        pod = self.worker.facts.pod
        prefill_pod = self.prefill.facts.pod if self.prefill is not None else None
        kept = tuple(span for span in spans if span.start < span.end)
        self.turn.pieces.append(Piece(pod, prefill_pod, kept, self.start, end, reason))


def _engine_request(turn: Turn, max_model_len: int) -> dict[str, Any]:
    """The engine's request for what is still missing of the answer."""
    done = len(turn.token_ids)
    sampling = dict(turn.sampling)
    sampling["max_tokens"] = _room(turn, max_model_len)
    if sampling.get("min_tokens"):
        sampling["min_tokens"] = max(0, sampling["min_tokens"] - done)
    if sampling.get("logprobs") is None and turn.keep_logprobs:
        sampling["logprobs"] = 0
    if done and sampling.get("seed") is not None:
        sampling["seed"] = derived_seed(sampling["seed"], len(turn.pieces))
    return {**turn.extra, "token_ids": turn.prompt + turn.token_ids, "sampling_params": sampling}


def _room(turn: Turn, max_model_len: int) -> int:
    """Tokens that the answer may still grow by."""
    room = max_model_len - len(turn.prompt)
    wanted = turn.sampling.get("max_tokens")
    return int(room if wanted is None else min(wanted, room)) - len(turn.token_ids)


def derived_seed(seed: int, segment: int) -> int:
    """The seed of a resumed segment: the same one would repeat the draws that were already used."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{segment}".encode()).digest()[:4]) & 0x7FFFFFFF


def _refused(error: EngineRefusedError) -> GatewayError:
    return GatewayError(error.status or HTTPStatus.BAD_REQUEST, "Refused", str(error))
