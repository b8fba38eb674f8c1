"""What the processes of one gateway say to each other, as JSON over Unix sockets of a directory that is theirs alone.

| method and path    | who answers | body → answer                                                        |
|--------------------|-------------|----------------------------------------------------------------------|
| POST /_/sync       | owner       | Sync → Told, some times a second                                       |
| PUT  /_/state      | members     | State, before the request that changed it is answered                |
| GET  /_/part       | members     | Part, for the statistics                                             |
| POST /_/end        | members     | End → Ending: the log of a trajectory of theirs is over              |
| POST /_/exports    | members     | Names → list of TrajectoryExport or null                             |
| POST /_/consumed   | members     | Names: handed out, so that nobody waits for them                     |
| POST /_/prime      | owner       | Prime → Primed: who computes the prompt of a group                   |
| POST /_/primed     | owner       | Primed: it is computed                                               |
| POST /_/running    | all         | Command → Count: pause, go on, abort                                 |
| GET  /_/ready      | all         | 200 once the workers are known                                       |
| GET  /_/health     | all         | 200                                                                  |
| everything else    | all         | what clients ask, passed on to where it belongs                      |
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pearl_api.base import Message
from pearl_api.wire.gateway import GatewayStats  # noqa: TC001 - read at run time
from pearl_gateway.batches import Ended


class State(Message):
    """What the owner decides and every process must know at once."""

    owner: str
    """The owner's start: a new one begins to number anew."""
    number: int
    step: int | None
    """The oldest open one."""
    min_versions: dict[int, int]
    """Oldest weights that may generate tokens, by step that asks for one."""
    admitted: frozenset[str]
    """Groups with a permit."""
    open_steps: frozenset[int]


class Pause(Message):
    """Whether new requests of SGLang's kind wait. The greater number is the newer word."""

    number: int = 0
    until: float = 0.0
    """On the machine's monotonic clock."""


class Report(Message):
    """What a process does now, as far as others must know."""

    loads: dict[str, tuple[int, int]]
    """By pod UID: requests in flight or about to begin, prompt tokens that have not produced a token."""
    served: int
    """See `pearl_gateway.versions.served`."""
    oldest_version: int | None
    groups: frozenset[str]
    """Groups with a permit that have live trajectories here."""
    pause: Pause


class Sync(Message):
    """A member's regular word to the owner."""

    process: int
    start: str
    """Unique name of this start of the process."""
    joins: bool
    """It has just started and answers nobody before it has the answer to this."""
    state: tuple[str, int] | None
    """Owner and number of the state that it has."""
    first: int
    """Number of the first note."""
    notes: list[dict[str, Any]]
    report: Report
    totals: dict[str, int]
    ledger: dict[str, dict[str, int]]
    """What it knows of other starts and the owner does not, because it is a new one."""


class Told(Message):
    """The owner's answer."""

    owner: str
    acked: int
    """Notes before this number need not be sent again."""
    state: State | None
    """None where the member has it already."""
    loads: dict[str, tuple[int, int]]
    """Of all other processes together."""
    served: int
    """The least of the others."""
    pause: Pause
    ledger: dict[str, dict[str, int]]
    waiting: dict[str, int] | None
    """When it joins: its finished trajectories that open batches still have to hand out → their step."""


class Part(Message):
    """One process's part of the statistics."""

    start: str
    first: int
    notes: list[dict[str, Any]]
    stats: GatewayStats
    ledger: dict[str, dict[str, int]]
    """All that it knows, itself included."""


class End(Message):
    """A trajectory is over; aborted where there is a cause."""

    trajectory: str
    step: int
    reward: float | None = None
    cause: str | None = None


class Ending(Message):
    """What its log says; `seen`: whether there is one."""

    seen: bool
    group: str | None = None
    version: int | None = None

    @classmethod
    def of(cls, ended: Ended | None) -> Self:
        """The wire form."""
        return cls(seen=False) if ended is None else cls(seen=True, group=ended.group, version=ended.version)

    def ended(self) -> Ended | None:
        """What it says."""
        return Ended(self.group, self.version) if self.seen else None


class Names(Message):
    """Trajectories."""

    names: list[str]


class Prime(Message):
    """A first member of a group came to a process."""

    group: str
    seconds: float


class Primed(Message):
    """Where a group's prompt is; `primes`: whether the asker is to compute it."""

    group: str
    primes: bool = False
    home: str | None = None
    prefill: str | None = None


class Command(Message):
    """To the requests of SGLang's kind that are under way."""

    do: Literal["pause", "abort", "count"]
    pause: Pause = Pause()
    aborts: bool = False
    rid: str | None = None
    """None = all."""


class Count(Message):
    """How many requests it concerned."""

    count: int
