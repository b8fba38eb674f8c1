"""The statistics of a gateway from those of its processes; pure.

Batch, profile, consumer and what the operator set come from the owner, which knows them whole.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain, islice
from typing import TYPE_CHECKING

from pearl_api.wire.gateway import LiveStates, WorkerView
from pearl_gateway.stats import MOST_UNFINISHED, counters

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pearl_api.wire.gateway import GatewayStats


def merged(own: GatewayStats, others: Sequence[GatewayStats], totals: Mapping[str, int], uptime: float) -> GatewayStats:
    """One view.

    Args:
        own: The owner's.
        others: All other processes'.
        totals: Of all of them, as of `Tally.totals`.
        uptime: Seconds since the gateway was started.
    """
    parts = [own, *others]
    wanted = [one.weights_wanted for one in parts if one.weights_wanted is not None]
    asked = [one.asked_seconds for one in parts if one.asked_seconds is not None]
    least = [one.weights_min for one in parts if one.weights_min is not None]
    most = [one.weights_max for one in parts if one.weights_max is not None]
    return own.model_copy(
        update={
            "uptime_seconds": uptime,
            "asked_seconds": min(asked, default=None),
            "unfinished": list(islice(chain.from_iterable(one.unfinished for one in parts), MOST_UNFINISHED)),
            "live": _live([one.live for one in parts]),
            "workers": _workers([{view.uid: view for view in one.workers} for one in parts]),
            "counters": counters(totals),
            "weights_wanted": max(wanted, default=None),
            "weights_min": min(least, default=None),
            "weights_max": max(most, default=None),
        }
    )


def _live(parts: Iterable[LiveStates]) -> LiveStates:
    found: Counter[str] = Counter()
    for one in parts:
        found.update(one.model_dump())
    return LiveStates(**found)


def _workers(parts: Sequence[Mapping[str, WorkerView]]) -> list[WorkerView]:
    """Workers that every process knows: one that some have not seen yet, or not any more, is not acknowledged."""
    return [_worker([one[uid] for one in parts]) for uid in parts[0] if all(uid in one for one in parts)]


def _worker(views: Sequence[WorkerView]) -> WorkerView:
    """As the process sees it that is furthest behind: a flip is done when all have acknowledged it."""
    last = min(views, key=lambda view: view.acked_epoch)
    seconds = [one.first_token_in_role_seconds for one in views if one.acked_epoch == last.acked_epoch]
    versions = [one.weight_version for one in views if one.weight_version is not None]
    return last.model_copy(
        update={
            "ready": all(one.ready for one in views),
            "in_flight": sum(one.in_flight for one in views),
            "resident_tokens": sum(one.resident_tokens for one in views),
            "weight_version": min(versions, default=None),
            "first_token_in_role_seconds": min((one for one in seconds if one is not None), default=None),
        }
    )
