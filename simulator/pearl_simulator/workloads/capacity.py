"""How many elastic GPUs a cluster has over time: recorded spot traces and constants.

A node of a trace stands for one GPU. The rollout GPUs in all are the nodes, kept within 4..16: 4 are reserved, the rest
is elastic (the PEARL paper's set-up). Two formats are read: `milliseconds,add|remove,node` and `milliseconds,nodes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from pearl_simulator.errors import InputError
from pearl_simulator.types import CapacityChange

if TYPE_CHECKING:
    from collections.abc import Iterable

RESERVED_GPUS = 4
MOST_GPUS = 16
SEGMENT_SECONDS = 7200.0
SHIPPED = ("bamboo_g4dn", "bamboo_p3", "parcae_hh", "parcae_hl", "parcae_lh", "parcae_ll")
_EVENT_FIELDS, _COUNT_FIELDS = 3, 2


@dataclass(frozen=True, slots=True)
class Segment:
    """Two hours of a trace."""

    name: str
    trace: str
    """Of `SHIPPED`."""
    offset_seconds: float
    """Where in the trace it starts."""
    mean_gpus: float
    """Rollout GPUs over the two hours, 4 reserved ones included."""
    published_mean: float
    """What the PEARL paper gives for the segment of this kind."""
    changes: tuple[CapacityChange, ...]
    """Times from the start of the segment; the first at 0."""


def segments() -> tuple[Segment, ...]:
    """S1 (frequent changes, abundant), S2 (frequent, scarce) and S3 (few changes, moderate) of the g4dn trace.

    The paper gives the means, not the offsets: these are whole minutes with means near it and many changes (S1: 14,
    S2: 23) or the fewest that the trace has near that mean (S3: 13).
    """
    chosen = (("S1", 340, 13.6), ("S2", 121, 9.0), ("S3", 10, 11.8))
    trace = load_shipped("bamboo_g4dn")
    return tuple(_segment(name, trace, 60.0 * minute, published) for name, minute, published in chosen)


def _segment(name: str, trace: tuple[CapacityChange, ...], offset: float, published: float) -> Segment:
    changes = window(trace, offset, SEGMENT_SECONDS)
    mean = RESERVED_GPUS + mean_elastic(changes, SEGMENT_SECONDS)
    return Segment(name, "bamboo_g4dn", offset, mean, published, changes)


def load_shipped(name: str) -> tuple[CapacityChange, ...]:
    """A trace that ships, by its name.

    Raises:
        InputError: there is no such trace.
    """
    if name not in SHIPPED:
        raise InputError(f"no capacity trace {name!r}; choose one of: {', '.join(SHIPPED)}")
    text = (resources.files("pearl_simulator") / f"data/spot/{name}.csv").read_text()
    return parse_trace(text.splitlines(), source=name)


def load_trace(path: str | Path, *, reserved: int = RESERVED_GPUS, most: int = MOST_GPUS) -> tuple[CapacityChange, ...]:
    """A trace of the user, or by name one that ships.

    Raises:
        InputError: the file is missing, empty, or has a malformed line.
    """
    if str(path) in SHIPPED:
        return load_shipped(str(path))
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"capacity trace {path}: cannot be read ({error}); check the path") from error
    return parse_trace(lines, source=str(path), reserved=reserved, most=most)


def parse_trace(
    lines: Iterable[str], *, source: str, reserved: int = RESERVED_GPUS, most: int = MOST_GPUS
) -> tuple[CapacityChange, ...]:
    """Changes of the elastic GPUs: nodes kept within `reserved`..`most`, less the reserved ones.

    Raises:
        InputError: no line, or one that is malformed; the message names it.
    """
    counted = sorted(_nodes_over_time(lines, source), key=lambda pair: pair[0])
    if not counted:
        raise InputError(f"capacity trace {source}: has no lines; give `milliseconds,add|remove,node` in each")
    found: list[CapacityChange] = []
    for (seconds, nodes), following in zip(counted, [*counted[1:], None], strict=True):
        if following is not None and following[0] == seconds:
            continue  # several nodes at once are one change
        elastic = max(reserved, min(most, nodes)) - reserved
        if not found or found[-1].elastic_gpus != elastic:
            found.append(CapacityChange(seconds, elastic))
    return tuple(found)


def _nodes_over_time(lines: Iterable[str], source: str) -> list[tuple[float, int]]:
    """(seconds, nodes from then on) of each line."""
    found: list[tuple[float, int]] = []
    alive: set[str] = set()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        fields = [field.strip() for field in line.split(",")]
        milliseconds = _number(fields[0])
        nodes = _nodes(fields, alive)
        if milliseconds is None or nodes is None or (found and milliseconds < 1e3 * found[-1][0]):
            raise InputError(
                f"capacity trace {source}, line {number}: {line.strip()[:60]!r} is not `milliseconds,add|remove,node` "
                "or `milliseconds,nodes` in order of time; correct or remove it"
            )
        found.append((milliseconds / 1e3, nodes))
    return found


def _nodes(fields: list[str], alive: set[str]) -> int | None:
    """Nodes after this line; None = malformed. `alive` is changed."""
    if len(fields) == _EVENT_FIELDS and fields[1] in {"add", "remove"}:
        (alive.add if fields[1] == "add" else alive.discard)(fields[2])
        return len(alive)
    if len(fields) == _COUNT_FIELDS:
        return _number(fields[1])
    return None


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


def constant(gpus: int) -> tuple[CapacityChange, ...]:
    """The same number of elastic GPUs all the time."""
    if gpus < 0:
        raise InputError(f"elastic GPUs are {gpus}; give 0 or more")
    return (CapacityChange(0.0, gpus),)


def window(changes: tuple[CapacityChange, ...], start_seconds: float, seconds: float) -> tuple[CapacityChange, ...]:
    """Part of a trace with its own time; before the first change there are no elastic GPUs."""
    before = [change.elastic_gpus for change in changes if change.at_seconds <= start_seconds]
    inside = [
        CapacityChange(change.at_seconds - start_seconds, change.elastic_gpus)
        for change in changes
        if start_seconds < change.at_seconds < start_seconds + seconds
    ]
    return (CapacityChange(0.0, before[-1] if before else 0), *inside)


def mean_elastic(changes: tuple[CapacityChange, ...], seconds: float) -> float:
    """Time-weighted mean from 0 to `seconds`; the first change is at 0."""
    ends = (*changes, CapacityChange(seconds, 0))
    return sum(now.elastic_gpus * (then.at_seconds - now.at_seconds) for now, then in pairwise(ends)) / seconds
