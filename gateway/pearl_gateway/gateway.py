"""Puts the parts of one gateway process together; the one place that knows them all."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pearl_gateway.batches import Batches
from pearl_gateway.engine import EngineClient
from pearl_gateway.fleet import Fleet, Worker
from pearl_gateway.permits import Bounds, Permits
from pearl_gateway.records import Recorder
from pearl_gateway.sessions import Sessions
from pearl_gateway.stops import StopWatch
from pearl_gateway.tally import Tally
from pearl_gateway.text import TextService
from pearl_gateway.turn import Runner

if TYPE_CHECKING:
    from collections.abc import Callable

    import aiohttp

    from pearl_api.wire.gateway import AbortTrajectory, BatchProgress, FinishTrajectory, TrajectoryExport
    from pearl_gateway.settings import Settings
    from pearl_gateway.storage import Storage
    from pearl_gateway.trajectory import Trajectory

_PROBE_PAUSES = (0.1, 0.2, 0.4, 0.8, 1.0)


@dataclass(slots=True)
class Routing:
    """Parameters that the operator sets while the gateway runs."""

    local_append_tokens: int
    window: int | None
    max_staleness: int


class Gateway:
    """One process's gateway. `clock` is monotonic, `wall` the time of day, `new_id` gives unique names."""

    def __init__(  # noqa: PLR0913 - what differs between a process and a test is passed in
        self,
        *,
        settings: Settings,
        session: aiohttp.ClientSession,
        clock: Callable[[], float],
        wall: Callable[[], float],
        new_id: Callable[[], str],
        storage: Storage | None = None,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.new_id = new_id
        self.wall = wall
        self.started_at = clock()
        self.storage = storage
        self.membership_known = False
        self.tally = Tally()
        self.routing = Routing(settings.local_append_tokens, None, settings.max_staleness)
        self.engine = EngineClient(session, settings.tokens.engine, settings.tokens.agent)
        self.fleet = Fleet(clock, on_eject=self._probe)
        self.text = TextService(self.fleet, self.engine, clock, settings.limits.queue)
        self.batches = Batches(wall, storage)
        self.recorder = Recorder(self.tally, storage, clock, storage.read_profile() if storage is not None else None)
        self.runner = Runner(
            fleet=self.fleet,
            engine=self.engine,
            limits=settings.limits,
            tally=self.tally,
            clock=clock,
            local_append_tokens=lambda: self.routing.local_append_tokens,
            stop_watch=lambda turn: StopWatch(turn, self.text),
        )
        self.permits = Permits(self._bounds, self._unconsumed)
        self.sessions = Sessions(
            fleet=self.fleet,
            runner=self.runner,
            recorder=self.recorder,
            limits=settings.limits,
            tally=self.tally,
            clock=clock,
            new_id=new_id,
            min_version=self.batches.min_version,
            current_step=self.batches.current,
            is_admitted=self.permits.is_admitted,
            on_start=self.batches.started,
        )
        self._probes: set[asyncio.Task[None]] = set()

    def finish(self, step: int, message: FinishTrajectory) -> BatchProgress:
        """A trajectory reached its end."""
        self.batches.get(step)
        known = self.sessions.end(message.trajectory, aborted=False, reward=message.reward, cause=None)
        self._ended(known)
        return self.batches.finish(step, message, known.group if known is not None else None)

    def abort(self, step: int, message: AbortTrajectory) -> BatchProgress:
        """A trajectory ended early."""
        self.batches.get(step)
        known = self.sessions.end(message.trajectory, aborted=True, reward=None, cause=message.cause)
        self._ended(known)
        return self.batches.abort(step, message)

    def consume(self, step: int) -> list[TrajectoryExport]:
        """Finished trajectories of a step that were not handed out before."""
        self.batches.get(step)
        found = [
            one for one in self.sessions.ended() if one.step == step and one.state == "finished" and not one.consumed
        ]
        current = max(self.fleet.versions(), default=0)
        for one in found:
            one.consumed = True
            self._count_ages(one, current)
        return [one.export() for one in found]

    def export(self, name: str) -> TrajectoryExport | None:
        """The log of one trajectory, live or ended."""
        known = self.sessions.find(name)
        if known is not None:
            return known.export()
        return self.storage.read_trajectory(name) if self.storage is not None else None

    def expire(self) -> None:
        """End trajectories and give back permits that nobody has used for the idle time."""
        idle, now = self.settings.limits.idle, self.clock()
        for one in list(self.sessions.live.values()):
            if one.idle_since is not None and now - one.idle_since > idle:
                self._ended(self.sessions.end(one.id, aborted=True, reward=None, cause="idle"))
        groups = {one.group for one in self.sessions.live.values() if one.group is not None}
        for group in self.permits.expire(idle, groups):
            self.runner.forget_group(group)

    async def close(self) -> None:
        """Stop turns and probes."""
        await self.sessions.close()
        for probe in self._probes:
            probe.cancel()
        await asyncio.gather(*self._probes, return_exceptions=True)
        if self.storage is not None:
            self.storage.close()

    def _ended(self, trajectory: Trajectory | None) -> None:
        if trajectory is None:
            return
        over = self.permits.ended(trajectory)
        if over is not None:
            self.runner.forget_group(over)

    def _count_ages(self, trajectory: Trajectory, current: int) -> None:
        ages = self.tally.ages_at_consumption
        for span in trajectory.versions:
            if span.version is not None:
                age = str(max(0, current - span.version))
                ages[age] = ages.get(age, 0) + span.end - span.start

    def _bounds(self) -> Bounds:
        version = self.fleet.wanted_version()
        newest = version if version is not None else max(self.fleet.versions(), default=0)
        return Bounds(self.routing.window, self.routing.max_staleness, newest)

    def _unconsumed(self) -> list[Trajectory]:
        waiting = [one for one in self.sessions.ended() if one.state == "finished" and not one.consumed]
        # Only what belongs to a batch is ever consumed; the rest would hold new groups back for good.
        return [
            one
            for one in (*self.sessions.live.values(), *waiting)
            if one.step is not None and one.traffic == "train" and not one.ephemeral
        ]

    def _probe(self, worker: Worker) -> None:
        task = asyncio.get_running_loop().create_task(self._probe_until_back(worker))
        self._probes.add(task)
        task.add_done_callback(self._probes.discard)

    async def _probe_until_back(self, worker: Worker) -> None:
        tries = 0
        while self.fleet.workers.get(worker.facts.uid) is worker:
            await asyncio.sleep(_PROBE_PAUSES[min(tries, len(_PROBE_PAUSES) - 1)])
            tries += 1
            if worker.facts.url is not None and await self.engine.healthy(worker.facts.url):
                self.fleet.restore(worker)
                return
