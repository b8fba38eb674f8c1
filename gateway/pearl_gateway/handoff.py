"""Prefill on one worker, decode on another: handing KV over within its lease, and what is done when it does not arrive.

KV that is too old is never sent: after its lease an engine answers 200 with wrong tokens.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pearl_gateway.engine import TURN_WAITS_SECONDS
from pearl_gateway.errors import EngineUnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pearl_gateway.draft import Draft
    from pearl_gateway.engine import EngineClient, Prefilled
    from pearl_gateway.fleet import Fleet, Worker
    from pearl_gateway.settings import Limits
    from pearl_gateway.tally import Tally

_STUCK_AFTER = 3
"""Hand-offs in a row that failed on one decode worker before its agent is told."""


class HandoffFailed(Exception):  # noqa: N818 - a reason to go elsewhere, not an error anybody reports
    """The KV did not get across, or must not be used."""


class Handoffs:
    """All hand-offs of this process; `prefilled` is called when a prefill worker has room again."""

    def __init__(  # noqa: PLR0913 - its parts are made elsewhere
        self,
        *,
        fleet: Fleet,
        engine: EngineClient,
        limits: Limits,
        tally: Tally,
        clock: Callable[[], float],
        prefilled: Callable[[], None],
    ) -> None:
        self._fleet = fleet
        self._engine = engine
        self._limits = limits
        self._tally = tally
        self._clock = clock
        self._prefilled = prefilled
        self._stuck: dict[str, int] = {}
        """By decode worker: hand-offs in a row that did not arrive."""

    async def hand_over(self, body: dict[str, Any], prefill: Worker, draft: Draft) -> None:
        """Prefill elsewhere and put the KV's address into `body`.

        Raises:
            EngineError: the prefill worker failed.
        """
        self._tally.handoffs += 1
        draft.called = prefill
        with self._fleet.busy(prefill, len(body["token_ids"]), draft.lose), self._tally.prefilling():
            if prefill.facts.url is None or draft.worker.facts.url is None:
                raise EngineUnreachableError("the worker has no address any more")
            sent_at = self._clock()
            call = asyncio.ensure_future(self._prefill(prefill.facts.url, body, draft))
            draft.closers.append(call.cancel)
            try:
                done = await call
            except asyncio.CancelledError:
                if not draft.lost:
                    raise
                raise EngineUnreachableError("a worker of the pair is gone") from None
        self._fleet.served(prefill)
        self._prefilled()
        draft.called = draft.worker
        # The lease began when the engine was done, however long its answer was on the way.
        draft.handed_at = self._clock() if done.seconds is None else min(self._clock(), sent_at + done.seconds)
        if done.version is not None:
            self._fleet.saw_version(prefill, done.version)
        await self._learn_version(draft.worker)
        if done.version != draft.worker.weight_version and draft.worker.weight_version is not None:
            # The prefill is as good as any; the decode worker computes the prompt under its own weights.
            self._tally.handoff_failures += 1
            draft.prefill = None
            return
        draft.kv_version, draft.kv_sent = done.version, True
        body["kv_transfer_params"] = done.kv_transfer_params

    async def _prefill(self, url: str, body: dict[str, Any], draft: Draft) -> Prefilled:
        return await self._engine.prefill(url, body, self._limits.prefill_seconds, draft.weights)

    async def _learn_version(self, worker: Worker) -> None:
        """Ask the agent for the loaded version where no answer has told it yet."""
        if worker.weight_version is None and worker.facts.agent_url is not None:
            state = await self._engine.agent_state(worker.facts.agent_url, TURN_WAITS_SECONDS)
            worker.weight_version = state.get("weightVersion") if state is not None else None

    def first_token_by(self, draft: Draft) -> float:
        """Seconds until the first token must be there; raises HandoffFailed if the KV is too old to be sent."""
        if not draft.kv_sent or draft.prefill is None:
            return self._limits.stall_seconds
        borrowed, age = draft.prefill.facts.borrowed, self._clock() - draft.handed_at
        if age > self._limits.kv_age_share * self._limits.lease(borrowed=borrowed):
            self._tally.handoff_failures += 1
            self._fleet.fail_link(draft.prefill, draft.worker)
            raise HandoffFailed
        return self._limits.fetch_by(borrowed=borrowed, age=age)

    def mixed(self, draft: Draft) -> None:
        """The decode worker got new weights between the check and the request: KV of v was used under v'."""
        self._tally.mixed_versions += 1
        self._tally.handoff_failures += 1
        if draft.turn.shown > draft.start:
            return  # a stream has passed tokens on; the segments say under which weights they were made
        self._tally.wasted_tokens += len(draft.turn.token_ids) - draft.start
        draft.turn.cut(draft.start)
        raise HandoffFailed

    async def stalled(self, draft: Draft) -> None:
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
        raise HandoffFailed

    def arrived(self, prefill: Worker, decode: Worker) -> None:
        """The first token after a hand-off came: the pair is well."""
        self._fleet.mend_link(prefill, decode)
        self._stuck.pop(decode.facts.uid, None)

    def forget_workers(self) -> None:
        """Drop what is remembered of workers that are gone."""
        self._stuck = {uid: count for uid, count in self._stuck.items() if uid in self._fleet.workers}
