"""Which weight versions may generate a turn's tokens now; pure.

The bound travels with the request as well (`headers`), and the guard inside the engine checks it against what is really
loaded: what this process believes about a worker may be a second old.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

MIN_HEADER = "X-Pearl-Min-Weights"
MAX_HEADER = "X-Pearl-Max-Weights"
WEIGHTS_HEADER = "x-pearl-weights"
"""In a refusal: the version that the worker serves."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """Versions from `least` to `most`; None = no bound on that side."""

    least: int | None = None
    most: int | None = None

    def headers(self) -> dict[str, str]:
        """The bound as the engine's guard reads it."""
        bounds = {MIN_HEADER: self.least, MAX_HEADER: self.most}
        return {name: str(value) for name, value in bounds.items() if value is not None}

    def exactly(self, version: int | None) -> Accepted:
        """Only `version`, where it is known: KV of one version never feeds another."""
        return self if version is None else Accepted(version, version)


ANY = Accepted()


@dataclass(frozen=True, slots=True)
class Loaded:
    """The weights of one worker as far as is known, and whether turns run on it."""

    version: int | None
    busy: bool


@dataclass(frozen=True, slots=True)
class Staleness:
    """The rule of a rollout (`spec.weights`)."""

    max_staleness: int
    all_at_once: bool
    """No worker serves a version while another still serves an older one."""


def served(workers: Iterable[Loaded], newest: int | None, rule: Staleness) -> int:
    """Turns begin on no older weights than these, where all change at once; 0 = any."""
    floor = max((newest or 0) - rule.max_staleness, 0)
    return max([floor, *(worker.version or 0 for worker in workers)]) if rule.all_at_once else 0


def accepted(
    workers: Iterable[Loaded],
    newest: int | None,
    rule: Staleness,
    least: int | None = None,
    others_served: int | None = None,
) -> Accepted | None:
    """What a turn may be generated with; None = nothing yet, turns on older weights must end first.

    Args:
        workers: All workers that told their version.
        newest: Newest published version; None = nobody told one, so that nothing is known to be old.
        rule: The rollout's.
        least: Oldest version that the turn's batch wants; None = any.
        others_served: `served` of other processes that use the same workers, the least of them; None = there are none.
            One that does not know the newest weights may still begin turns on older ones.
    """
    if newest is None:
        return Accepted(least)
    floor = max(newest - rule.max_staleness, least or 0, 0)
    if not rule.all_at_once:
        return Accepted(floor or None)
    known = [worker for worker in workers if worker.version is not None]
    if others_served is not None and others_served < served(known, newest, rule):
        return None
    newest_served = max(floor, served(known, newest, rule))
    if any(worker.busy and (worker.version or 0) < newest_served for worker in known):
        return None
    return Accepted(newest_served, newest_served)
