"""What a rule sees: the snapshot that gateway statistics, engine metrics, pods, loans and batches would give."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl_planner.engine.tables import split_table
from pearl_planner.types import (
    Activity,
    Batch,
    Measurements,
    Mode,
    Policy,
    Role,
    Snapshot,
    Trainer,
    Trajectory,
    Worker,
    WorkerMetrics,
    WorkerState,
    Zone,
)
from pearl_planner.types import (
    Feeding as PlannedFeeding,
)
from pearl_simulator.cluster.decoding import Load
from pearl_simulator.cluster.jobs import Stage
from pearl_simulator.types import Feeding

if TYPE_CHECKING:
    from pearl_planner.types import Budget, Memory, Target
    from pearl_simulator.cluster.engine import Engine
    from pearl_simulator.cluster.jobs import Job
    from pearl_simulator.cluster.pods import Pod
    from pearl_simulator.cluster.world import World
    from pearl_simulator.types import Scenario

UPDATE_WEIGHT = 0.3
"""Of the newest update in the decaying average."""


def policy_of(scenario: Scenario) -> Policy:
    """The user's spec for this scenario; thresholds are the defaults of the spec."""
    calibration, training, budget = scenario.calibration, scenario.training, scenario.fleet.budget()
    table = calibration.planner_table or calibration.table
    prefill, decode = budget.gpus_of(Role.PREFILL), budget.gpus_of(Role.DECODE)
    return Policy(
        generation=1,
        table=table,
        split_table=split_table(table, budget.gpus_per_worker, prefill=prefill, decode=decode),
        modes=tuple(Mode(mode) for mode in scenario.modes),
        objective=scenario.objective,
        window=scenario.router.window,
        window_automatic=scenario.router.window is None,
        max_staleness=training.max_staleness,
        prior_groups=scenario.workload.groups,
        prior_group_size=scenario.workload.group_size,
    )


