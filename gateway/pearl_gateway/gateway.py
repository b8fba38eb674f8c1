"""Puts the parts of one gateway process together; the one place that knows them all."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pearl_gateway.batches import Batches, Ended
from pearl_gateway.books import OwnBooks
from pearl_gateway.consumer import Consumer
from pearl_gateway.engine import EngineClient
from pearl_gateway.fleet import Fleet, Worker
from pearl_gateway.groups import Groups
from pearl_gateway.journal import restore
from pearl_gateway.permits import Bounds, Permits
from pearl_gateway.records import Recorder
from pearl_gateway.sessions import Sessions
from pearl_gateway.stops import StopWatch
from pearl_gateway.tally import Tally
from pearl_gateway.text import TextService
from pearl_gateway.turn import Runner
from pearl_gateway.versions import Staleness

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    import aiohttp

    from pearl_api.wire.gateway import AbortTrajectory, BatchProgress, FinishTrajectory, TrajectoryExport
    from pearl_gateway.books import Books, Shared
    from pearl_gateway.settings import Settings
    from pearl_gateway.storage import Storage
    from pearl_gateway.trajectory import Trajectory

_MOST_CAUSE = 500
"""Characters of a cause that are kept."""
_PROBE_PAUSES = (0.1, 0.2, 0.4, 0.8, 1.0)


@dataclass(slots=True)
class Routing:
    """Parameters that the operator sets while the gateway runs."""

    local_append_tokens: int
    window: int | None
    max_staleness: int
    on_exceed: str = "WaitForOldest"
    """`WaitForOldest` holds new groups, `Abort` ends trajectories that exceed the bound."""
    measured_from: str = "FirstToken"
    """`FirstToken` or `Dispatch`: which weight version a trajectory's age is counted from."""
    rollout: str | None = None
    """`Rolling` or `AllAtOnce`; None = all at once where no staleness is allowed."""
    on_update: str = "Recompute"

    def staleness(self) -> Staleness:
        """Which weights turns may be generated with."""
        all_at_once = self.max_staleness == 0 if self.rollout is None else self.rollout == "AllAtOnce"
        return Staleness(self.max_staleness, all_at_once)


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
        shared: Shared | None = None,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.new_id = new_id
        self.wall = wall
        self.started_at = clock()
        self.started_wall = wall()
        self.storage = storage
        self.membership_known = False
        self.tally = Tally()
        self.routing = Routing(settings.local_append_tokens, None, settings.max_staleness, on_update=settings.on_update)
        self.fleet = Fleet(clock, on_eject=self._probe, on_unready=self._doubt)
        self.engine = EngineClient(
            session,
            settings.tokens.engine,
            settings.tokens.agent,
            settings.limits.connect_seconds,
            self.fleet.lenders,
        )
        self.text = TextService(self.fleet, self.engine, clock, settings.limits.queue_seconds)
        self.batches = Batches(wall, storage if shared is None else None)
        self.permits = Permits(self._bounds)
        self._books: Books = OwnBooks(self.batches, self.permits) if shared is None else shared.books
        self.consumer = Consumer()
        if storage is not None:
            storage.needed = self._books.waits_for
        profile = storage.read_profile() if storage is not None and shared is None else None
        self.recorder = Recorder(self.tally, storage, clock, profile, None if shared is None else shared.record)
        self.groups = Groups() if shared is None else shared.groups
        self.runner = Runner(
            fleet=self.fleet,
            engine=self.engine,
            limits=settings.limits,
            tally=self.tally,
            clock=clock,
            local_append_tokens=lambda: self.routing.local_append_tokens,
            measured_from=lambda: self.routing.measured_from,
            staleness=self.routing.staleness,
            keeps_kv=lambda: self.routing.on_update == "KeepKV",
            stop_watch=lambda turn: StopWatch(turn, self.text),
            groups=self.groups,
        )
        self.sessions = Sessions(
            fleet=self.fleet,
            runner=self.runner,
            recorder=self.recorder,
            limits=settings.limits,
            tally=self.tally,
            clock=clock,
            new_id=new_id,
            min_version=self._books.min_version,
            current_step=self._books.current,
            is_admitted=self._books.is_admitted,
            may_forget=lambda one: storage is not None or not self.batches.must_hand_out(one.step, one.id),
            restored=restore(storage.read_turns(), clock()) if storage is not None else {},
            on_start=self._books.started,
        )
        self._probes: set[asyncio.Task[None]] = set()

    def note_asked(self) -> None:
        """Somebody wants tokens, whether there is a worker or not: a fleet that rests for want of work may wake."""
        self.tally.asked_at = self.clock()

    def finished(self, step: int, message: FinishTrajectory, ended: Ended | None) -> BatchProgress:
        """The log of a trajectory was ended as finished, here or in another process; None = it never sent a turn."""
        self._note_end(message.trajectory, ended)
        return self.batches.finish(step, message, ended)

    def aborted(self, step: int, message: AbortTrajectory, ended: Ended | None) -> BatchProgress:
        """The same of one that was aborted."""
        self._note_end(message.trajectory, ended)
        return self.batches.abort(step, message)

    def end_trajectory(self, name: str, *, reward: float | None = None, cause: str | None = None) -> Ended | None:
        """End the log of a trajectory, aborted where there is a cause; None if it never sent a turn."""
        short = None if cause is None else cause[:_MOST_CAUSE]
        known = self.sessions.end(name, aborted=cause is not None, reward=reward, cause=short)
        return None if known is None else Ended(known.group, known.first_version)

    def consume(self, step: int, key: str | None = None) -> list[TrajectoryExport]:
        """Finished trajectories of a step that were not handed out before; again to who repeats its `key`."""
        again = self.batches.handed_out(step, key) if key is not None else []
        if again:
            return [one for one in map(self.export, again) if one is not None]
        found = [self.export(name) for name in self.batches.consume(step, key)]
        exports = [one for one in found if one is not None]
        if exports:
            self.consumer.fetched(self.clock())
        self.count_ages(one.versions for one in exports)
        return exports

    def export(self, name: str) -> TrajectoryExport | None:
        """The log of one trajectory, live or ended."""
        known = self.sessions.find(name)
        if known is not None:
            return known.export()
        return self.storage.read_trajectory(name) if self.storage is not None else None

    def current_step(self) -> int | None:
        """The oldest open step; None = unknown."""
        return self._books.current()

    def expire(self) -> None:
        """End trajectories and give back permits that nobody has used for the idle time."""
        if self.routing.on_exceed == "Abort":
            self._abort_stale()
        idle, now = self.settings.limits.idle_seconds, self.clock()
        self.sessions.sweep(now)
        self.consumer.wants(self.fleet.wanted_version(), now)
        for one in list(self.sessions.live.values()):
            if one.idle_since is not None and now - one.idle_since > idle:
                self._end_here(one.id, "idle")
        self.runner.forget_workers()
        for group in self.permits.expire(idle, self.live_groups() | self.fleet.elsewhere.groups):
            self.runner.forget_group(group)

    def live_groups(self) -> set[str]:
        """Groups with live trajectories in this process."""
        return {one.group for one in self.sessions.live.values() if one.group is not None}

    def _abort_stale(self) -> None:
        newest = self._newest_version()
        for one in self._trained():
            if one.first_version is not None and newest - one.first_version > self.routing.max_staleness:
                self._end_here(one.id, "stale")

    async def dismiss(self) -> None:
        """Tell everybody to come back to the process that follows this one."""
        self.permits.close()
        await self.sessions.close()

    async def close(self) -> None:
        """Stop turns and probes."""
        await self.dismiss()
        for probe in self._probes:
            probe.cancel()
        await asyncio.gather(*self._probes, return_exceptions=True)
        await self.engine.close()
        if self.storage is not None:
            self.storage.close()

    def _end_here(self, name: str, cause: str) -> None:
        self._note_end(name, self.end_trajectory(name, cause=cause))

    def _note_end(self, name: str, ended: Ended | None) -> None:
        over = self._books.ended(name, ended.group) if ended is not None else None
        if over is not None:
            self.runner.forget_group(over)

    def count_ages(self, consumed: Iterable[list[int | None]]) -> None:
        """Note how old the tokens of trajectories were that are consumed now, by their weight versions."""
        ages, current = self.tally.ages_at_consumption, max(self.fleet.versions(), default=0)
        for versions in consumed:
            for version, tokens in Counter(versions).items():
                if version is not None:
                    age = str(max(0, current - version))
                    ages[age] = ages.get(age, 0) + tokens

    def _newest_version(self) -> int:
        published = self.fleet.published_version()
        return published if published is not None else max(self.fleet.versions(), default=0)

    def live_versions(self) -> list[int]:
        """First weight versions of the live trajectories here that belong to a batch."""
        # Only those are ever consumed; the rest would hold new groups back for good.
        live = [one for one in self._trained() if one.step is not None]
        return [one.first_version for one in live if one.first_version is not None]

    def _bounds(self) -> Bounds:
        versions = [*self.live_versions(), *self.batches.waiting_versions()]
        if self.fleet.elsewhere.oldest_version is not None:
            versions.append(self.fleet.elsewhere.oldest_version)
        return Bounds(
            window=self.routing.window,
            max_staleness=self.routing.max_staleness,
            weight_version=self._newest_version(),
            oldest_version=min(versions, default=None),
        )

    def _trained(self) -> list[Trajectory]:
        return [one for one in self.sessions.live.values() if one.traffic == "train" and not one.ephemeral]

    def _probe(self, worker: Worker) -> None:
        self._start_probe(self._probe_until_back(worker))

    def _doubt(self, worker: Worker) -> None:
        self._start_probe(self._probe_once(worker))

    def _start_probe(self, probe: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(probe)
        self._probes.add(task)
        task.add_done_callback(self._probes.discard)

    async def _probe_once(self, worker: Worker) -> None:
        """It is not ready any more: if it does not even answer, calls on it would only wait for their deadlines."""
        if worker.facts.url is None or not await self.engine.healthy(worker.facts.url):
            self.fleet.abandon(worker)

    async def _probe_until_back(self, worker: Worker) -> None:
        tries = 0
        while self.fleet.workers.get(worker.facts.uid) is worker:
            await asyncio.sleep(_PROBE_PAUSES[min(tries, len(_PROBE_PAUSES) - 1)])
            tries += 1
            if worker.facts.url is not None and await self.engine.healthy(worker.facts.url):
                self.fleet.restore(worker)
                return
