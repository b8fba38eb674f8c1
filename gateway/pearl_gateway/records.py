"""What finished turns and trajectories leave behind: profile records, totals, the export."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pearl_gateway.journal import said_line, turn_line
from pearl_gateway.router import RouteKind
from pearl_planner.workload.profile import Profile, TrajectoryRecord, TurnRecord, update

if TYPE_CHECKING:
    from collections.abc import Callable

    from pearl_gateway.said import Said
    from pearl_gateway.storage import Storage
    from pearl_gateway.tally import Tally
    from pearl_gateway.trajectory import Trajectory
    from pearl_gateway.turn_state import Turn

_LOG = logging.getLogger(__name__)
_FOLD_TOGETHER = 32
"""Records that go into the profile at once: alone, one costs as much as the rest of a short turn."""
_ROUTES = {
    RouteKind.COLOCATED: "colocated",
    RouteKind.DEGRADED: "colocated",
    RouteKind.HANDOFF: "disaggregated",
    RouteKind.LOCAL_APPEND: "local",
}


class Recorder:
    """Keeps the profile, the totals and what is stored; one per process."""

    def __init__(
        self,
        tally: Tally,
        storage: Storage | None,
        clock: Callable[[], float],
        profile: Profile | None = None,
        elsewhere: Callable[[TurnRecord | TrajectoryRecord], None] | None = None,
    ) -> None:
        self._tally = tally
        self._storage = storage
        self._clock = clock
        self._elsewhere = elsewhere
        """Takes records where another process keeps the profile."""
        self._profile = profile
        self._unfolded: list[TurnRecord | TrajectoryRecord] = []
        self.profile_at: float | None = None
        """When the newest record came."""

    @property
    def profile(self) -> Profile | None:
        """Of everything that was added; None = nothing was."""
        return self._fold() if self._unfolded else self._profile

    def _fold(self) -> Profile:
        records, self._unfolded = self._unfolded, []
        self._profile = update(self._profile, records)
        return self._profile

    def count(self, turn: Turn) -> None:
        """Totals of one finished turn."""
        self._tally.turns += 1
        self._tally.generated_tokens += len(turn.token_ids)
        if turn.route is RouteKind.LOCAL_APPEND:
            self._tally.local_appends += 1
        if turn.route is RouteKind.DEGRADED:
            self._tally.degraded_turns += 1
            causes = self._tally.degraded
            causes[turn.degraded] = causes.get(turn.degraded, 0) + 1

    def turn(self, trajectory: Trajectory, turn: Turn) -> None:
        """One finished turn into the profile; call it before the turn is committed to the log."""
        self.add(turn_record(trajectory, turn))

    def commit(self, trajectory: Trajectory, turn: Turn) -> None:
        """Append a turn to its trajectory's log and to the journal."""
        turn.account_for_all()
        self._store(lambda storage: storage.write_turn(turn_line(trajectory, turn)))
        if trajectory.commit(turn):
            return
        self._tally.prefix_broken += 1
        why = turn.whole or "ids"
        self._tally.breaks[why] = self._tally.breaks.get(why, 0) + 1

    def said(self, trajectory: Trajectory, number: int, said: Said) -> None:
        """What the answer of a turn in the log means to its client: the next request goes on from there."""
        if number not in trajectory.marks or trajectory.said.get(number) == said:
            return
        trajectory.said[number] = said
        self._store(lambda storage: storage.write_turn(said_line(trajectory, number, said)))

    def trajectory(self, trajectory: Trajectory) -> None:
        """One ended trajectory into the profile and the export."""
        cause = "finished" if trajectory.state == "finished" else trajectory.cause or "aborted"
        answered_at = trajectory.idle_since
        if trajectory.turns_done:
            self.add(
                TrajectoryRecord(
                    trajectory=trajectory.id,
                    turns=trajectory.turns_done,
                    group=trajectory.group,
                    kind=trajectory.traffic,
                    cause=cause,
                    generated_tokens=sum(end - start for start, end in trajectory.generated),
                    reward_seconds=None if answered_at is None else max(0.0, self._clock() - answered_at),
                )
            )
        self._store(lambda storage: storage.write_trajectory(trajectory.step, trajectory.export()))

    def has_ended(self, name: str) -> bool:
        """Whether a trajectory of that name was written to the export."""
        return self._storage is not None and self._storage.has_trajectory(name)

    def add(self, record: TurnRecord | TrajectoryRecord) -> None:
        """One record into the profile."""
        if record.kind != "train":
            return
        if self._elsewhere is not None:
            self._elsewhere(record)
            return
        self._unfolded.append(record)
        self.profile_at = self._clock()
        if len(self._unfolded) >= _FOLD_TOGETHER:
            self._fold()
        self._store(lambda storage: storage.write_profile(self._fold))

    def _store(self, write: Callable[[Storage], None]) -> None:
        """A full disk costs what a restart would need, not the answer that is there: it is counted and said."""
        if self._storage is None:
            return
        try:
            write(self._storage)
        except OSError as error:
            if not self._tally.storage_errors:
                _LOG.error("gateway.storage cannot be written, a restart loses what is new from now on: %s", error)
            self._tally.storage_errors += 1


def turn_record(trajectory: Trajectory, turn: Turn) -> TurnRecord:
    """Mode-free facts of one finished turn that is not in the log yet."""
    shared = trajectory.common_prefix(turn.prompt)
    before = trajectory.last_generated
    kept = None if before is None else max(0, min(shared - (len(trajectory.context) - before), before))
    generated = len(turn.token_ids)
    first, ended = turn.first_token_at, turn.ended_at
    steps = generated - 1
    return TurnRecord(
        trajectory=trajectory.id,
        turn=trajectory.turns_done + 1,
        appended_tokens=len(turn.prompt) - shared,
        generated_tokens=generated,
        context_tokens=len(turn.prompt),
        group=trajectory.group,
        kind=trajectory.traffic,
        previous_generated_tokens=before,
        retained_tokens=kept,
        environment_seconds=turn.environment_seconds,
        route=_ROUTES[turn.route] if turn.route is not None else None,
        moved=turn.moved,
        cached_tokens=turn.cached_tokens,
        inter_token_seconds=(ended - first) / steps if first is not None and ended is not None and steps > 0 else None,
        first_token_seconds=None if first is None else first - turn.accepted_at,
        weight_version=turn.pieces[0].spans[0].version if turn.pieces else None,
    )
