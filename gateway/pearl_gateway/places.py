"""Finds a place for a turn: waits until a worker that may take it can, under weights that it accepts."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from pearl_api.names import Role
from pearl_gateway.errors import GatewayError, try_later
from pearl_gateway.router import Ask, Route, RouteKind, choose
from pearl_gateway.versions import Accepted, Staleness, accepted
from pearl_gateway.waiting import Waiter, Waiting

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from pearl_gateway.fleet import Fleet, Worker
    from pearl_gateway.groups import Groups
    from pearl_gateway.router import Candidate
    from pearl_gateway.tally import Tally
    from pearl_gateway.trajectory import Trajectory
    from pearl_gateway.turn_state import Turn

_LOOK_SECONDS = 0.25
"""Longest time until a change that nobody announced (a gate that opened, a turn that ended) is seen."""


@dataclass(frozen=True, slots=True)
class Place:
    """A route, and the weights that it was chosen for; a turn on its worker is reserved until it begins."""

    route: Route
    weights: Accepted
    worker: Worker
    prefill: Worker | None
    prompt_tokens: int

    def reserve(self) -> None:
        """Keep it."""
        self.worker.reserved += 1
        if self.prefill is not None:
            self.prefill.reserved_tokens += self.prompt_tokens

    def release(self) -> None:
        """It is taken, or given back."""
        self.worker.reserved -= 1
        if self.prefill is not None:
            self.prefill.reserved_tokens -= self.prompt_tokens


class Places:
    """Where turns go; `local_append_tokens` and `staleness` are asked anew for every turn."""

    def __init__(  # noqa: PLR0913 - its parts are made elsewhere
        self,
        *,
        fleet: Fleet,
        groups: Groups,
        tally: Tally,
        clock: Callable[[], float],
        queue_seconds: float,
        worker_turns: int,
        prefill_queue_tokens: int,
        local_append_tokens: Callable[[], int],
        staleness: Callable[[], Staleness],
    ) -> None:
        self._fleet = fleet
        self._groups = groups
        self._tally = tally
        self._clock = clock
        self._queue_seconds = queue_seconds
        self._worker_turns = worker_turns
        self._prefill_queue_tokens = prefill_queue_tokens
        self._local_append_tokens = local_append_tokens
        self._staleness = staleness
        self._waiting: Waiting[Place] = Waiting()
        self._looked_at = 0.0
        fleet.listeners.append(self._waiting.dispatch)

    @asynccontextmanager
    async def place(
        self, trajectory: Trajectory, turn: Turn, excluded: frozenset[str]
    ) -> AsyncGenerator[tuple[Route, Accepted]]:
        """A route and the weights that it was chosen for, for the block.

        Nothing is awaited between the end of the reservation and the block, so that a burst does not choose one worker.

        Raises:
            GatewayError: none was found in time (retryable).
        """
        group = trajectory.group or trajectory.id
        found = await self._find(group, trajectory, turn, excluded)
        found.release()
        try:
            yield found.route, found.weights
        finally:
            self._waiting.ended(group)

    async def _find(self, group: str, trajectory: Trajectory, turn: Turn, excluded: frozenset[str]) -> Place:
        def take() -> Place | None:
            return self._take(trajectory, turn, excluded)

        with self._tally.queued():
            # What those before it can use they have by now: what is free is for whoever comes.
            self._waiting.dispatch()
            found = take()
            if found is not None:
                self._waiting.began(group)
                return found
            waiter = Waiter(group, trajectory.created_at, take)
            self._waiting.add(waiter)
            try:
                await self._wait(waiter, turn)
            except BaseException:
                self._waiting.remove(waiter)
                if waiter.place.done() and waiter.place.exception() is None:
                    waiter.place.result().release()
                    self._waiting.ended(group)
                raise
            return waiter.place.result()

    async def _wait(self, waiter: Waiter[Place], turn: Turn) -> None:
        """Until it has its place or an error."""
        deadline = self._clock() + self._queue_seconds
        while not waiter.place.done():
            left = deadline - self._clock()
            if left <= 0:
                raise self._nobody(turn)
            await asyncio.wait({waiter.place}, timeout=min(left, _LOOK_SECONDS))
            if self._clock() - self._looked_at > _LOOK_SECONDS / 2:
                # One look is enough for all who wait.
                self._looked_at = self._clock()
                self._waiting.dispatch(None)

    def _take(self, trajectory: Trajectory, turn: Turn, excluded: frozenset[str]) -> Place | None:
        weights = self._accepted(trajectory, turn)
        if weights is None:
            return None
        route = self._choose(self._ask(trajectory, turn, excluded, weights))
        if route is None:
            return None
        workers = self._fleet.workers
        prefill = workers[route.prefill] if route.prefill is not None else None
        found = Place(route, weights, workers[route.worker], prefill, len(turn.prompt) + len(turn.token_ids))
        found.reserve()
        return found

    def prefilled(self) -> None:
        """A prefill worker has room again."""
        self._waiting.dispatch()

    def _full(self, one: Candidate) -> bool:
        # Whoever only prefills is as busy as the prompts that it has; anybody else has room for so many turns.
        if one.role is Role.PREFILL and one.queued_tokens:
            return one.queued_tokens >= self._prefill_queue_tokens
        return one.taken >= self._worker_turns

    def _choose(self, ask: Ask) -> Route | None:
        candidates = self._fleet.candidates()
        free = [one for one in candidates if not self._full(one)]
        route = choose(free, ask)
        if len(free) < len(candidates) and route is not None and route.kind is RouteKind.DEGRADED:
            whole = choose(candidates, ask)
            return route if whole is not None and whole.kind is RouteKind.DEGRADED else None
        return route

    def _accepted(self, trajectory: Trajectory, turn: Turn) -> Accepted | None:
        pinned = trajectory.first_version if trajectory.traffic == "eval" else None
        if pinned is not None:
            if any(one.weight_version in (pinned, None) for one in self._fleet.workers.values()):
                return Accepted(pinned, pinned)
            message = (
                f"evaluation {trajectory.id!r} began with weights {pinned}, which no worker has any more: start anew"
            )
            raise GatewayError(HTTPStatus.CONFLICT, "VersionGone", message)
        return self._within_staleness(turn)

    def _within_staleness(self, turn: Turn) -> Accepted | None:
        newest, rule = self._fleet.published_version(), self._staleness()
        return accepted(self._fleet.loaded(), newest, rule, turn.min_version, self._fleet.elsewhere.served)

    def _nobody(self, turn: Turn) -> GatewayError:
        waited = f"within {self._queue_seconds:.0f} s"
        weights = self._within_staleness(turn)
        if weights is None:
            return try_later("NoWorker", f"turns on older weights did not end {waited}", 5.0)
        if weights.least and self._fleet.candidates():
            return try_later("NoWorker", f"no worker had weights {weights.least} or newer {waited}", 5.0)
        if self._fleet.candidates():
            return try_later("Busy", f"no worker had room for another turn {waited}", 5.0)
        return try_later("NoWorker", f"no worker became ready {waited}", 5.0)

    def _ask(self, trajectory: Trajectory, turn: Turn, excluded: frozenset[str], weights: Accepted) -> Ask:
        place = self._groups.place(trajectory.group)
        return Ask(
            prompt_tokens=len(turn.prompt) + len(turn.token_ids),
            cached_tokens=min(trajectory.cached_tokens, trajectory.common_prefix(turn.prompt)),
            home=trajectory.home,
            prefill_home=trajectory.prefill_home,
            group_home=place.home,
            group_prefill=place.prefill,
            local_append_tokens=self._local_append_tokens(),
            weights=weights,
            excluded=excluded,
            bad_links=self._fleet.bad_links(),
        )
