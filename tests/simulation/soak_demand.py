"""What the rollouts of the soak are asked for, and how their gateway and Prometheus tell it.

A rollout works on one batch after the other; what its turns are like changes every few hours, and one rollout rests
at night. How fast a batch goes depends on the workers that serve, which is all that is simulated of them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from fake_cluster import quiet_stats
from soak_cluster import is_ready

from pearl_api import names
from pearl_api.wire.gateway import BatchProgress, ConsumerView, LiveStates, TrajectoryProgress, WorkerView
from pearl_operator.errors import Unavailable
from pearl_operator.ports import EngineSamples
from pearl_planner.types import WorkerMetrics
from pearl_planner.workload.profile import update
from pearl_planner.workload.records import TrajectoryRecord, TurnRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from soak_cluster import Cluster, Object

    from pearl_api.rollout import PrometheusSpec
    from pearl_api.wire.gateway import GatewayStats
    from pearl_operator.dcgm import GpuSample
    from pearl_operator.ports import RolloutKey

HOUR, DAY = 3600.0, 86400.0
GROUPS, GROUP_SIZE = 4, 8
UPDATE_SECONDS = 60.0
TURNS = 10
ACK_SECONDS = 0.3
DRAIN_SECONDS = 8.0
"""Until a worker that is drained has nothing in flight."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Turns of one kind."""

    name: str
    first: float
    appended: float
    generated: float
    wait_seconds: float
    worker_seconds: float
    """Of one worker for one batch."""
    least_seconds: float
    """Of a batch, however many workers there are."""


DECODE = Kind("decode", 1024, 100, 1000, 0.3, 3600.0, 120.0)
PREFILL = Kind("prefill", 8192, 1500, 60, 0.3, 2400.0, 120.0)
ENVIRONMENT = Kind("environment", 2048, 200, 60, 30.0, 600.0, 900.0)
KINDS = (DECODE, PREFILL, ENVIRONMENT)


@cache
def profile_of(kind: Kind) -> dict[str, Any]:
    """The sketch of some hundred turns of this kind."""
    draw = random.Random(kind.name)
    records: list[TurnRecord | TrajectoryRecord] = []
    for number in range(GROUPS * GROUP_SIZE):
        name, group, context, before = f"t{number}", f"g{number // GROUP_SIZE}", 0, None
        turns = max(1, round(TURNS * draw.lognormvariate(0.0, 0.3)))
        made = 0
        for turn in range(1, turns + 1):
            appended = kind.first if turn == 1 else kind.appended * draw.lognormvariate(0.0, 0.5)
            generated = kind.generated * draw.lognormvariate(0.0, 0.5)
            context += round(appended) + (before or 0)
            records.append(
                TurnRecord(
                    trajectory=name,
                    turn=turn,
                    group=group,
                    appended_tokens=round(appended),
                    generated_tokens=round(generated),
                    context_tokens=context,
                    previous_generated_tokens=before,
                    retained_tokens=before,
                    environment_seconds=None if turn == 1 else kind.wait_seconds * draw.lognormvariate(0.0, 0.5),
                    route="colocated",
                )
            )
            before = round(generated)
            made += before
        records.append(TrajectoryRecord(trajectory=name, turns=turns, group=group, generated_tokens=made))
    return update(None, records).to_dict()


@dataclass
class Demand:
    """Of one rollout. `seed` decides which kinds of turns come when."""

    rollout: str
    seed: int
    nights: bool = False
    """Nothing is asked for from 22:00 to 6:00."""
    step: int = 0
    kind: Kind = DECODE
    busy: bool = False
    """A batch is open."""
    changed: Callable[[str], None] = lambda _what: None
    _progress: float = 0.0
    _opened_at: float = 0.0
    _rests_until: float = 0.0
    _published_at: float = 0.0
    _asked_at: float | None = None
    _advanced_at: float = 0.0
    _next_kind_at: float = 0.0
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(f"{self.seed}/{self.rollout}/demand")

    def advance(self, now: float, serving: int) -> None:
        """Brings the batch up to `now`."""
        passed, self._advanced_at = now - self._advanced_at, now
        if now >= self._next_kind_at:
            self._next_kind_at = now + self._random.uniform(2.0, 5.0) * HOUR
            others = [one for one in KINDS if one is not self.kind]
            self.kind = self._random.choice(others)
            self.changed(f"turns are {self.kind.name} now")
        if self.busy:
            self._asked_at = now
            rate = min(serving / self.kind.worker_seconds, 1.0 / self.kind.least_seconds)
            self._progress += passed * rate
            if self._progress >= 1.0:
                self.busy, self._rests_until = False, now + UPDATE_SECONDS
        elif now >= self._rests_until and not (self.nights and _is_night(now)):
            if self._asked_at is not None and now - self._asked_at > 2 * UPDATE_SECONDS:
                self.changed("it is asked again")
            self.busy, self._progress, self.step = True, 0.0, self.step + 1
            self._opened_at = self._published_at = self._asked_at = now

    @property
    def finished(self) -> int:
        return min(int(self._progress * GROUPS * GROUP_SIZE), GROUPS * GROUP_SIZE - 1)

    @property
    def live(self) -> int:
        """Trajectories in flight."""
        return GROUPS * GROUP_SIZE - self.finished if self.busy else 0

    def stats(self, now: float, workers: list[WorkerView]) -> GatewayStats:
        """What the gateway says."""
        waits = self.kind is ENVIRONMENT
        return quiet_stats(
            self.rollout,
            uptime_seconds=now + 1.0,
            profile=profile_of(self.kind),
            batch=self._batch(now) if self.busy else None,
            unfinished=self._unfinished() if self.busy else [],
            live=LiveStates(environment=self.live) if waits else LiveStates(decoding=self.live),
            asked_seconds=None if self._asked_at is None else now - self._asked_at,
            workers=workers,
            refill=True,
            consumer=ConsumerView(
                update_seconds=UPDATE_SECONDS,
                waiting_seconds=now - self._published_at if self.busy else 0.0,
                ready_trajectories=self.finished if self.busy else 0,
            ),
        )

    def _batch(self, now: float) -> BatchProgress:
        return BatchProgress(
            step=self.step,
            groups=GROUPS,
            group_size=GROUP_SIZE,
            need_groups=GROUPS,
            min_version=0,
            started=GROUPS * GROUP_SIZE,
            finished=self.finished,
            aborted=0,
            complete_groups=self.finished // GROUP_SIZE,
            open_seconds=now - self._opened_at,
            closed=False,
        )

    def _unfinished(self) -> list[TrajectoryProgress]:
        done = int(self._progress * TURNS)
        tokens = round(self.kind.first + done * (self.kind.appended + self.kind.generated))
        return [
            TrajectoryProgress(
                group=f"{self.step}/{number // GROUP_SIZE}", turns_done=done, context_tokens=tokens, idle_seconds=None
            )
            for number in range(self.finished, GROUPS * GROUP_SIZE)
        ]


