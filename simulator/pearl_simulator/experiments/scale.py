"""`pearl-sim scale`: simulated seconds per second, how long a decision takes, and one evaluation of a shape."""

from __future__ import annotations

import platform
import time
from statistics import median
from typing import TYPE_CHECKING

from pearl_planner.engine.tables import load_table
from pearl_planner.plan import plan
from pearl_planner.prediction.mean_turn import workload
from pearl_planner.prediction.predict import predict
from pearl_planner.types import (
    Activity,
    Batch,
    Budget,
    Measurements,
    Policy,
    Role,
    Shape,
    Snapshot,
    Trajectory,
    Worker,
    WorkerState,
    Zone,
)
from pearl_simulator.experiments.cells import Cell, scenario
from pearl_simulator.experiments.common import Job, simulate
from pearl_simulator.experiments.facts import profile_of
from pearl_simulator.reporting.report import Report, Table
from pearl_simulator.reporting.statistics import quantile
from pearl_simulator.workloads.presets import presets

if TYPE_CHECKING:
    from collections.abc import Callable

    from pearl_planner.workload.profile import Profile
    from pearl_simulator.experiments.setting import Setting

WORKERS, BIG_BATCH, SMALL_BATCH, GROUP = 512, 1024, 64, 16
PLANS, EVALUATIONS = 200, 200
RULES = ("rlboost+", "pearl-paper", "pearl")
ABOUT = (
    "How fast the simulator and the planner are on this machine, one core. Simulated seconds per second: the 8B model "
    "on segment S1 (32 GPUs, 64 trajectories), planner included. A decision: `plan()` with 512 workers and 1,024 "
    "trajectories of an open batch, no two calls alike. An evaluation: one shape of 8 workers in steady state, 64 "
    "trajectories."
)


def run(setting: Setting) -> Report:
    """Measures in this process, one thing after the other."""
    rates = [
        (rule, calibration, _rate(rule, calibration, setting)) for calibration in ("clean", "paper") for rule in RULES
    ]
    table, known = (
        load_table("Qwen/Qwen3-8B/H100-TP2"),
        profile_of(presets()["swe-pearl-1"], batches=8, seed=setting.seed),
    )
    policy = Policy(generation=1, table=table)
    plans = seconds_of(lambda k: plan(big_snapshot(known, k), policy), 20 if setting.quick else PLANS)
    load = workload(known, SMALL_BATCH, None)
    shapes = (Shape(colocated=8), *(Shape(prefill=p, decode=8 - p) for p in range(1, 8)))
    evaluations = [] if load is None else seconds_of(lambda k: predict(shapes[k % 8], load, table), EVALUATIONS)
    slowest = min(rate for rule, _, rate in rates if rule == "pearl")
    rows = (
        *((f"simulated s per s, {rule}, {calibration}", rate) for rule, calibration, rate in rates),
        ("plan(), 512 workers, median s", median(plans)),
        ("plan(), 512 workers, p99 s", quantile(plans, 0.99)),
        ("evaluation, B = 64, mean s", sum(evaluations) / max(len(evaluations), 1)),
    )
    return Report(
        experiment="scale",
        title="How fast the simulator and the planner are",
        about=ABOUT,
        summary={
            "sim_seconds_per_second": slowest,
            "plan_p99_seconds": quantile(plans, 0.99),
            "predict_seconds_b64": sum(evaluations) / len(evaluations) if evaluations else None,
        },
        tables=(Table("Measured", ("what", "value"), rows),),
        seeds=(setting.seed,),
        parameters={"machine": platform.machine(), "python": platform.python_version(), "plans": len(plans)},
    )


def _rate(rule: str, calibration: str, setting: Setting) -> float:
    cell = Cell("8B", "S1", calibration)
    simulated = scenario(cell, quick=setting.quick)
    start = time.perf_counter()
    simulate(Job(cell.key, rule, rule, (), simulated, setting.seed))
    return simulated.horizon_seconds / (time.perf_counter() - start)


def seconds_of(call: Callable[[int], object], times: int) -> list[float]:
    """Wall time of each call; one call before them warms up."""
    call(0)
    found = []
    for k in range(1, times + 1):
        start = time.perf_counter()
        call(k)
        found.append(time.perf_counter() - start)
    return found


def big_snapshot(profile: Profile, variant: int) -> Snapshot:
    """512 ready workers, a third of them prefill, and a batch in which 1,024 trajectories run."""
    prefill = WORKERS // 3 + variant % 7
    workers = tuple(_worker(slot, Role.PREFILL if slot < prefill else Role.DECODE) for slot in range(WORKERS))
    running = tuple(
        Trajectory(f"g{k // GROUP}", (k + variant) % 12, 6000 + 10 * k, 1.0 if k % 5 == 0 else None)
        for k in range(BIG_BATCH)
    )
    batch = Batch(
        step=3,
        groups=BIG_BATCH // GROUP,
        group_size=GROUP,
        need_groups=BIG_BATCH // GROUP,
        complete_groups=0,
        started=BIG_BATCH,
        finished=0,
        elapsed_seconds=60.0 + variant,
        unfinished=running,
    )
    return Snapshot(
        now=1000.0 + variant,
        workers=workers,
        loans=(),
        budget=Budget(2, 2 * WORKERS, 0, 0, 0),
        measurements=Measurements(gateway_age_seconds=1.0, live_trajectories=BIG_BATCH),
        profile=profile,
        batch=batch,
        target=None,
    )


def _worker(slot: int, role: Role) -> Worker:
    return Worker(
        uid=f"uid-{slot}",
        pod=f"w{slot}-0",
        slot=slot,
        incarnation=0,
        zone=Zone.RESERVED,
        role=role,
        role_epoch=1,
        activity=Activity.ACTIVE,
        state=WorkerState.READY,
        gpus=2,
        acked_epoch=1,
        in_flight=2,
        resident_tokens=12_000,
        acked_activity=Activity.ACTIVE,
    )
