"""What act 1 plays: GPUs, a part of a recorded spot trace, a trainer, and agents whose work changes shape."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pearl_simulator.calibration.calibrations import costs, paper, update_seconds
from pearl_simulator.types import Feeding, Fleet, Router, Scenario, Training
from pearl_simulator.workloads.capacity import load_shipped, window
from pearl_simulator.workloads.distributions import LogNormal, LogNormalTurns, Mixture, always, simple
from pearl_simulator.workloads.drawn import DrawnWorkload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pearl_simulator.types import Script

MODEL = "Qwen3-8B"
TABLE = "Qwen/Qwen3-8B/H100-TP2"
TRACE = "bamboo_g4dn"
TRACE_OFFSET_SECONDS = 205 * 60.0
"""From here the trace rises from 2 to 10 spot GPUs, falls to 3 and rises again."""
SECONDS = 9000.0
NOTICE_SECONDS = 120.0
"""Of an AWS spot instance; the trace is of such."""
FLEET = Fleet(gpus_per_worker=2, reserved_gpus=4, elastic_max_gpus=12, borrowed_max_gpus=8)
TRAINER_LABELS = {"role": "trainer"}
GROUPS, GROUP_SIZE = 4, 16


@dataclass(frozen=True, slots=True)
class Phase:
    """So many batches of agents of one kind."""

    title: str
    agents: DrawnWorkload
    steps: int


@dataclass(frozen=True, slots=True)
class Phases:
    """One after the other, over and over."""

    phases: tuple[Phase, ...]
    name: str = "agents that change"
    groups: int = GROUPS
    group_size: int = GROUP_SIZE

    def of(self, step: int) -> Phase:
        """The phase of a batch."""
        left = step % sum(phase.steps for phase in self.phases)
        for phase in self.phases:
            if left < phase.steps:
                return phase
            left -= phase.steps
        raise AssertionError("the remainder is in one of them")

    def batch(self, step: int, seed: int) -> Sequence[Script]:
        """Of the phase's agents."""
        return self.of(step).agents.batch(step, seed)


_AGENTS = DrawnWorkload(
    name="agents",
    turns=LogNormalTurns(24, 0.3, 0.4, cap=60),
    first_prompt=always(2048),
    appended=LogNormal(200, 0.7),
    generated=LogNormal(300, 0.7),
    environment=simple(LogNormal(0.5, 0.5)),
    reset=simple(always(2.0)),
    reward_seconds=1.0,
    groups=GROUPS,
    group_size=GROUP_SIZE,
)
REASONING = replace(
    _AGENTS, name="reasoning", first_prompt=always(1024), appended=LogNormal(60, 0.7), generated=LogNormal(900, 0.7)
)
READING = replace(
    _AGENTS,
    name="reading",
    first_prompt=always(12_000),
    appended=LogNormal(3000, 0.7),
    generated=LogNormal(100, 0.7),
    missed_share=0.9,
)
WAITING = replace(
    _AGENTS,
    name="waiting",
    generated=LogNormal(60, 0.7),
    environment=Mixture(LogNormal(8.0, 0.6), LogNormal(25.0, 0.6), 0.1),
    reset=simple(LogNormal(8.0, 0.8)),
    reward_seconds=20.0,
)
PHASES = Phases(
    (
        Phase("agents reason: long answers", REASONING, 5),
        Phase("agents read: long prompts, short answers", READING, 5),
        Phase("agents wait: slow tools", WAITING, 4),
    )
)


def scenario(phases: Phases = PHASES, seconds: float = SECONDS) -> Scenario:
    """Everything but the operator."""
    trace = window(load_shipped(TRACE), TRACE_OFFSET_SECONDS, seconds)
    return Scenario(
        name="act 1",
        workload=phases,
        calibration=paper(MODEL),
        training=Training(update_seconds(FLEET.borrowed_max_gpus), Feeding.REFILL, max_staleness=1),
        horizon_seconds=seconds,
        fleet=FLEET,
        costs=replace(costs(MODEL), notice_seconds=NOTICE_SECONDS),
        router=Router(window=None),
        capacity=trace,
    )


def title(played: Scenario, step: int) -> str:
    """What the agents of a batch do."""
    return played.workload.of(step).title if isinstance(played.workload, Phases) else played.workload.name


def spec(played: Scenario) -> dict[str, Any]:
    """What a user would write for it."""
    fleet, workload = played.fleet, played.workload
    return {
        "model": {"name": "Qwen/Qwen3-8B", "uri": "/models/qwen3-8b"},
        "engine": {"image": "example/worker:1", "tensorParallel": fleet.gpus_per_worker, "table": TABLE},
        "capacity": {
            "reserved": {"gpus": fleet.reserved_gpus},
            "elastic": {"maxGpus": fleet.elastic_max_gpus},
            "borrowed": {"maxGpus": fleet.borrowed_max_gpus, "trainerSelector": TRAINER_LABELS},
        },
        "mode": "Auto",
        "workload": {"groups": workload.groups, "groupSize": workload.group_size},
        "weights": {"source": "file:///weights", "maxStaleness": played.training.max_staleness},
        "metrics": {"prometheus": {"url": "http://prometheus:9090"}},
    }
