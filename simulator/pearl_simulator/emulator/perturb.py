"""How an emulated engine differs from what the planner believes, and how it fails. All off by default."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random


@dataclass(slots=True)
class Perturbation:
    """Switches; may be changed while the engine runs."""

    step_factor: float = 1.0
    """On every step time: 0.8 and 1.2 are the usual ±20 %."""
    host_seconds: float = 0.0
    """Added to every step and in no table."""
    step_noise: float = 0.0
    """σ of a log-normal factor of mean 1 on every step."""
    start_seconds: float = 0.0
    """Between start and the first answer; connections are refused."""
    error_share: float = 0.0
    """Of generation requests: answered 500."""
    hang_share: float = 0.0
    """Of generation requests: accepted and never answered."""
    drop_share: float = 0.0
    """Of generation requests: the connection breaks after `drop_after_tokens` (streams) or without an answer."""
    drop_after_tokens: int = 1
    fail_weight_load: bool = False
    """The next weight load fails, and the next generation ends the engine."""

    def step_seconds(self, believed: float, draw: random.Random) -> float:
        """What a step of `believed` seconds takes here."""
        noise = 1.0
        if self.step_noise > 0:
            noise = math.exp(draw.gauss(-(self.step_noise**2) / 2, self.step_noise))
        return believed * self.step_factor * noise + self.host_seconds

    def fate(self, draw: random.Random) -> str:
        """`serve`, `error`, `hang` or `drop` for the next generation request."""
        if self.error_share + self.hang_share + self.drop_share <= 0:
            return "serve"
        chance = draw.random()
        for name, share in (("error", self.error_share), ("hang", self.hang_share), ("drop", self.drop_share)):
            if chance < share:
                return name
            chance -= share
        return "serve"
