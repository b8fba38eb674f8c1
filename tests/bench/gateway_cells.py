"""What the gateway bench asks for: the shapes of its cells."""

from __future__ import annotations

from dataclasses import dataclass

from gateway_turns import Measured, Shape

from pearl_planner.engine.tables import load_table
from pearl_planner.prediction.local_append import local_append_tokens
from pearl_planner.prediction.mean_turn import Workload

_SINGLE = {"trajectories": 192, "at_once": 64, "turns": 1, "prompt_tokens": 2048, "tool_tokens": 0}
_MULTI = {"trajectories": 96, "at_once": 64, "turns": 6, "prompt_tokens": 1024, "tool_tokens": 256}

PACED = tuple(
    Shape(f"paced, {how}", 256, 256, 4, 512, 64, 64, tool_seconds=2.0, stream=how == "streamed")
    for how in ("streamed", "whole")
)
"""256 trajectories at once that wait for their tools most of the time: the latency that is added to a turn."""

LONG = Shape("full speed, 256 tokens", 256, 32, 4, 512, 64, 256)
SHORT = Shape("full speed, 16 tokens", 256, 32, 4, 512, 64, 16)
CAPACITY = (LONG, SHORT)
"""As fast as it goes; the two differ in 15 chunks of 16 tokens and nothing else."""

THROUGHPUT = tuple(
    Shape(f"{turns}, {how}", stream=how == "streamed", answer_tokens=answer, tool_seconds=pause, **sizes)
    for turns, sizes, answer, pause in (("single-turn", _SINGLE, 256, 0.0), ("multi-turn", _MULTI, 128, 0.25))
    for how in ("streamed", "whole")
)
"""Where the engines are the limit."""

REAL = tuple(
    Shape(f"{turns}, streamed", 16, 8, count, 128, tool, 32, vocabulary=256)
    for turns, count, tool in (("single-turn", 1, 0), ("multi-turn", 4, 32))
)
"""Small enough for tiny models on a CPU."""

SMALL = Shape("warm-up", 8, 8, 2, 64, 8, 16)


def memory_shape(step: int, trajectories: int) -> Shape:
    """One batch of the memory run."""
    return Shape(f"memory {step}", trajectories, trajectories, 5, 128, 16, 32, stream=step % 2 == 0)


def planned_local_append(table: str, decoders: int) -> int:
    """The planner's threshold for the multi-turn cell, as the operator would tell it to the gateway."""
    shape = next(one for one in THROUGHPUT if one.turns > 1)
    turn = shape.tool_tokens + shape.answer_tokens
    load = Workload(
        appended_tokens=shape.tool_tokens,
        generated_tokens=shape.answer_tokens,
        retained_share=1.0,
        environment_seconds=shape.tool_seconds,
        context_tokens=shape.prompt_tokens + turn * (shape.turns - 1) / 2,
        missed_tokens=(),
        appended_bins=(),
        trajectories=shape.at_once,
        rest=None,
    )
    return local_append_tokens(load, load_table(table), sequences=shape.at_once / decoders)


@dataclass(frozen=True, slots=True)
class Cell:
    """One shape before one kind of workers, and what was measured there by server."""

    site: str
    split: bool
    shape: Shape
    runs: dict[str, list[Measured]]

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.site}, {'disaggregated' if self.split else 'colocated'}, {self.shape.name}"
