"""The consumer of the batches: waits for complete groups, takes its GPUs back, trains, publishes, lends while it waits.

A step consumes `need_groups` groups: first those that the staleness bound wants consumed by now (it waits for them,
`WaitForOldest`), then others in the order in which they were completed. After a barrier the groups that were not needed
are aborted. New weights are loaded one worker at a time, or by all at once at η = 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pearl_planner.types import WorkerState
from pearl_simulator.cluster.clock import SimulationError
from pearl_simulator.types import BatchResult, Feeding

if TYPE_CHECKING:
    from collections.abc import Callable

    from pearl_simulator.cluster.clock import Clock
    from pearl_simulator.cluster.feed import Feed
    from pearl_simulator.cluster.jobs import Group, Job
    from pearl_simulator.cluster.pods import Pod, Pods
    from pearl_simulator.types import Scenario


class Lends(Protocol):
    """Whoever has the trainer's GPUs while it waits."""

    def offer(self) -> None:
        """They may be had from now on."""
        ...

    def reclaim(self, then: Callable[[], None]) -> None:
        """They are wanted back: `then()` once they are free."""
        ...


class Trainer:
    """Waits, trains, publishes."""

    def __init__(self, scenario: Scenario, clock: Clock, feed: Feed, pods: Pods, lender: Lends) -> None:
        self._scenario = scenario
        self._training = scenario.training
        self._clock = clock
        self._feed = feed
        self._pods = pods
        self.lender = lender
        self.version = 0
        self.step = 0
        self.waiting_since: float | None = 0.0
        """None while it trains."""
        self.opened_at = 0.0
        self.ready_at: float | None = None
        self.batches: list[BatchResult] = []
        self.waits: list[tuple[float, float]] = []
        self._loading: Pod | None = None
        self._batch: list[Group] | None = None
        """What the step consumes once the lent GPUs are back."""
        self.abort: Callable[[Job], None] = lambda _job: None

    def start(self) -> None:
        """Nothing to do yet: lend. The first look lets the first groups in."""
        self.lender.offer()

    def ready_groups(self) -> list[Group]:
        """Complete and not consumed, in the order of completion."""
        complete = [group for group in self._feed.open.values() if group.complete_at is not None]
        return sorted(complete, key=lambda group: (group.complete_at, group.number))

    def look(self) -> None:
        """A group is complete: perhaps a batch is."""
        if self.waiting_since is None or self.ready_at is not None:
            return
        self._batch = self._chosen()
        if self._batch is None:
            return
        self.ready_at = self._clock.now
        self.lender.reclaim(self._train)

    def _chosen(self) -> list[Group] | None:
        """What the step consumes; None = not there yet.

        A step takes so many groups that what is left for step j fits into the steps up to j, for every j within the
        staleness bound. Later ones fit by themselves, since no more groups may have started (`feed`).
        """
        need, complete = self._feed.batch_groups, self.ready_groups()
        chosen: list[Group] = []
        for ahead in range(self._horizon):
            last = self.version + ahead
            due = sum(1 for group in self._feed.open.values() if self._last_version(group) <= last)
            more = due - ahead * need - len(chosen)
            found = [group for group in complete if self._last_version(group) <= last and group not in chosen]
            if len(found) < more:
                return None
            chosen += found[: max(more, 0)]
        rest = [group for group in complete if group not in chosen]
        chosen = [*chosen, *rest][:need]
        return chosen if len(chosen) == need else None

    @property
    def _horizon(self) -> int:
        """Steps ahead for which groups may be due; after a barrier everything is of this step."""
        return 0 if self._training.feeding is Feeding.BARRIER else self._training.max_staleness

    def _last_version(self, group: Group) -> int:
        """The weight version under which it must be consumed at the latest.

        A member that has not begun may still meet the oldest weights that are allowed.
        """
        begun = all(job.first_version is not None for job in group.jobs)
        oldest = group.first_version if begun else None
        return (group.jobs[0].min_version if oldest is None else oldest) + self._training.max_staleness

    def _train(self) -> None:
        now = self._clock.now
        groups, self._batch = self._batch, None
        if groups is None or self.ready_at is None or self.waiting_since is None:
            raise SimulationError(f"step {self.step} lost its batch")
        ages = tuple(self.version - (job.first_version or 0) for group in groups for job in group.jobs)
        if max(ages) > self._training.max_staleness:
            raise SimulationError(f"step {self.step} consumes a trajectory of age {max(ages)}")
        self._feed.consume(groups)
        self.batches.append(BatchResult(self.step, self.opened_at, self.ready_at, now, ages))
        self.waits.append((self.waiting_since, now))
        self.waiting_since = self.ready_at = None
        self.step += 1
        self.opened_at = now
        if self._training.feeding is Feeding.BARRIER:
            self._abort_rest()
        if self._scenario.max_batches is not None and self.step >= self._scenario.max_batches:
            self._clock.stopped = True
        self._clock.after(self._training.update_seconds, self._publish)
        self._pods.wake()

    def _abort_rest(self) -> None:
        """Over-provisioned: more was started than the step needed."""
        rest = list(self._feed.open.values())
        for group in rest:
            for job in group.jobs:
                if job.uid in self._feed.live:
                    self.abort(job)
        self._feed.consume(rest)
        self._feed.skip_to_step(self.step)

    def _publish(self, _: object) -> None:
        self.version += 1
        self._feed.version = self._pods.version = self.version
        self.waiting_since = self._clock.now
        if self._training.feeding is Feeding.BARRIER:
            self.opened_at = self._clock.now
        if self._training.max_staleness == 0:
            self._pods.reload(list(self._pods.by_name.values()))
        else:
            self._load_next()
        self._feed.pump()
        self.lender.offer()
        self.look()
        self._pods.wake()

    def _load_next(self, _: object = None) -> None:
        """Rolling: one worker at a time, the one with the oldest weights first."""
        loading = self._loading
        if loading is not None and loading.engine is not None and loading.state is WorkerState.UNREADY:
            return
        old = [
            pod
            for pod in self._pods.by_name.values()
            if pod.engine and pod.state is WorkerState.READY and pod.engine.version < self.version
        ]
        self._loading = min(old, key=lambda pod: pod.engine.version if pod.engine else 0, default=None)
        if self._loading is not None:
            self._pods.reload([self._loading])
            self._clock.after(self._scenario.costs.weights_seconds, self._load_next)
