"""What the gateway bench asks for: the shapes of its cells."""

from __future__ import annotations

from dataclasses import dataclass

from gateway_turns import Measured, Shape

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
