"""A trajectory in flight and its group: the only mutable state that travels between the parts of the simulator."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pearl_planner.types import Role
    from pearl_simulator.cluster.engine import Engine
    from pearl_simulator.types import Script


class Stage(IntEnum):
    """Where a trajectory is."""

    AWAY = 0  # reset, tools, reward, or not begun
    HOMELESS = 1  # no worker can serve it now
    QUEUED = 2
    PREFILLING = 3
    LANDING = 4  # prefilled, its KV pinned, waits for room on the decode worker
    MOVING = 5  # its KV travels
    DECODING = 6
    ENDED = 7


class Group:
    """Samples of one prompt."""

    __slots__ = ("complete_at", "first_version", "jobs", "name", "number", "open", "turns_of_finished")

    def __init__(self, number: int) -> None:
        self.number = number
        """In the order of starting; the step is `number // groups`."""
        self.name = f"g{number}"
        self.jobs: list[Job] = []
        self.open = 0
        """Members that have not ended."""
        self.complete_at: float | None = None
        self.first_version: int | None = None
        """Oldest weight version of a first token of a member."""
        self.turns_of_finished: list[int] = []


class Job:
    """One trajectory with the turn that it is in."""

    __slots__ = (
        "away_since",
        "cached",
        "computed",
        "done",
        "engine",
        "environment_before",
        "first_token_at",
        "first_version",
        "fleet_changes",
        "group",
        "handoff",
        "history",
        "home",
        "home_role",
        "joined_context",
        "joined_v",
        "left",
        "lost",
        "min_version",
        "moved",
        "name",
        "noise",
        "owed",
        "prefill_home",
        "prefix",
        "priority",
        "prompt",
        "requested_at",
        "route",
        "script",
        "source",
        "stage",
        "ticket",
        "tokens",
        "turn",
        "uid",
        "uncached",
    )

    def __init__(self, uid: int, script: Script, group: Group) -> None:  # noqa: PLR0915 - one per field
        self.uid = uid
        self.name = f"t{uid}"
        self.script = script
        self.group = group
        self.stage = Stage.AWAY
        self.turn = 0
        """Index of the present turn, or of the next one while away."""
        self.history = 0
        """Tokens of the context before what the present turn appends."""
        self.prompt = 0
        """Tokens of the present prompt: history + appended."""
        self.done = 0
        """Tokens of the present turn that were generated before it was interrupted."""
        self.tokens = 0
        """Prompt as sent to the engine: `prompt + done`."""
        self.left = 0
        """Tokens to generate in this segment."""
        self.cached = 0
        self.prefix = 0
        self.uncached = 0
        """Tokens that are still to be prefilled."""
        self.owed = 0
        """Of them, what its engine counts as pending."""
        self.noise = 1.0
        self.priority = 0.0
        """Higher goes first."""
        self.engine: Engine | None = None
        self.source: Engine | None = None
        """Prefill worker that holds its KV until it arrived at `engine`."""
        self.handoff = False
        """Prefilled on one worker, decoded on another."""
        self.route = "colocated"
        """For the record of the turn."""
        self.fleet_changes = 0
        """Changes of roles when it was last routed."""
        self.moved = False
        """Workers changed roles since its turn before."""
        self.home: Engine | None = None
        """Generated last."""
        self.home_role: Role | None = None
        """What the gateway routed to it when the turn began to decode there."""
        self.prefill_home: Engine | None = None
        self.first_version: int | None = None
        self.min_version = 0
        self.joined_v = 0.0
        self.joined_context = 0
        self.ticket = 0
        """Changes with every move, so that an event of an earlier stay is known as such."""
        self.lost = False
        """Its KV was lost with a worker or a role; cleared when it was computed again."""
        self.computed = 0
        """Tokens prefilled in this segment."""
        self.environment_before: float | None = None
        self.away_since: float | None = None
        self.requested_at = 0.0
        self.first_token_at = 0.0
