"""The live trajectories of this process and their turns: opening, re-attaching, following, ending.

(trajectory, turn, attempt) is an idempotency key: whoever repeats it gets the same turn, running, finished or
interrupted. A turn runs as long as somebody reads it; what it generated stays in any case.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING

from pearl_gateway.admission import Admission
from pearl_gateway.errors import GatewayError, try_later
from pearl_gateway.trajectory import Trajectory
from pearl_gateway.turn_state import Turn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from pearl_gateway.fleet import Fleet
    from pearl_gateway.identity import Identity
    from pearl_gateway.records import Recorder
    from pearl_gateway.settings import Limits
    from pearl_gateway.tally import Tally
    from pearl_gateway.tokens_in import Rendered
    from pearl_gateway.turn import Runner

_KEPT_ENDED = 64
"""Ended trajectories that stay in memory in any case."""
_ORPHAN = 5.0
"""Seconds after which a turn that nobody reads is stopped."""


class Sessions:
    """All trajectories that are not over, and the last ones that are."""

    def __init__(  # noqa: PLR0913 - its parts are made elsewhere
        self,
        *,
        fleet: Fleet,
        runner: Runner,
        recorder: Recorder,
        limits: Limits,
        tally: Tally,
        clock: Callable[[], float],
        new_id: Callable[[], str],
        min_version: Callable[[int | None], int | None],
        current_step: Callable[[], int | None],
        is_admitted: Callable[[str], bool],
        may_forget: Callable[[Trajectory], bool],
        restored: Mapping[str, Trajectory],
        on_start: Callable[[Trajectory], None],
    ) -> None:
        self._admission = Admission(fleet, limits, tally, is_admitted)
        self._runner = runner
        self._recorder = recorder
        self._tally = tally
        self._clock = clock
        self._new_id = new_id
        self._min_version = min_version
        self._current_step = current_step
        self._may_forget = may_forget
        self._on_start = on_start
        self._closing: GatewayError | None = None
        self._ended: OrderedDict[str, Trajectory] = OrderedDict()
        self.live: dict[str, Trajectory] = dict(restored)

    def find(self, trajectory: str) -> Trajectory | None:
        """A trajectory in memory, live or ended."""
        return self.live.get(trajectory) or self._ended.get(trajectory)

    def obtain(self, identity: Identity) -> Trajectory:
        """The trajectory of a request, a new one if need be.

        Raises:
            GatewayError: it is over, or a new one cannot be taken now (retryable).
        """
        name = identity.trajectory
        if name is not None:
            known = self.live.get(name)
            if known is not None:
                return known
            if name in self._ended or self._recorder.has_ended(name):
                raise _conflict("TrajectoryEnded", f"trajectory {name!r} is over; use a new name")
        self._admission.check(identity)
        now = self._clock()
        trajectory = Trajectory(
            id=name or f"request-{self._new_id()}",
            group=identity.group,
            traffic=identity.traffic,
            step=identity.step if identity.step is not None else self._current_step(),
            created_at=now,
            last_activity=now,
            ephemeral=name is None,
        )
        self.live[trajectory.id] = trajectory
        return trajectory

    def drop_if_unused(self, trajectory: Trajectory) -> None:
        """Forget a trajectory whose first request was refused."""
        if not trajectory.turns and not trajectory.ids:
            self.live.pop(trajectory.id, None)

    def open_turn(self, trajectory: Trajectory, identity: Identity, rendered: Rendered) -> Turn:
        """The turn of a request: the one of the same key if there is one, else a new one; it runs.

        Raises:
            GatewayError: the key was used for another prompt, or is older than one already seen.
        """
        if self._closing is not None:
            raise self._closing
        self._admission.check_length(rendered.prompt, "prompt" if rendered.asked else "token_ids")
        number = identity.turn if identity.turn is not None else self._next_number(trajectory)
        known = trajectory.turns.get(number)
        if known is not None and identity.attempt <= known.attempt:
            return self._attach(trajectory, known, identity.attempt, rendered)
        if known is not None:
            self._replace(trajectory, known)
        elif number < max(trajectory.turns, default=0) and identity.parent_turn is None:
            raise _conflict("TurnPassed", f"turn {number} is over; a branch names X-Pearl-Parent-Turn")
        self._settle_interrupted(trajectory, rendered.prompt)
        if not trajectory.turns and not trajectory.ephemeral:
            self._on_start(trajectory)
        turn = self._new_turn(trajectory, number, identity, rendered)
        trajectory.turns[number] = turn
        self._start(trajectory, turn)
        return turn

    def repeated(self, identity: Identity, asked: str) -> Turn | None:
        """The running turn of a request that was seen before, without rendering it again; None = it is new."""
        trajectory = self.live.get(identity.trajectory or "")
        known = trajectory.turns.get(identity.turn) if trajectory is not None and identity.turn is not None else None
        if trajectory is None or known is None or (known.attempt, known.asked) != (identity.attempt, asked):
            return None
        self._start(trajectory, known)
        return known

    def _attach(self, trajectory: Trajectory, turn: Turn, attempt: int, rendered: Rendered) -> Turn:
        if attempt < turn.attempt:
            raise _conflict("StaleAttempt", f"turn {turn.number} is at attempt {turn.attempt}")
        if turn.prompt != rendered.prompt:
            raise _conflict("KeyReused", f"turn {turn.number} had another prompt: raise X-Pearl-Attempt")
        self._start(trajectory, turn)
        return turn

    def _new_turn(self, trajectory: Trajectory, number: int, identity: Identity, rendered: Rendered) -> Turn:
        now, idle_since = self._clock(), trajectory.idle_since
        return Turn(
            trajectory=trajectory.id,
            number=number,
            attempt=identity.attempt,
            prompt=rendered.prompt,
            sampling=rendered.sampling,
            extra=rendered.extra,
            parent=identity.parent_turn,
            asked=rendered.asked,
            whole=rendered.whole,
            min_version=self._min_version(trajectory.step),
            keep_logprobs=not trajectory.ephemeral and trajectory.traffic == "train",
            accepted_at=now,
            environment_seconds=None if idle_since is None else now - idle_since,
        )

    @staticmethod
    def _next_number(trajectory: Trajectory) -> int:
        return max(trajectory.turns, default=-1) + 1

    def _replace(self, trajectory: Trajectory, turn: Turn) -> None:
        """A client asks for a turn anew: its former answer is not part of the trajectory."""
        _stop(turn, _conflict("Replaced", f"turn {turn.number} was asked for with a higher attempt"))
        self._tally.wasted_tokens += len(turn.token_ids)
        trajectory.withdraw(turn)

    def _settle_interrupted(self, trajectory: Trajectory, prompt: list[int]) -> None:
        """A turn whose client left is over when the next one begins: kept if the new prompt builds on it."""
        for turn in list(trajectory.turns.values()):
            if turn.committed or turn.running:
                continue
            so_far = turn.prompt + turn.token_ids
            if turn.token_ids and prompt[: len(so_far)] == so_far:
                self._recorder.commit(trajectory, turn)
            elif turn.token_ids:
                self._tally.wasted_tokens += len(turn.token_ids)
                trajectory.turns.pop(turn.number)

    def _start(self, trajectory: Trajectory, turn: Turn) -> None:
        former = turn.task if turn.running else None
        if (turn.complete and turn.settled) or (former is not None and not former.cancelling()):
            return
        trajectory.idle_since = None
        turn.reopen()
        turn.task = asyncio.get_running_loop().create_task(self._run(trajectory, turn, former))

    async def _run(self, trajectory: Trajectory, turn: Turn, former: asyncio.Task[None] | None) -> None:
        if former is not None:
            # Its last reader left and one came back before it had stopped: whoever goes on must be alone.
            await asyncio.wait({former})
            if turn.settled:
                return
        evaluates = trajectory.traffic == "eval"
        self._tally.turns_in_flight += 1
        self._tally.eval_turns_in_flight += evaluates
        try:
            await self._runner.run(trajectory, turn)
            if turn.complete:
                self._done(trajectory, turn)
            elif turn.error is not None and turn.error.status < HTTPStatus.INTERNAL_SERVER_ERROR and not turn.token_ids:
                self._refused(trajectory, turn)
            turn.settle()
        except Exception as error:
            # A bug must not leave the client waiting: the turn is lost, and says so.
            self._tally.lost_turns += 1
            turn.settle(GatewayError(HTTPStatus.INTERNAL_SERVER_ERROR, "Bug", f"{type(error).__name__}: {error}"))
            raise
        finally:
            self._tally.turns_in_flight -= 1
            self._tally.asked_at = self._clock()
            self._tally.eval_turns_in_flight -= evaluates
            trajectory.last_activity = self._clock()
            if not any(one.running for one in trajectory.turns.values() if one is not turn):
                trajectory.idle_since = trajectory.last_activity

    def _refused(self, trajectory: Trajectory, turn: Turn) -> None:
        """Nothing came of it and nothing will: its key is free for a request that is mended."""
        if trajectory.turns.get(turn.number) is turn:
            del trajectory.turns[turn.number]
        if not trajectory.ephemeral:
            self.drop_if_unused(trajectory)

    def _done(self, trajectory: Trajectory, turn: Turn) -> None:
        if not trajectory.ephemeral:
            self._recorder.turn(trajectory, turn)
            self._recorder.commit(trajectory, turn)
            trajectory.turns_done += 1
            trajectory.slim(turn)
        self._recorder.count(turn)

    @asynccontextmanager
    async def reading(self, turn: Turn) -> AsyncIterator[Turn]:
        """Keep a turn running while the block runs; when its last reader leaves, the engine stops at once."""
        turn.readers += 1
        trajectory = self.live.get(turn.trajectory)
        if trajectory is not None and not turn.settled:
            # The reader before may have left, and stopped it, since this one asked for it.
            self._start(trajectory, turn)
        try:
            yield turn
        finally:
            turn.readers -= 1
            if turn.readers == 0:
                if not turn.settled and turn.task is not None:
                    turn.task.cancel()
                if turn.trajectory.startswith("request-"):
                    self._forget_ephemeral(turn.trajectory)

    def _forget_ephemeral(self, name: str) -> None:
        trajectory = self.live.get(name)
        if trajectory is not None and trajectory.ephemeral:
            del self.live[name]

    def drop(self, turns: list[Turn]) -> None:
        """Stop turns that nobody will read."""
        for turn in turns:
            if turn.readers == 0 and turn.task is not None:
                turn.task.cancel()
                self._forget_ephemeral(turn.trajectory)

    def sweep(self, now: float) -> None:
        """Stop turns that have run without a reader for a while: their clients left before they began to read."""
        self._admission.kept_tokens = sum(len(one.ids) for one in self.live.values())
        for trajectory in list(self.live.values()):
            orphans = [one for one in trajectory.turns.values() if one.readers == 0 and one.accepted_at < now - _ORPHAN]
            self.drop([one for one in orphans if one.running])
            if orphans:
                self._forget_ephemeral(trajectory.id)

    async def answer(self, turn: Turn) -> Turn:
        """The turn with its whole answer.

        Raises:
            GatewayError: it ended without.
        """
        async with self.reading(turn):
            await turn.wait_for_end()
        if turn.error is not None:
            raise turn.error
        return turn

    def end(self, name: str, *, aborted: bool, reward: float | None, cause: str | None) -> Trajectory | None:
        """A trajectory is over; None if it never sent a turn. Ending twice is harmless."""
        trajectory = self.live.pop(name, None)
        if trajectory is None:
            return self._ended.get(name)
        for turn in trajectory.turns.values():
            if not turn.committed:
                _stop(turn, _conflict("TrajectoryEnded", f"trajectory {name!r} was ended meanwhile"))
                if turn.token_ids:
                    self._recorder.commit(trajectory, turn)
        trajectory.state = "aborted" if aborted else "finished"
        trajectory.reward, trajectory.cause = reward, cause
        trajectory.turns.clear()
        self._ended[name] = trajectory
        # Older ones are in the storage; without one, what an open batch still has to hand out stays here.
        while len(self._ended) > _KEPT_ENDED and self._may_forget(next(iter(self._ended.values()))):
            self._ended.popitem(last=False)
        if aborted:
            self._tally.trajectories_aborted += 1
            self._tally.wasted_tokens += sum(end - start for start, end in trajectory.generated)
        else:
            self._tally.trajectories_finished += 1
        self._recorder.trajectory(trajectory)
        return trajectory

    async def close(self) -> None:
        """Stop everything; clients are told to come back, and turns keep what they have."""
        error = try_later("ShuttingDown", "the gateway restarts; repeat the request with the same key", 2.0)
        self._closing = error
        turns = [turn for one in self.live.values() for turn in one.turns.values() if turn.running]
        for turn in turns:
            _stop(turn, error)
        await asyncio.gather(*(turn.task for turn in turns if turn.task is not None), return_exceptions=True)


def _conflict(error: str, message: str) -> GatewayError:
    return GatewayError(HTTPStatus.CONFLICT, error, message)


def _stop(turn: Turn, error: GatewayError) -> None:
    """End a turn from outside: its engine stops, its readers get the error."""
    if turn.running and turn.task is not None:
        turn.task.cancel()
        turn.settle(error)
