"""The prefix-cache cliff: the simulator against an independent replay of the same sessions on the same eight GPUs.

200 recorded agent sessions, at most 128 at once, on 8 H200 workers of one GPU each, in every shape from 2P6D to 5P3D
and colocated. With two prefill workers the contexts of the live sessions do not fit their KV: histories are computed
again and again, and a planner that balances only arithmetic would choose exactly that shape.

`cliff_page.py` makes the page. Where `ai-dynamo-runtime` is installed (`cliff_oracle.py`) the independent replay
can run again; `data/cliff_reference.json` has its figures.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from importlib import resources
from statistics import mean
from typing import TYPE_CHECKING

from pearl_planner.prediction.mean_turn import Workload
from pearl_planner.prediction.predict import predict
from pearl_planner.types import Shape
from pearl_simulator.calibration.calibrations import clean
from pearl_simulator.rules.fixed import FixedRule
from pearl_simulator.run import run
from pearl_simulator.types import Costs, Feeding, Fleet, Router, Scenario, Script, Training
from pearl_simulator.workloads.recordings import read_recordings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pearl_planner.engine.model import EngineTable

SESSIONS = "synthetic_swe_200"
CONCURRENCY = 128
GPUS = 8
KV_BLOCK_TOKENS = 64
LINK_BYTES_PER_SECOND = 50e9
SHAPES: tuple[tuple[int, int] | None, ...] = ((2, 6), (3, 5), (4, 4), (5, 3), None)
"""P:D; None = colocated."""


DEFAULT, STICKY = 1.0, 16.0
"""What the router of the replay charges for cold prompts."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What the independent replay says about one model: (seconds, prefix reuse) by shape."""

    model: str
    kv_tokens: int
    """Of one GPU."""
    published: dict[str, tuple[float, float]]
    """With its own step times and default router."""
    sticky: dict[str, tuple[float, float]]
    """With this project's step times, its router charging `STICKY` times for cold prompts."""
    default: dict[str, tuple[float, float]]
    """The same with its default router."""


def references() -> tuple[Reference, ...]:
    """`data/cliff_reference.json`, which names its source."""
    data = json.loads((resources.files("pearl_simulator") / "data/cliff_reference.json").read_text())
    return tuple(
        Reference(
            model, one["kv_blocks"] * KV_BLOCK_TOKENS, one["published"], *(one["replayed"][k] for k in ("16", "1"))
        )
        for model, one in data["models"].items()
    )


@dataclass(frozen=True, slots=True)
class Cell:
    """What one shape did."""

    shape: str
    seconds: float
    """Until the last session ended."""
    reuse: float
    """Share of all prompt tokens that were not computed."""


@dataclass(frozen=True, slots=True)
class Sessions:
    """Every recorded session exactly once; each is a group of its own, so no prompts are shared."""

    scripts: tuple[Script, ...]
    name: str = SESSIONS
    group_size: int = 1

    @property
    def groups(self) -> int:
        """One per session."""
        return len(self.scripts)

    def batch(self, step: int, seed: int) -> Sequence[Script]:
        """The same for every step and seed."""
        del step, seed
        return self.scripts


def sessions() -> Sessions:
    """The recording that ships."""
    found = read_recordings(SESSIONS)
    return Sessions(tuple(Script(at, 0, 0.0, recording.turns) for at, recording in enumerate(found)))


def shape_name(shape: tuple[int, int] | None) -> str:
    """`2P6D`, or `8 colocated`."""
    return f"{GPUS} colocated" if shape is None else f"{shape[0]}P{shape[1]}D"


def engine_table(reference: Reference) -> EngineTable:
    """One H200 with the KV room and the link of the independent replay."""
    return replace(
        clean(reference.model, "H200", 1).table,
        kv_capacity_tokens=reference.kv_tokens,
        transfer_bytes_per_second=LINK_BYTES_PER_SECOND,
        transfer_fixed_seconds=0.0,
    )


def simulate(reference: Reference, shape: tuple[int, int] | None, workload: Sessions, *, seed: int = 1) -> Cell:
    """One shape from the first request to the last answer; starts cost nothing, decode workers prefill nothing."""
    calibration = replace(clean(reference.model, "H200", 1), table=engine_table(reference))
    scenario = Scenario(
        name=f"cliff {shape_name(shape)}",
        workload=workload,
        calibration=calibration,
        training=Training(update_seconds=1.0, feeding=Feeding.BARRIER),
        horizon_seconds=20_000.0,
        fleet=Fleet(gpus_per_worker=1, reserved_gpus=GPUS, elastic_max_gpus=0, borrowed_max_gpus=0),
        costs=Costs(start_seconds=0.0, flip_seconds=0.0, weights_seconds=0.0),
        router=Router(window=CONCURRENCY, local_append=False, stragglers_first=False),
        max_batches=1,
    )
    done = run(scenario, FixedRule(ratio=shape), seed, rule_name=shape_name(shape))
    batch = done.batches[0]
    prompts = sum(_prompt_tokens(script) for script in workload.scripts)
    return Cell(shape_name(shape), batch.ready_seconds - batch.opened_seconds, 1.0 - done.prefilled_tokens / prompts)


def predicted_seconds(reference: Reference, shape: tuple[int, int] | None, workload: Sessions) -> float:
    """What the planner's steady-state predictor makes of the mean turn: turns over turns per second, no tail."""
    turns = [turn for script in workload.scripts for turn in script.turns]
    load = Workload(
        appended_tokens=mean(turn.appended_tokens for turn in turns),
        generated_tokens=mean(turn.generated_tokens for turn in turns),
        retained_share=sum(turn.retained_tokens for turn in turns) / sum(turn.generated_tokens for turn in turns),
        environment_seconds=mean(turn.environment_seconds for turn in turns),
        context_tokens=sum(map(_prompt_tokens, workload.scripts)) / len(turns),
        missed_tokens=(),
        appended_bins=(),  # none, so that decode workers prefill nothing, as in the simulation
        trajectories=CONCURRENCY,
        rest=None,
    )
    there = Shape(colocated=GPUS) if shape is None else Shape(prefill=shape[0], decode=shape[1])
    rate = predict(there, load, engine_table(reference), window=CONCURRENCY).prediction.turns_per_second
    return math.inf if not rate else len(turns) / rate


def _prompt_tokens(script: Script) -> int:
    total = history = 0
    for turn in script.turns:
        total += history + turn.appended_tokens
        history += turn.appended_tokens + turn.retained_tokens
    return total
