"""Which groups may start: permits for whole groups within the in-flight window and the staleness bound.

Groups start in the order of the workload. With weights v published, at most `(v + 1)` batches may have been started
under a barrier and `(v + η + 1)` with refill: then no more than one batch of groups can be due at any version, and a
trainer that takes what is due first consumes nothing older than η. A batch counts as consumed here only once its
weights are published, since what starts while the trainer works starts under the old ones. The first turn of the k-th
group needs weights of at least version `k // batch - η`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl_simulator.cluster.clock import SimulationError
from pearl_simulator.cluster.jobs import Group, Job, Stage
from pearl_simulator.types import Feeding

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pearl_simulator.cluster.clock import Clock
    from pearl_simulator.types import Scenario, Script


class Feed:
    """Groups that started and are not consumed yet."""

    def __init__(self, scenario: Scenario, seed: int, clock: Clock, request: Callable[[Job], None]) -> None:
        self._workload = scenario.workload
        self._training = scenario.training
        self._capacity = scenario.calibration.table.kv_capacity_tokens
        self._seed = seed
        self._clock = clock
        self._request = request
        self._scripts: Sequence[Script] = ()
        self.jobs_made = 0
        """Trajectories that began."""
        self.closed = False
        """No more of them may begin."""
        self.started_groups = 0
        self.in_flight = 0
        """Trajectories with a permit that have not ended."""
        self.window = scenario.router.window
        self.version = 0
        """Published."""
        self.open: dict[int, Group] = {}
        """By number, not consumed yet."""
        self.live: dict[int, Job] = {}
        """By number, not ended."""

    @property
    def batch_groups(self) -> int:
        """Groups that one step consumes: those needed; a barrier starts all that are wanted."""
        return self._training.need_groups or self._workload.groups

    @property
    def _per_version(self) -> int:
        return self._workload.groups if self._training.feeding is Feeding.BARRIER else self.batch_groups

    def pump(self) -> None:
        """Start every group that may start now."""
        ahead = 0 if self._training.feeding is Feeding.BARRIER else self._training.max_staleness
        limit = (self.version + ahead + 1) * self._per_version
        size = self._workload.group_size
        while not self.closed and self.started_groups < limit and self._has_room(size):
            self._start()

    def _has_room(self, size: int) -> bool:
        # A group larger than the window is let in alone: it could never start otherwise.
        return self.window is None or not self.in_flight or self.in_flight + size <= self.window

    def _start(self) -> None:
        number, size = self.started_groups, self._workload.group_size
        place = number % self._workload.groups
        if place == 0:
            self._scripts = self._workload.batch(number // self._workload.groups, self._seed)
        group = Group(number)
        due = number // self._per_version - self._training.max_staleness
        for script in self._scripts[place * size : (place + 1) * size]:
            self._check(script)
            job = Job(self.jobs_made, script, group)
            job.min_version = max(due, 0)
            self.jobs_made += 1
            group.jobs.append(job)
            self.live[job.uid] = job
            self._clock.after(script.reset_seconds, self._request, job)
        group.open = len(group.jobs)
        if not group.jobs:
            raise SimulationError(f"workload {self._workload.name!r}: batch {number} has too few trajectories")
        self.in_flight += group.open
        self.started_groups += 1
        self.open[number] = group

    def _check(self, script: Script) -> None:
        """Every prompt with its answer must fit one worker, or the run would never end."""
        if self._capacity is None:
            return
        context = 0
        for turn in script.turns:
            context += turn.appended_tokens
            if context + turn.generated_tokens > self._capacity:
                raise SimulationError(
                    f"workload {self._workload.name!r}: a context of {context + turn.generated_tokens} tokens does not "
                    f"fit the KV room of {self._capacity} tokens; use larger workers or shorter contexts"
                )
            context += turn.retained_tokens

    def ended(self, job: Job) -> bool:
        """A trajectory is over; whether its group is complete now."""
        if job.stage is Stage.ENDED or job.uid not in self.live:
            raise SimulationError(f"{job.name} ended twice")
        job.stage = Stage.ENDED
        del self.live[job.uid]
        self.in_flight -= 1
        job.group.open -= 1
        if job.group.open == 0:
            job.group.complete_at = self._clock.now
            return True
        return False

    def skip_to_step(self, step: int) -> None:
        """What was not started of the steps before is not wanted any more."""
        self.started_groups = max(self.started_groups, step * self._workload.groups)

    def consume(self, groups: Sequence[Group]) -> None:
        """A training step takes these."""
        for group in groups:
            del self.open[group.number]