def _is_night(now: float) -> bool:
    """Time begins at midnight."""
    hour = now % DAY / HOUR
    return hour < 6.0 or hour >= 22.0


Acked = tuple[int, str, float]
"""Role epoch, activity, and when."""


@dataclass
class SoakGateway:
    """The gateways of all rollouts."""

    cluster: Cluster
    demands: dict[str, Demand] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    """Rollouts whose gateway does not answer."""
    _acked: dict[str, dict[str, Acked]] = field(default_factory=dict)
    """By rollout and UID."""

    async def stats(self, rollout: RolloutKey) -> GatewayStats:
        if rollout.name in self.down or rollout.name not in self.demands:
            raise Unavailable("the gateway does not answer")
        demand, now = self.demands[rollout.name], self.cluster.kube.clock.monotonic()
        bodies = self.cluster.workers.get(rollout.name, {})
        demand.advance(now, self.serving(rollout.name))
        share = -(-demand.live // max(self.serving(rollout.name), 1))
        acked = self._acked.setdefault(rollout.name, {})
        for uid in acked.keys() - bodies.keys():
            del acked[uid]
        return demand.stats(now, [self._view(body, share, now, acked) for body in bodies.values()])

    def serving(self, rollout: str) -> int:
        """Workers that turns are routed to."""
        return sum(1 for body in self.cluster.workers.get(rollout, {}).values() if serves(body))

    def _view(self, body: Object, share: int, now: float, acked: dict[str, Acked]) -> WorkerView:
        meta = body["metadata"]
        labels, uid = meta["labels"], meta["uid"]
        epoch, activity = int(labels[names.LABEL_ROLE_EPOCH]), labels[names.LABEL_ACTIVITY]
        known = acked.get(uid)
        if known is None or ((epoch, activity) != known[:2] and now - known[2] >= ACK_SECONDS):
            known = acked[uid] = (epoch, activity, now)
        since = self.cluster.draining_since.get(uid)
        busy = share if since is None or now - since < DRAIN_SECONDS else 0
        return WorkerView(
            uid=uid,
            pod=meta["name"],
            role=names.Role(labels[names.LABEL_ROLE]),
            acked_epoch=known[0],
            activity=names.Activity(known[1]),
            ready=is_ready(body),
            in_flight=busy if is_ready(body) else 0,
            resident_tokens=0,
        )


def serves(body: Object) -> bool:
    active = body["metadata"]["labels"][names.LABEL_ACTIVITY] == names.Activity.ACTIVE
    return active and is_ready(body) and "deletionTimestamp" not in body["metadata"]


@dataclass
class SoakPrometheus:
    """Engine series of all rollouts."""

    gateway: SoakGateway
    down: bool = False
    wrong: bool = False
    """It answers, with NaN."""

    async def gpus(self, rollout: RolloutKey, spec: PrometheusSpec) -> list[GpuSample]:
        del rollout, spec
        return []

    async def engines(self, rollout: RolloutKey, spec: PrometheusSpec) -> EngineSamples:
        del spec
        if self.down:
            raise Unavailable("Prometheus does not answer")
        cluster = self.gateway.cluster
        bodies = [body for body in cluster.workers.get(rollout.name, {}).values() if serves(body)]
        demand = self.gateway.demands.get(rollout.name)
        share = demand.live / max(len(bodies), 1) if demand is not None else 0.0
        metrics = WorkerMetrics(running=share, waiting=0.0, kv_usage=0.1, inter_token_seconds=0.008 + 1e-4 * share)
        if self.wrong:
            nan = float("nan")
            metrics = WorkerMetrics(nan, nan, nan, nan, nan, nan)
        found = {f"{one['metadata']['namespace']}/{one['metadata']['name']}": metrics for one in bodies}
        return EngineSamples(found, dict.fromkeys(found, cluster.kube.clock.now()))
