"""The real operator over a simulated data plane (`pearl_dev.virtual`), both on the time of one virtual event loop."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import looptime
from fake_cluster import FakeAgents, World

from pearl_dev.virtual.clock import VirtualClock
from pearl_dev.virtual.data_plane import DataPlane
from pearl_dev.virtual.kube import FakeKube
from pearl_dev.virtual.kubelet import FakeKubelet
from pearl_operator.settings import Settings

if TYPE_CHECKING:
    from pearl_simulator.types import Scenario

TICK_SECONDS = 0.5
LOOK_SECONDS = 5.0
TABLE = "Qwen/Qwen3-8B/H100-TP2"


@dataclass
class Operated:
    """One operator, one rollout and its simulated data plane."""

    cluster: World
    plane: DataPlane


def operated(scenario: Scenario, seed: int) -> Operated:
    """The cluster of a scenario, with the rollout applied; nothing runs yet."""
    kube = FakeKube(VirtualClock())
    kubelet = FakeKubelet(kube, schedule=False)
    plane = DataPlane(scenario, seed, kube, kubelet)
    settings = Settings(
        namespace="rl",
        gateway_image="example/operator:1",
        cluster_scoped=False,
        look_seconds=LOOK_SECONDS,
        debug_ring=100_000,
    )
    cluster = World(kube, kubelet, plane.gateway, plane.gateway, FakeAgents(kube), settings)  # type: ignore[arg-type]
    return Operated(cluster, plane)


def spec_of(scenario: Scenario) -> dict[str, Any]:
    """What a user would write for it; thresholds and deadlines are the defaults."""
    fleet, training = scenario.fleet, scenario.training
    window = scenario.router.window
    return {
        "engine": {"image": "example/worker:1", "tensorParallel": fleet.gpus_per_worker, "table": TABLE},
        "capacity": {"reserved": {"gpus": fleet.reserved_gpus}, "elastic": {"maxGpus": fleet.elastic_max_gpus}},
        "mode": "Auto",
        "workload": {"groups": scenario.workload.groups, "groupSize": scenario.workload.group_size},
        "weights": {"source": "file:///weights", "maxStaleness": training.max_staleness},
        "metrics": {"prometheus": {"url": "http://prometheus:9090"}},
        "policy": {
            "deadlines": {"drainSeconds": 60},
            "hysteresis": {"minDwellSeconds": 30},
            "inFlight": "Auto" if window is None else window,
        },
    }


async def operate(scenario: Scenario, seed: int) -> Operated:
    """Let the operator run the scenario to its end."""
    both = operated(scenario, seed)
    both.cluster.apply(**spec_of(scenario))
    both.plane.start()
    await both.cluster.start()
    try:
        while not both.plane.over:
            if both.cluster._task is not None and both.cluster._task.done():
                both.cluster._task.result()
            both.plane.advance()
            await asyncio.sleep(TICK_SECONDS)
    finally:
        core = both.cluster.core
        await both.cluster.stop()
        both.cluster.core = core  # its ring is of interest
    return both


def run_operated(scenario: Scenario, seed: int) -> Operated:
    """The same from a program."""
    with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        return runner.run(operate(scenario, seed))
