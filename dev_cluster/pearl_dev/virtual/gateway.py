"""What the gateway, the engines and the agents of a simulated data plane tell the operator."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pearl_api import names
from pearl_api.wire.gateway import (
    BatchProgress,
    ConsumerView,
    Counters,
    GatewayStats,
    LiveStates,
    TrajectoryProgress,
    WorkerView,
)
from pearl_operator import kinds
from pearl_operator.ports import EngineSamples
from pearl_planner.types import WorkerState
from pearl_simulator.cluster.jobs import Stage
from pearl_simulator.cluster.view import View, has_begun
from pearl_simulator.types import Feeding

if TYPE_CHECKING:
    from pearl_api.rollout import PrometheusSpec
    from pearl_dev.virtual.data_plane import DataPlane
    from pearl_operator.dcgm import GpuSample
    from pearl_operator.ports import RolloutKey
    from pearl_planner.types import Batch, Trajectory

STAGES = {
    Stage.AWAY: "environment",
    Stage.HOMELESS: "queued",
    Stage.QUEUED: "queued",
    Stage.PREFILLING: "prefilling",
    Stage.LANDING: "prefilling",
    Stage.MOVING: "prefilling",
    Stage.DECODING: "decoding",
}


@dataclass
class SimulatedGateway:
    """Gateway and Prometheus in one: both tell of the same engines."""

    plane: DataPlane
    _view: View = field(init=False)

    def __post_init__(self) -> None:
        self._view = View(self.plane.scenario, self.plane.world)

    async def stats(self, rollout: RolloutKey) -> GatewayStats:
        """The gateway's view; the batch is what the trainer waits for."""
        self.plane.advance()
        world, training = self.plane.world, self.plane.scenario.training
        profile, batch, trainer = world.records.profile(), self._view.batch(), self._view.trainer()
        versions = [engine.version for engine in world.pods.engines()]
        begun = [job for job in world.feed.live.values() if has_begun(job)]
        return GatewayStats(
            rollout=rollout.name,
            uptime_seconds=world.clock.now,
            profile=None if profile is None else profile.to_dict(),
            profile_age_seconds=None,
            batch=None if batch is None else self._progress(batch),
            unfinished=[] if batch is None else [_trajectory(one) for one in batch.unfinished],
            live=LiveStates(**Counter(STAGES[job.stage] for job in begun)),
            workers=self._workers(),
            counters=Counters(),
            window=world.feed.window,
            local_append_tokens=world.router.local_append_tokens,
            weights_wanted=world.trainer.version,
            weights_min=min(versions, default=None),
            weights_max=max(versions, default=None),
            refill=training.feeding is Feeding.REFILL if world.trainer.step else None,
            consumer=ConsumerView(
                update_seconds=trainer.update_seconds,
                waiting_seconds=trainer.waiting_seconds,
                ready_trajectories=trainer.ready_trajectories,
            ),
        )

    def _progress(self, batch: Batch) -> BatchProgress:
        oldest = self.plane.world.trainer.version - self.plane.scenario.training.max_staleness
        return BatchProgress(
            step=batch.step,
            groups=batch.groups,
            group_size=batch.group_size,
            need_groups=batch.need_groups,
            min_version=max(oldest, 0),
            started=batch.started,
            finished=batch.finished,
            aborted=0,
            complete_groups=batch.complete_groups,
            open_seconds=batch.elapsed_seconds,
            closed=False,
        )

    def _workers(self) -> list[WorkerView]:
        resident, in_flight = self._view.contexts()
        return [
            WorkerView(
                uid=uid,
                pod=pod.name,
                role=names.Role(pod.acked_role.value),
                acked_epoch=pod.acked_epoch,
                activity=names.Activity(pod.acked_activity.value),
                ready=pod.state is WorkerState.READY,
                in_flight=in_flight.get(pod.engine, 0) if pod.engine else 0,
                resident_tokens=resident.get(pod.engine, 0) if pod.engine else 0,
                weight_version=pod.engine.version if pod.engine else None,
            )
            for uid, pod in self.plane.pods.items()
        ]

    async def engines(self, rollout: RolloutKey, spec: PrometheusSpec) -> EngineSamples:
        """The engines' series since the last time."""
        del rollout, spec
        self.plane.advance()
        by_name = self._view.measurements().engines
        uids = {pod.uid: uid for uid, pod in self.plane.pods.items()}
        metas = (one["metadata"] for one in self.plane.kube.of(kinds.POD))
        named = {meta["uid"]: f"{meta['namespace']}/{meta['name']}" for meta in metas}
        found = {uids[key]: metrics for key, metrics in by_name.items() if key in uids}
        samples = {named[uid]: metrics for uid, metrics in found.items() if uid in named}
        scraped = [named[uid] for uid, pod in self.plane.pods.items() if pod.engine and uid in named]
        return EngineSamples(samples, dict.fromkeys(scraped, self.plane.kube.clock.now()))

    async def gpus(self, rollout: RolloutKey, spec: PrometheusSpec) -> list[GpuSample]:
        """There is no DCGM exporter."""
        del rollout, spec
        return []


def _trajectory(one: Trajectory) -> TrajectoryProgress:
    return TrajectoryProgress(
        group=one.group, turns_done=one.turns_done, context_tokens=one.context_tokens, idle_seconds=one.idle_seconds
    )
