"""One simulated run: a scenario, a decision rule and a seed give a result, always the same one.

What is counted: trajectories, turns and tokens that end between the warm-up and the end of the run, and GPU-seconds in
between. A count of finished trajectories is too high or too low by what is half done at both ends, so
`extra["equivalent_trajectories"]` adds the progress of those in flight at the end and takes away that of those in
flight at the warm-up (each as its share of generated tokens): compare rules by it, or by consumed batches
(`extra["consumed_per_hour"]`, from the first to the last consumption after the warm-up).
"""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

from pearl_simulator.cluster.control import Control
from pearl_simulator.cluster.world import World
from pearl_simulator.errors import InputError
from pearl_simulator.rules import knows_sizes
from pearl_simulator.types import Result

if TYPE_CHECKING:
    from pearl_planner.rule import Rule
    from pearl_simulator.types import Scenario


def run(scenario: Scenario, rule: Rule, seed: int, *, rule_name: str) -> Result:
    """Simulate `scenario` from 0 to its horizon, or to its last batch.

    Raises:
        InputError: the fleet has workers of several sizes, and the rule knows one.
        SimulationError: the scenario cannot be run (its contexts do not fit), or an invariant broke.
    """
    if scenario.fleet.budget().staged and not knows_sizes(rule):
        said = "knows workers of one size: leave out the fleet's prefill_gpus and decode_gpus"
        raise InputError(f"rule {rule_name} {said}")
    started = perf_counter()
    world = World(scenario, seed)
    control = Control(scenario, world, rule)
    world.start(control.wake)
    if scenario.warmup_seconds > 0:
        world.clock.run(min(scenario.warmup_seconds, scenario.horizon_seconds))
        _begin_measuring(world)
    world.clock.run(scenario.horizon_seconds)
    world.check()
    measured = _result(scenario, world, control, seed)
    return replace(measured, rule=rule_name, wall_seconds=perf_counter() - started)


def _begin_measuring(world: World) -> None:
    world.tally.measuring = True
    world.tally.prefilled_before = _prefilled(world)
    world.tally.progress_before = _progress(world)
    world.tally.recomputed = 0


def _prefilled(world: World) -> int:
    return world.pods.gone_tokens + sum(engine.prefilled_tokens for engine in world.pods.engines())


def _progress(world: World) -> float:
    """Trajectories' worth of finished turns of those in flight, by generated tokens."""
    total = 0.0
    for job in world.feed.live.values():
        turns = job.script.turns
        made = sum(turn.generated_tokens for turn in turns[: job.turn]) + (job.done if job.turn < len(turns) else 0)
        total += made / sum(turn.generated_tokens for turn in turns)
    return total


def _result(scenario: Scenario, world: World, control: Control, seed: int) -> Result:
    now, tally, trainer = world.clock.now, world.tally, world.trainer
    warm = scenario.warmup_seconds
    for pod in world.pods.by_name.values():
        world.pods.free(pod)
    waits = [*trainer.waits, *([] if trainer.waiting_since is None else [(trainer.waiting_since, now)])]
    consumed = [batch for batch in trainer.batches if batch.consumed_seconds >= warm]
    extra = {
        "equivalent_trajectories": tally.finished + _progress(world) - tally.progress_before,
        "preemptions": float(world.pods.gone_preemptions + sum(engine.preemptions for engine in world.pods.engines())),
        "looks": float(control.looks),
    }
    if len(consumed) > 1:
        span = consumed[-1].consumed_seconds - consumed[0].consumed_seconds
        extra["consumed_per_hour"] = 3600.0 * sum(len(batch.ages) for batch in consumed[1:]) / span
    return Result(
        scenario=scenario.name,
        rule="",
        seed=seed,
        seconds=max(now - warm, 0.0),
        finished_trajectories=tally.finished,
        generated_tokens=tally.generated,
        prefilled_tokens=_prefilled(world) - tally.prefilled_before,
        turns=tally.turns,
        batches=tuple(trainer.batches),
        gpu_seconds={zone.value: seconds for zone, seconds in world.pods.gpu_seconds.items()},
        trainer_waiting_seconds=sum(max(0.0, end - max(begin, warm)) for begin, end in waits),
        reclaims=tuple(world.lender.reclaims),
        recomputed_tokens=tally.recomputed,
        decisions=tuple(control.decisions),
        shapes=tuple(tally.shapes),
        events=world.clock.processed,
        plan_seconds=control.plan_seconds,
        extra=extra,
    )
