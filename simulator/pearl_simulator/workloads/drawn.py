"""Trajectories that are drawn from distributions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pearl_simulator.types import Script, Turn
from pearl_simulator.workloads.distributions import LogNormal, Mixture, simple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pearl_simulator.workloads.distributions import TurnCount

CONTEXT_TOKENS = 32768
"""Where a trajectory ends if it has not before."""
SANDBOX_RESET = simple(LogNormal(8.0, 0.8))


@dataclass(frozen=True, slots=True)
class DrawnWorkload:
    """Trajectories drawn from distributions; the same (seed, step, group, member) is always the same trajectory.

    A trajectory ends with its last turn, or when prompt and answer fill the context.
    """

    name: str
    turns: TurnCount
    first_prompt: LogNormal
    """Tokens; one draw per group."""
    appended: LogNormal
    """New tokens of a later turn."""
    generated: LogNormal
    environment: Mixture
    """Seconds between an answer and the next request."""
    groups: int = 4
    group_size: int = 16
    retained_share: float = 1.0
    """Of the generated tokens, what the next prompt holds."""
    missed_share: float = 0.0
    """Of the history, what is computed again each turn."""
    reset: Mixture = SANDBOX_RESET
    reward_seconds: float = 20.0
    context_tokens: int = CONTEXT_TOKENS

    def batch(self, step: int, seed: int) -> Sequence[Script]:
        """The trajectories of one training step, groups in a row."""
        scripts: list[Script] = []
        for group in range(self.groups):
            shared = np.random.default_rng((seed, step, group, 0)).standard_normal(2)
            prompt = max(1, min(self.context_tokens - 1, round(float(self.first_prompt.of(shared[1:])[0]))))
            for member in range(self.group_size):
                draw = np.random.default_rng((seed, step, group, member + 1))
                scripts.append(self._script(group, member, float(shared[0]), prompt, draw))
        return scripts

    def _script(self, group: int, member: int, luck: float, prompt: int, draw: np.random.Generator) -> Script:
        own, reset, choice = draw.standard_normal(3)
        count = self.turns.count(luck, float(own))
        # One row per turn, so that turn k has the same luck however many turns there are.
        normal = draw.standard_normal((count, 4))
        appended = np.maximum(1, np.rint(self.appended.of(normal[:, 0])))
        generated = np.maximum(1, np.rint(self.generated.of(normal[:, 1])))
        waits = self.environment.of(normal[:, 2], normal[:, 3])
        turns = self._turns(prompt, appended.tolist(), generated.tolist(), waits.tolist())
        before = float(self.reset.of(np.array([reset]), np.array([choice]))[0])
        return Script(group, member, before, turns)

    def _turns(
        self, prompt: int, appended: list[float], generated: list[float], waits: list[float]
    ) -> tuple[Turn, ...]:
        turns: list[Turn] = []
        history, room, missed = 0, self.context_tokens, self.missed_share
        for new, answer, wait in zip(appended, generated, waits, strict=True):
            tokens = int(new) if history else prompt
            if history + tokens >= room:
                break
            made = min(int(answer), room - history - tokens)
            kept = round(self.retained_share * made)
            turns.append(Turn(tokens, made, kept, missed, wait))
            if history + tokens + made >= room:
                break
            history += tokens + kept
        last = turns[-1]
        turns[-1] = Turn(last.appended_tokens, last.generated_tokens, last.retained_tokens, missed, self.reward_seconds)
        return tuple(turns)
