"""The emulated engine, which counts every step, against the turn-level simulator: the same work takes the same time."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from small import Always, scenario

from pearl_planner.engine.tables import load_table
from pearl_planner.types import Shape
from pearl_simulator.emulator import EngineConfig, LocalPeers, LoopClock
from pearl_simulator.emulator.engine import Engine
from pearl_simulator.emulator.sequence import Sampling, Sequence
from pearl_simulator.run import run
from pearl_simulator.types import Calibration, Router, Script, Turn

if TYPE_CHECKING:
    from collections.abc import Sequence as Ordered

    from pearl_planner.engine.model import EngineTable

pytestmark = pytest.mark.looptime

TABLE = load_table("Qwen/Qwen3-8B/H100-TP2")
BATCHED = 2048
GIVE = {"do_remote_decode": True, "do_remote_prefill": False}


@dataclass(frozen=True)
class Agents:
    """`groups` agents of a few turns, each with a prompt of its own."""

    groups: int
    group_size: int = 1
    name: str = "agents"

    def batch(self, step: int, seed: int) -> Ordered[Script]:
        chance = random.Random(f"{seed}/{step}")
        return [Script(group, 0, chance.uniform(0.0, 2.0), tuple(self._turns(chance))) for group in range(self.groups)]

    @staticmethod
    def _turns(chance: random.Random) -> list[Turn]:
        turns = []
        for at in range(chance.randint(2, 6)):
            generated = chance.randint(20, 150)
            appended = chance.randint(500, 3000) if at == 0 else chance.randint(20, 1500)
            turns.append(Turn(appended, generated, generated, 0.0, chance.expovariate(2.0)))
        return turns


class Emulated:
    """One worker, or a prefill and a decode worker; agents that follow their scripts."""

    def __init__(self, table: EngineTable, workers: int) -> None:
        # Blocks of one token: the turn-level simulator does not round prefixes to blocks.
        config = EngineConfig(
            table=table,
            block_tokens=1,
            kv_tokens=table.kv_capacity_tokens or 0,
            max_batched_tokens=BATCHED,
            max_sequences=256,
            max_model_len=32_768,
        )
        peers = LocalPeers()
        self.engines = [
            Engine(config, engine_id=str(at), clock=LoopClock(), peers=peers, draw=random.Random(at))
            for at in range(workers)
        ]
        for engine in self.engines:
            peers.engines[engine.engine_id] = engine
            engine.start()

    async def makespan(self, scripts: Ordered[Script]) -> float:
        start = asyncio.get_running_loop().time()
        await asyncio.gather(*(self._agent(script) for script in scripts))
        for engine in self.engines:
            await engine.stop()
        return asyncio.get_running_loop().time() - start

    async def _agent(self, script: Script) -> None:
        chance, context = random.Random(script.group), list[int]()
        await asyncio.sleep(script.reset_seconds)
        for turn in script.turns:
            context += [chance.randrange(90) for _ in range(turn.appended_tokens)]
            kv = None
            if len(self.engines) > 1:
                kv = (await self._ask(self.engines[0], context, 1, GIVE)).kv_answer
            answered = await self._ask(self.engines[-1], context, turn.generated_tokens, kv)
            context += answered.answer
            await asyncio.sleep(turn.environment_seconds)

    @staticmethod
    async def _ask(engine: Engine, prompt: list[int], count: int, kv: dict[str, object] | None) -> Sequence:
        sequence = Sequence("r", "r", 0, list(prompt), Sampling(count), engine.clock.now(), kv)
        sequence.internal_id = str(id(sequence))
        engine.submit([sequence])
        while (await sequence.deltas.get()).finish_reason is None:
            pass
        return sequence


ONE, PAIR = Shape(colocated=1), Shape(0, 1, 1)


@pytest.mark.parametrize(
    ("shape", "agents", "kv_tokens", "error"),
    [
        (ONE, 1, 500_000, 0.001),
        (ONE, 32, 500_000, 0.01),
        (PAIR, 32, 500_000, 0.01),
        # Room for a quarter of the contexts: queues, evicted prefixes, preemptions.
        (ONE, 32, 25_000, 0.03),
    ],
)
async def test_same_work_takes_the_same_time(shape: Shape, agents: int, kv_tokens: int, error: float) -> None:
    table = replace(TABLE, kv_capacity_tokens=kv_tokens)
    workload = Agents(agents)
    measured = await Emulated(table, shape.workers).makespan(workload.batch(0, 1))
    one = scenario(
        workers=shape.workers,
        calibration=Calibration("parity", table, max_batched_tokens=BATCHED),
        workload=workload,
        # First come, first served, as the emulator.
        router=Router(window=None, stragglers_first=False),
    )
    simulated = run(one, Always(shape), 1, rule_name="always").batches[0].ready_seconds
    assert simulated == pytest.approx(measured, rel=error)
