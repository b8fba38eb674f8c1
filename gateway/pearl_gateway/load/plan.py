"""What will be replayed: trajectories with their group, session and the tokens that prompts and tools give."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pearl_gateway.load.sessions import Session

LOWEST_TOKEN = 32
"""Ids below are special tokens in many vocabularies."""


@dataclass(frozen=True, slots=True)
class Work:
    """One trajectory to replay. Members of a group share session and prompt, as samples of one prompt do."""

    trajectory: str
    group: str
    session: Session
    seed: str
    vocabulary: int

    def prompt(self) -> list[int]:
        """Token ids of the group's prompt."""
        return self._tokens(self.group, self.session.prompt_tokens)

    def tool_output(self, turn: int) -> list[int]:
        """Token ids that the tool gives back after `turn`."""
        return self._tokens(f"{self.trajectory}/{turn}", self.session.turns[turn].tool_tokens)

    def _tokens(self, name: str, count: int) -> list[int]:
        draw = random.Random(f"{self.seed}/{name}")  # noqa: S311 - repeatable on purpose
        return [draw.randrange(LOWEST_TOKEN, self.vocabulary) for _ in range(count)]


@dataclass(frozen=True, slots=True)
class Group:
    """Trajectories that are admitted together."""

    name: str
    members: tuple[Work, ...]


def arrivals(count: int, per_second: float, seed: str) -> list[float]:
    """Seconds from the start at which groups arrive when nobody waits for anybody: a Poisson process."""
    draw = random.Random(f"{seed}/arrivals")  # noqa: S311 - repeatable on purpose
    return list(accumulate(draw.expovariate(per_second) for _ in range(count)))


def plan_groups(  # noqa: PLR0913 - one call, all by name
    sessions: Sequence[Session], *, groups: int, group_size: int, run: str, seed: str, vocabulary: int
) -> list[Group]:
    """`groups` groups over the sessions in turn; names begin with `run`, so that runs do not meet in one gateway."""
    planned = []
    for number in range(groups):
        name = f"{run}-g{number}"
        session = sessions[number % len(sessions)]
        members = tuple(Work(f"{name}-m{member}", name, session, seed, vocabulary) for member in range(group_size))
        planned.append(Group(name, members))
    return planned
