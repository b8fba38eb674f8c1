"""Finds a place for a turn: waits until a worker that may take it can, under weights that it accepts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl_gateway.errors import GatewayError, try_later
from pearl_gateway.router import Ask, Route, choose
from pearl_gateway.versions import Accepted, Staleness, accepted

if TYPE_CHECKING:
    from collections.abc import Callable

    from pearl_gateway.fleet import Fleet
    from pearl_gateway.groups import Groups
    from pearl_gateway.tally import Tally
    from pearl_gateway.trajectory import Trajectory, Turn

_LOOK_SECONDS = 0.25
"""Longest time until a change that nobody announced (a gate that opened, a turn that ended) is seen."""


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
        local_append_tokens: Callable[[], int],
        staleness: Callable[[], Staleness],
    ) -> None:
        self._fleet = fleet
        self._groups = groups
        self._tally = tally
        self._clock = clock
        self._queue_seconds = queue_seconds
        self._local_append_tokens = local_append_tokens
        self._staleness = staleness

    async def find(self, trajectory: Trajectory, turn: Turn, excluded: frozenset[str]) -> tuple[Route, Accepted]:
        """A route and the weights that it was chosen for.

        Raises:
            GatewayError: none was found in time (retryable).
        """
        deadline = self._clock() + self._queue_seconds
        with self._tally.queued():
            while True:
                weights = self._accepted(turn)
                if weights is not None:
                    ask = self._ask(trajectory, turn, excluded, weights)
                    route = choose(self._fleet.candidates(), ask)
                    if route is not None:
                        return route, weights
                left = deadline - self._clock()
                if left <= 0:
                    raise self._nobody(weights)
                await self._fleet.wait_change(min(left, _LOOK_SECONDS))

    def _accepted(self, turn: Turn) -> Accepted | None:
        newest, rule = self._fleet.published_version(), self._staleness()
        return accepted(self._fleet.loaded(), newest, rule, turn.min_version)

    def _nobody(self, weights: Accepted | None) -> GatewayError:
        waited = f"within {self._queue_seconds:.0f} s"
        if weights is None:
            return try_later("NoWorker", f"turns on older weights did not end {waited}", 5.0)
        if weights.least and self._fleet.candidates():
            return try_later("NoWorker", f"no worker had weights {weights.least} or newer {waited}", 5.0)
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
