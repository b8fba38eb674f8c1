"""Made-up agent sessions, where no recording has the shape that is wanted."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from pearl_gateway.load.sessions import RecordedTurn, Session

_WIDEST = 3.0
"""σ of the logarithm with which one value in a hundred is a thousand times the median."""


@dataclass(frozen=True, slots=True)
class Synthetic:
    """Means of what sessions hold; lengths and delays are log-normal around them, as those of agents are."""

    sessions: int
    turns: float = 6.0
    """Turns of a session: from 1 to twice as many, evenly."""
    prompt_tokens: float = 500.0
    response_tokens: float = 100.0
    tool_tokens: float = 200.0
    tool_seconds: float = 1.0
    spread: float = 0.7
    """σ of the logarithm; 0 = all alike."""

    def __post_init__(self) -> None:
        for name, value in (("synthetic", self.sessions), ("turns", self.turns)):
            if not 1 <= value < math.inf:
                raise ValueError(f"--{name} {value:g} must be 1 or more")
        for name in ("prompt_tokens", "response_tokens", "tool_tokens", "tool_seconds"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"--{name.replace('_', '-')} {getattr(self, name):g} must be a number from 0")
        if not 0 <= self.spread <= _WIDEST:
            raise ValueError(f"--spread {self.spread:g} must be from 0 to {_WIDEST:g}")


def synthetic_sessions(wanted: Synthetic, seed: str) -> list[Session]:
    """The same sessions for the same seed."""
    return [_session(wanted, random.Random(f"{seed}/{number}")) for number in range(wanted.sessions)]  # noqa: S311 - repeatable on purpose


def _session(wanted: Synthetic, draw: random.Random) -> Session:
    def around(mean: float) -> float:
        # exp(N(-σ²/2, σ²)) has mean 1.
        return mean * draw.lognormvariate(-(wanted.spread**2) / 2, wanted.spread) if mean else 0.0

    count = draw.randint(1, max(1, round(2 * wanted.turns) - 1))
    prompt = max(1, round(around(wanted.prompt_tokens)))
    turns = []
    for number in range(count):
        last = number + 1 == count
        tool = 0 if last else round(around(wanted.tool_tokens))
        seconds = 0.0 if last else around(wanted.tool_seconds)
        turns.append(RecordedTurn(max(1, round(around(wanted.response_tokens))), tool, seconds))
    return Session(prompt, tuple(turns))
