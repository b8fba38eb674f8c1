"""What a process does now, as far as other processes must know; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl_gateway.processes.messages import Report
from pearl_gateway.versions import served

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pearl_gateway.gateway import Gateway
    from pearl_gateway.processes.messages import Pause


def report_of(gateway: Gateway, admitted: frozenset[str], pause: Pause) -> Report:
    """The report of this process; `admitted`: groups with a permit."""
    fleet = gateway.fleet
    loads = {
        uid: (one.in_flight + one.reserved, one.prefill_tokens + one.reserved_tokens)
        for uid, one in fleet.workers.items()
    }
    return Report(
        loads={uid: load for uid, load in loads.items() if any(load)},
        served=served(fleet.loaded(), fleet.published_version(), gateway.routing.staleness()),
        oldest_version=min(gateway.live_versions(), default=None),
        groups=frozenset(gateway.live_groups()) & admitted,
        pause=pause,
    )


def summed(loads: Iterable[Mapping[str, tuple[int, int]]]) -> dict[str, tuple[int, int]]:
    """Loads of several processes on the same workers."""
    found: dict[str, tuple[int, int]] = {}
    for one in loads:
        for uid, (in_flight, tokens) in one.items():
            before = found.get(uid, (0, 0))
            found[uid] = before[0] + in_flight, before[1] + tokens
    return found
