"""Where a turn goes: a pure choice among the workers that may get one.

Colocated workers prefill and decode themselves. With prefill and decode workers present, a turn is prefilled on one
and decoded on the other, unless so few tokens are uncached on its decode worker that a hand-off costs more
(`local_append_tokens`, set by the planner). Where one of the two sides is missing, whatever is there serves both
stages; that is counted as degraded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from pearl_api.names import Role
from pearl_gateway.versions import ANY, Accepted

if TYPE_CHECKING:
    from collections.abc import Sequence

_LEAK_FACTOR = 2.0
_LEAK_SLACK = 4.0
"""Affinity is given up when its worker is busier than factor × the idlest + slack: a cold prefill is cheaper then."""
_HANDOFF_PENALTY = 0.5
"""What a hand-off weighs, in running requests, when a colocated worker and a pair are compared while roles change."""
_TOKENS_PER_REQUEST = 512.0
"""Queued prompt tokens that keep a prefill worker as busy as one more running request."""


class RouteKind(StrEnum):
    """How a turn is served."""

    COLOCATED = "colocated"
    HANDOFF = "handoff"
    LOCAL_APPEND = "localAppend"
    DEGRADED = "degraded"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker that may get a turn, and how busy it is (in running requests)."""

    uid: str
    role: Role
    load: float
    prefill_tokens: int = 0
    version: int | None = None
    taken: int = 0
    """Turns on it, with those that have a place and have not begun."""
    queued_tokens: int = 0
    """The same of prompt tokens."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What is known about the turn that needs a place."""

    prompt_tokens: int
    cached_tokens: int = 0
    """Leading tokens of the prompt whose KV `home` holds."""
    home: str | None = None
    """Worker that generated last in this trajectory."""
    prefill_home: str | None = None
    group_home: str | None = None
    """Worker that has the prompt of the trajectory's group."""
    group_prefill: str | None = None
    local_append_tokens: int = 0
    weights: Accepted = ANY
    """Versions that may generate it."""
    excluded: frozenset[str] = frozenset()
    bad_links: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Route:
    """`worker` generates; `prefill` computes the prompt first where there is a hand-off."""

    kind: RouteKind
    worker: str
    prefill: str | None = None
    cause: str = field(default="", compare=False)
    """Why it is degraded: `noPrefill`, `noDecode`, or `noLink` where no KV would get across."""


def choose(candidates: Sequence[Candidate], ask: Ask) -> Route | None:
    """The route of one turn, or None while nothing can serve it.

    A worker that just failed the turn (`excluded`) is used only if there is no other.
    """
    fit = [one for one in candidates if _acceptable(one.version or 0, ask.weights)]
    fresh = [one for one in fit if one.uid not in ask.excluded]
    return _choose(fresh, ask) or _choose(fit, ask)


def _acceptable(version: int, weights: Accepted) -> bool:
    """Whether they may be used; a worker that told nothing counts as the oldest."""
    least, most = weights.least, weights.most
    return (least is None or version >= least) and (most is None or version <= most)


def _choose(candidates: Sequence[Candidate], ask: Ask) -> Route | None:
    colocated = [one for one in candidates if one.role is Role.COLOCATED]
    pair = _pair(candidates, ask)
    if not colocated:
        return pair or _degraded(candidates, ask)
    worker = _with_affinity(colocated, (ask.home, ask.group_home))
    alone = Route(RouteKind.COLOCATED, worker.uid)
    if pair is None:
        return alone
    # Only while roles change do both exist: keep the KV where it is, else take the less busy side.
    if ask.home is not None:
        if ask.home == worker.uid:
            return alone
        if ask.home == pair.worker:
            return pair
    loads = {one.uid: one.load for one in candidates}
    return alone if worker.load <= loads[pair.worker] + _HANDOFF_PENALTY else pair


def _pair(candidates: Sequence[Candidate], ask: Ask) -> Route | None:
    decoders = [one for one in candidates if one.role is Role.DECODE]
    prefillers = [one for one in candidates if one.role is Role.PREFILL]
    if not decoders or not prefillers:
        return None
    decode = _with_affinity(decoders, (ask.home,))
    uncached = ask.prompt_tokens - (ask.cached_tokens if decode.uid == ask.home else 0)
    if uncached <= ask.local_append_tokens:
        return Route(RouteKind.LOCAL_APPEND, decode.uid)
    linked = [
        one
        for one in prefillers
        if (one.uid, decode.uid) not in ask.bad_links and _same_weights(one.version, decode.version)
    ]
    if not linked:
        # No KV that it could use would reach it: it computes the prompt itself.
        return Route(RouteKind.DEGRADED, decode.uid, cause="noLink")
    queue = [Candidate(one.uid, one.role, one.load + one.prefill_tokens / _TOKENS_PER_REQUEST) for one in linked]
    prefill = _with_affinity(queue, (ask.prefill_home, ask.group_prefill))
    return Route(RouteKind.HANDOFF, decode.uid, prefill.uid)


def _same_weights(prefill: int | None, decode: int | None) -> bool:
    """Whether KV may go from one to the other, as far as is known; the answers tell for certain."""
    return prefill is None or decode is None or prefill == decode


def _degraded(candidates: Sequence[Candidate], ask: Ask) -> Route | None:
    if not candidates:
        return None
    worker = _with_affinity(candidates, (ask.home, ask.prefill_home, ask.group_home, ask.group_prefill))
    return Route(RouteKind.DEGRADED, worker.uid, cause="noPrefill" if worker.role is Role.DECODE else "noDecode")


def _with_affinity(candidates: Sequence[Candidate], wishes: Sequence[str | None]) -> Candidate:
    """The first wish that is present and not overloaded, else the least busy (ties: by UID, to be repeatable)."""
    idlest = min(candidates, key=lambda one: (one.load, one.uid))
    by_uid = {one.uid: one for one in candidates}
    for wish in wishes:
        found = by_uid.get(wish) if wish is not None else None
        if found is not None and found.load <= _LEAK_FACTOR * idlest.load + _LEAK_SLACK:
            return found
    return idlest
