"""What a process used and what its metrics say; arithmetic of the scale bench."""

from __future__ import annotations

import os
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """What a process has used so far, its threads included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory_bytes(pid: int) -> int:
    """The resident set now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES


def cores_between(samples: Sequence[tuple[float, float, int]], begin: float, end: float) -> float | None:
    """Mean use; `samples` are seconds, processor seconds so far, and bytes. None = fewer than two are inside."""
    inside = [(at, cpu) for at, cpu, _ in samples if begin <= at <= end]
    if len(inside) < 2:
        return None
    (first, before), (last, after) = inside[0], inside[-1]
    return (after - before) / (last - first)


@dataclass(frozen=True)
class Histogram:
    """Observations up to each bound, bounds ascending, the last one infinite."""

    counts: Mapping[float, float] = field(default_factory=dict)

    @property
    def count(self) -> float:
        """All observations."""
        return max(self.counts.values(), default=0.0)

    def __sub__(self, before: Histogram) -> Histogram:
        """What was observed since."""
        return Histogram({bound: count - before.counts.get(bound, 0.0) for bound, count in self.counts.items()})

    def quantile(self, share: float) -> float | None:
        """As PromQL's `histogram_quantile`: linear inside a bucket; above the last finite bound that bound."""
        rank, below, before = share * self.count, 0.0, 0.0
        if not self.count:
            return None
        for bound, count in sorted(self.counts.items()):
            if count >= rank:
                if bound == float("inf"):
                    return below
                return below + (bound - below) * (rank - before) / (count - before)
            below, before = bound, count
        raise ValueError("the last bound is not infinite")


def histogram(metrics: str, name: str, **labels: str) -> Histogram:
    """One of a text page of metrics; series that differ in other labels than these are added up."""
    counts: dict[float, float] = {}
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples if family.name == name else ():
            if sample.name == f"{name}_bucket" and labels.items() <= sample.labels.items():
                bound = float(sample.labels["le"])
                counts[bound] = counts.get(bound, 0.0) + sample.value
    return Histogram(counts)


def scrape(port: int) -> str:
    """A text page of metrics of this machine."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


@dataclass(frozen=True)
class Reading:
    """One process at one time."""

    at: float
    cpu: float
    calls: Histogram
    """Of the API server."""
    reactions: Histogram = Histogram()
    heard: Histogram = Histogram()


@dataclass(frozen=True)
class Window:
    """What happened between two readings, while `changes` pods went."""

    seconds: float
    cpu_seconds: float
    calls: Histogram
    reactions: Histogram
    heard: Histogram
    changes: int = 0

    @classmethod
    def between(cls, before: Reading, after: Reading, changes: int = 0) -> Window:
        """Of two readings of the same process."""
        return cls(
            seconds=after.at - before.at,
            cpu_seconds=after.cpu - before.cpu,
            calls=after.calls - before.calls,
            reactions=after.reactions - before.reactions,
            heard=after.heard - before.heard,
            changes=changes,
        )

    @property
    def cores(self) -> float:
        """Used on average."""
        return self.cpu_seconds / self.seconds

    @property
    def calls_per_second(self) -> float:
        """Of the API server."""
        return self.calls.count / self.seconds

    def calls_per_change(self, idle: Window) -> float | None:
        """Calls that the changes led to: without those that the same time without changes has."""
        if not self.changes:
            return None
        return max(self.calls.count - idle.calls_per_second * self.seconds, 0.0) / self.changes
