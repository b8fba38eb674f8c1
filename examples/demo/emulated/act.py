"""Act 1 from its first to its last second."""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from examples.demo.emulated import promises
from examples.demo.emulated.facts import Record
from examples.demo.emulated.recorder import Recorder
from examples.demo.emulated.stage import Stage
from examples.demo.emulated.view import View
from pearl_dev.virtual.clock import VirtualLoop
from pearl_simulator.rules.fixed import FixedRule
from pearl_simulator.run import run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from pearl_simulator.types import Scenario


def play(scenario: Scenario, *, seed: int, speed: float, console: Console) -> Record:
    """Everything that happened, held against the promises. `speed`: seconds of the trace per second, 0 = all it can."""
    record = Record()
    view = View(record, scenario, speed, console)
    view.start()
    try:
        with _quiet_log(), asyncio.Runner(loop_factory=lambda: VirtualLoop(speed)) as runner:
            runner.run(_play(Stage(scenario, seed), record, view))
    finally:
        view.stop()
    record.fixed_batches = fixed_batches(scenario, seed)
    promises.check(record, training_gpus=scenario.fleet.borrowed_max_gpus)
    return record


async def _play(stage: Stage, record: Record, view: View) -> None:
    recorder = Recorder(stage, record, view.say)
    await stage.play(recorder.look, lambda text: recorder.told("agents", text))


def fixed_batches(scenario: Scenario, seed: int) -> list[float]:
    """When the same agents' batches are consumed if the reserved GPUs alone serve them, colocated."""
    gpus = scenario.fleet.reserved_gpus
    fleet = replace(scenario.fleet, elastic_max_gpus=0, borrowed_max_gpus=0)
    alone = replace(scenario, fleet=fleet, capacity=(), look_seconds=60.0)
    result = run(alone, FixedRule(gpus=gpus), seed, rule_name="reserved")
    return [one.consumed_seconds for one in result.batches]


@contextmanager
def _quiet_log() -> Iterator[None]:
    """What the operator logs is on the screen as its status tells it; only bugs are left."""
    logger = logging.getLogger("pearl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
