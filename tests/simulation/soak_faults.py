"""What goes wrong in the soak: one fault after the other, drawn by a seed; every third day none."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from soak_cluster import NAMESPACE, is_ready
from soak_demand import DAY, HOUR

from pearl_api import names
from pearl_dev.virtual.operator import WATCHED
from pearl_operator import kinds

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

    from soak import Scene
    from soak_cluster import Object

    from pearl_operator.kinds import Kind

PAUSE_SECONDS = 1.2 * HOUR
"""Mean time between two faults."""
KILLED_MEANWHILE = 0.25
"""Share of faults during which the operator is killed too."""
CALM_DAY = 2
"""Of three."""


@dataclass
class Faults:
    """Breaks `scene`; what of it forces changes is told to its checks."""

    scene: Scene
    random: random.Random
    counts: dict[str, int] = field(default_factory=dict)
    over: bool = False

    async def run(self) -> None:
        """Until `over`."""
        while not self.over:
            await asyncio.sleep(self.random.expovariate(1 / PAUSE_SECONDS))
            if int(asyncio.get_running_loop().time() / DAY) % 3 == CALM_DAY or self.over:
                continue
            fault = self.random.choice(self._all())
            name = fault.__name__.strip("_").replace("_", " ")
            self.counts[name] = self.counts.get(name, 0) + 1
            if self.random.random() < KILLED_MEANWHILE:
                self.counts["operator killed meanwhile"] = self.counts.get("operator killed meanwhile", 0) + 1
                asyncio.get_running_loop().call_later(self.random.uniform(0.0, 120.0), self.scene.process.kill)
            await fault()

    def _all(self) -> list[Callable[[], Awaitable[None]]]:
        return [
            self._api_server_away,
            self._conflicts,
            self._silent_watches,
            self._operator_killed,
            self._operator_killed_between_writes,
            self._gateway_away,
            self._prometheus_away,
            self._prometheus_tells_nan,
            self._pods_never_start,
            self._pods_fail_at_once,
            self._quota,
            self._engine_dies,
            self._edited_and_reverted,
            self._edited_and_reverted,
            self._clock_set,
            self._clock_set,
            self._short_lived_rollout,
        ]

    async def _wait(self, low: float, high: float) -> None:
        await asyncio.sleep(self.random.uniform(low, high))

    def _one(self) -> str:
        return self.random.choice(sorted(self.scene.gateway.demands))

    # --- API server and operator

    async def _api_server_away(self) -> None:
        with self.scene.checks.outage("the API server is away"):
            self.scene.kube.down = True
            await self._wait(20, 90)
            self.scene.kube.down = False

    async def _conflicts(self) -> None:
        with self.scene.checks.outage("409 storm"):
            self.scene.kube.status_conflicts = self.random.randint(5, 40)
            self.scene.kube.refuse_apply = lambda kind, _body: "409" if kind is kinds.POD else None
            await self._wait(20, 60)
            self.scene.kube.status_conflicts = 0
            self.scene.kube.refuse_apply = lambda _kind, _body: None

    async def _silent_watches(self) -> None:
        """They are silent, expire, and list anew: what is gone is in no list."""
        process = self.scene.process
        with self.scene.checks.outage("the watches are silent"):
            process.deaf = True
            await self._wait(30, 300)
            process.deaf = False
            for kind in WATCHED:
                for body in self.scene.kube.of(kind):
                    process._watch("MODIFIED", kind, body)

    async def _operator_killed(self) -> None:
        self.scene.process.kill()

    async def _operator_killed_between_writes(self) -> None:
        self.scene.kube.kill_after = self.random.randint(1, 6)

    async def _clock_set(self) -> None:
        """The wall clock of the operator's machine is wrong for a while."""
        off = self.random.choice((-3600.0, -600.0, -60.0, -5.0, 5.0, 60.0, 600.0, 3600.0))
        self.scene.checks.told_all(f"the clock is set by {off:+.0f} s")
        self.scene.process.clock.offset = off
        await self._wait(300, 3000)
        self.scene.process.clock.offset = 0.0
        self.scene.checks.told_all(f"the clock is set by {-off:+.0f} s")

    # --- sources

    async def _gateway_away(self) -> None:
        name = self._one()
        self.scene.gateway.down.add(name)
        await self._wait(60, 600)
        self.scene.gateway.down.discard(name)

    async def _prometheus_away(self) -> None:
        self.scene.prometheus.down = True
        await self._wait(60, 600)
        self.scene.prometheus.down = False

    async def _prometheus_tells_nan(self) -> None:
        self.scene.prometheus.wrong = True
        await self._wait(60, 600)
        self.scene.prometheus.wrong = False

    # --- pods

    async def _pods_never_start(self) -> None:
        with self.scene.checks.outage("new pods never start"):
            self.scene.cluster.stuck = True
            await self._wait(300, 900)
            self.scene.cluster.unstick()

    async def _pods_fail_at_once(self) -> None:
        with self.scene.checks.outage("new pods fail at once"):
            self.scene.cluster.failing = True
            await self._wait(120, 600)
            self.scene.cluster.failing = False

    async def _quota(self) -> None:
        def refuse(kind: Kind, body: Object) -> str | None:
            del body
            return "exceeded quota: gpus" if kind is kinds.POD else None

        with self.scene.checks.outage("quota"):
            self.scene.kube.refuse = refuse
            await self._wait(120, 600)
            self.scene.kube.refuse = lambda _kind, _body: None

    async def _engine_dies(self) -> None:
        bodies = [
            body
            for body in self.scene.kube.of(kinds.POD)
            if is_ready(body)
            and names.LABEL_SLOT in (labels := body["metadata"]["labels"])
            and "pearl.dev/loan" not in labels
        ]
        if bodies:
            body = self.random.choice(bodies)
            rollout = body["metadata"]["labels"][names.LABEL_ROLLOUT]
            self.scene.checks.told(rollout, f"the engine of {body['metadata']['name']} died")
            self.scene.cluster.fail(body)

    # --- users

    async def _edited_and_reverted(self) -> None:
        name = self._one()
        body = self.scene.kube.objects["pearlrollouts", NAMESPACE, name]
        before = body["spec"]
        gpus, parallel = before["capacity"]["reserved"]["gpus"], before["engine"]["tensorParallel"]
        change: Object = self.random.choice(
            (
                {"capacity": {"reserved": {"gpus": gpus + parallel}}},
                {"capacity": {"reserved": {"gpus": max(gpus - parallel, 0)}}},
                {"capacity": {"elastic": {"maxGpus": parallel}}},
                {"engine": {"image": "example/worker:2"}},
                {"mode": self.random.choice(("Colocated", "Disaggregated"))},
                {"suspend": True},
                {"policy": {"objective": "Cost"}},
                {"idle": {"action": self.random.choice(("None", "Sleep", "ScaleToZero"))}},
            )
        )
        self.scene.apply(name, change)
        await self._wait(1, 60) if self.random.random() < 0.5 else await self._wait(60, 2000)
        self.scene.replace_spec(name, before)

    async def _short_lived_rollout(self) -> None:
        """A rollout for an hour; every second one is there again as soon as it is deleted."""
        scene, again = self.scene, self.random.random() < 0.5
        for _ in range(1 + again):
            scene.add_rollout("short")
            await self._wait(300, 3600)
            scene.remove_rollout("short")
            await self._wait(0.5, 5)
        await asyncio.sleep(180.0)
        scene.checks.forgotten("short")