class View:
    """Builds snapshots of the world."""

    def __init__(self, scenario: Scenario, world: World) -> None:
        self._scenario = scenario
        self._world = world

    def snapshot(self, target: Target | None, memory: Memory) -> Snapshot:
        """As of now; engine metrics cover the time since the last one."""
        world = self._world
        resident, in_flight = self.contexts()
        return Snapshot(
            now=world.clock.now,
            workers=tuple(
                self._worker(pod, resident, in_flight)
                for pod in world.pods.by_name.values()
                if pod.state is not WorkerState.COLD
            ),
            loans=world.lender.loans(),
            budget=self._budget(),
            measurements=self.measurements(),
            profile=world.records.profile(),
            batch=self.batch(),
            target=target,
            memory=memory,
            trainer=self.trainer(),
            feeding=PlannedFeeding(self._scenario.training.feeding.value) if world.trainer.step else None,
        )

    def contexts(self) -> tuple[dict[Engine, int], dict[Engine, int]]:
        """Per engine: context tokens of live trajectories whose KV it holds, and its requests."""
        resident: dict[Engine, int] = {}
        in_flight: dict[Engine, int] = {}
        for job in self._world.feed.live.values():
            engine = job.engine
            if engine is not None:
                in_flight[engine] = in_flight.get(engine, 0) + 1
                if job.stage is Stage.DECODING:
                    resident[engine] = resident.get(engine, 0) + job.tokens
            if job.source is not None:
                in_flight[job.source] = in_flight.get(job.source, 0) + 1
            for holder in {job.home, job.prefill_home}:
                if holder is not None and holder.cache.total:
                    held = holder.cache.peek(job.uid)
                    if held:
                        resident[holder] = resident.get(holder, 0) + held
        return resident, in_flight

    def _worker(self, pod: Pod, resident: dict[Engine, int], in_flight: dict[Engine, int]) -> Worker:
        engine, now = pod.engine, self._world.clock.now
        return Worker(
            uid=pod.uid,
            pod=pod.name,
            slot=pod.slot,
            incarnation=pod.incarnation,
            zone=pod.zone,
            role=pod.role,
            role_epoch=pod.role_epoch,
            activity=pod.activity,
            state=pod.state,
            gpus=pod.gpus,
            acked_epoch=pod.acked_epoch,
            in_flight=in_flight.get(engine, 0) if engine is not None else 0,
            resident_tokens=resident.get(engine, 0) if engine is not None else 0,
            loan=pod.loan,
            notice_seconds=None if pod.gone_at is None else max(pod.gone_at - now, 0.0),
            draining_seconds=now - pod.activity_since if pod.activity is Activity.DRAINING else None,
            acked_activity=pod.acked_activity,
        )

    def _budget(self) -> Budget:
        pods = self._world.pods
        staying = sum(
            pod.gpus
            for pod in pods.by_name.values()
            if pod.zone is Zone.ELASTIC and pod.held_since is not None and pod.gone_at is None
        )
        return self._scenario.fleet.budget(max(pods.market.placeable_gpus - staying, 0))

    def measurements(self) -> Measurements:
        """Engine series cover the time since they were last asked for."""
        feed = self._world.feed
        engines = {pod.uid: _metrics(pod) for pod in self._world.pods.by_name.values() if pod.engine is not None}
        return Measurements(
            gateway_age_seconds=1.0,
            prometheus_age_seconds=1.0 if engines else None,
            engines={name: metrics for name, metrics in engines.items() if metrics is not None},
            live_trajectories=sum(1 for job in feed.live.values() if has_begun(job)),
        )

    def batch(self) -> Batch | None:
        """What the trainer waits for; with refill all live trajectories may become part of it."""
        world, workload = self._world, self._scenario.workload
        trainer, feed = world.trainer, world.feed
        if self._scenario.training.feeding is Feeding.BARRIER and trainer.waiting_since is None:
            return None
        begun = [job for job in feed.live.values() if has_begun(job)]
        ended = sum(len(group.jobs) - group.open for group in feed.open.values())
        now = world.clock.now
        return Batch(
            step=trainer.step,
            groups=workload.groups,
            group_size=workload.group_size,
            need_groups=feed.batch_groups,
            complete_groups=sum(1 for group in feed.open.values() if group.complete_at is not None),
            started=ended + len(begun),
            finished=ended,
            elapsed_seconds=now - trainer.opened_at,
            unfinished=tuple(_trajectory(job, now) for job in begun),
        )

    def trainer(self) -> Trainer:
        """The consumer of the batches."""
        trainer, feed = self._world.trainer, self._world.feed
        since = trainer.waiting_since
        ended = sum(len(group.jobs) - group.open for group in feed.open.values())
        return Trainer(
            update_seconds=self._scenario.training.update_seconds if trainer.version else None,
            waiting_seconds=0.0 if since is None else self._world.clock.now - since,
            ready_trajectories=ended,
        )


def has_begun(job: Job) -> bool:
    """Whether the gateway ever saw a turn of it; while its environment is reset there is only the permit."""
    return job.turn > 0 or job.stage is not Stage.AWAY


def _trajectory(job: Job, now: float) -> Trajectory:
    idle = now - job.away_since if job.stage is Stage.AWAY and job.away_since is not None else None
    return Trajectory(job.group.name, job.turn, job.history if idle is not None else job.tokens, idle)


def _metrics(pod: Pod) -> WorkerMetrics | None:
    """Of the time since the last look, as Prometheus would average it."""
    engine = pod.engine
    if engine is None:
        return None
    load, engine.load = engine.load, Load()
    if load.busy <= 0.0:
        return None
    decoded = load.generated > 0 and load.decoding > 0 and pod.acked_role is not Role.PREFILL
    return WorkerMetrics(
        running=load.sequence_seconds / load.decoding if decoded else None,
        waiting=float(engine.queued),
        generation_tokens_per_second=load.generated / load.busy,
        prompt_tokens_per_second=load.prefilled / load.busy,
        inter_token_seconds=load.sequence_seconds / load.generated if decoded else None,
    )
