"""How far the engines are from their table: their steps (κ), and what prefill costs those who also decode (I).

docs/models.md, "Correction". A worker that only decodes shows κ. One that also prefills shows both at once; which part
is which is known once both kinds of workers were seen. Until then a part of the slowness is held to be interference:
the other mode is given the benefit of the doubt once, and if it is tried the truth is known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pearl_planner.engine.model import chunk_seconds, decode_seconds, sane_table
from pearl_planner.numbers import clamp, known, median
from pearl_planner.types import Role
from pearl_planner.workload.profile import Profile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pearl_planner.engine.model import EngineTable
    from pearl_planner.types import Memory, Policy, Snapshot

SCALE_LIMITS = (0.05, 20.0)
WEIGHT = 0.1
"""Of one look in the decaying averages."""
MIN_RUNNING = 0.5
TABLE_ERROR = 1.15
"""Slowness up to this is a table's ordinary error."""
MOST_INTERFERENCE = 1.8
"""Slowness by more than this factor is not held to be interference alone."""
MIXED_SECONDS = 30.0
MOST_SLOWER = 1.5
"""Times of what was thought that one look at a worker that only decodes counts for at most."""
SETTLING = 12
LEAST_SHARE = 0.02
"""Interference that takes less of a worker's time is none."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """One engine: t(n)/τ, prefills per second on it, and seconds of the table for one of them."""

    step_share: float
    prefills: float
    prefill_seconds: float


def learn_scale(snapshot: Snapshot, policy: Policy) -> Memory:
    """The memory with what the engines' times between tokens say."""
    memory = snapshot.memory
    age = snapshot.measurements.prometheus_age_seconds
    if age is None or age > policy.stale_after_seconds or not sane_table(policy.table):
        return memory
    changed = memory.last_change_at
    if changed is not None and snapshot.now - changed < MIXED_SECONDS:
        return memory  # averages over the last scrapes are still of other roles
    decoding = _means([seen for role, seen in _engines(snapshot, policy) if role is Role.DECODE])
    mixed = _means([seen for role, seen in _engines(snapshot, policy) if role is Role.COLOCATED])
    if decoding is not None:
        wrong = interference_seconds(memory)
        alone = (1.0 - decoding.prefills * wrong) / (decoding.step_share + decoding.prefills * decoding.prefill_seconds)
        memory = replace(memory, decode_scale=_decode_scale(memory, max(alone, SCALE_LIMITS[0])))
    if mixed is not None:
        old = memory.colocated_seen
        new = (mixed.step_share, mixed.prefills, mixed.prefill_seconds)
        kept = new if old is None else tuple(a + WEIGHT * (b - a) for a, b in zip(old, new, strict=True))
        memory = replace(memory, colocated_seen=(_short(kept[0]), _short(kept[1]), _short(kept[2])))
    return replace(memory, model_scale=step_scale(memory))


def _decode_scale(memory: Memory, seen: float) -> float:
    """With one more look at workers that only decode.

    No engine looks faster than it is: the first look is believed at once where it is faster than was thought. Slower
    than it is one looks while it works off prompts of its old role, or prefills since nobody else has its weights.
    """
    thought = step_scale(memory)
    if thought is None or (memory.decode_scale is None and seen <= thought):
        return _mixed(None, seen)
    return _mixed(thought, min(seen, MOST_SLOWER * thought))


def step_scale(memory: Memory) -> float | None:
    """κ: from workers that only decode; else what is left of the slowness of others; None = nothing seen."""
    if memory.decode_scale is not None:
        return memory.decode_scale
    if memory.colocated_seen is None:
        return memory.model_scale
    share, prefills, seconds = memory.colocated_seen
    whole = clamp(1.0 / max(share + prefills * seconds, 1e-9), *SCALE_LIMITS)
    if prefills <= 0 or whole <= TABLE_ERROR:
        return whole
    return max(TABLE_ERROR, whole / MOST_INTERFERENCE)


def interference_seconds(memory: Memory) -> float:
    """I = (1 − κ·t(n)/τ)/prefills − κ·chunk: time of a worker that neither steps nor prefills explain."""
    scale = step_scale(memory)
    if memory.colocated_seen is None or scale is None:
        return 0.0
    share, prefills, seconds = memory.colocated_seen
    left = 1.0 - scale * (share + prefills * seconds)
    return left / prefills if prefills > 0 and left > LEAST_SHARE else 0.0


def corrected(table: EngineTable, memory: Memory) -> EngineTable:
    """The table as the engines turned out to be."""
    scaled = table.scaled(memory.model_scale or 1.0)
    if memory.colocated_seen is None:
        return scaled
    return replace(scaled, interference_seconds=interference_seconds(memory))


def _engines(snapshot: Snapshot, policy: Policy) -> list[tuple[Role, _Seen]]:
    profile = snapshot.profile or Profile()
    context, missed = profile.context.known_mean() or 0.0, profile.missed_tokens()
    new = max(profile.appended.mean + max(missed.get("colocated", 0.0), 0.0), 1.0)
    prefill = chunk_seconds(policy.table, new, max(context - new, 0.0))
    local_share = _local_share(profile, snapshot.memory, missed)
    found: list[tuple[Role, _Seen]] = []
    for worker in snapshot.workers:
        metrics = snapshot.measurements.engines.get(worker.uid)
        if metrics is None or worker.role is Role.PREFILL:
            continue
        running = known(metrics.running, low=MIN_RUNNING, high=1e5)
        between = known(metrics.inter_token_seconds, low=1e-7, high=1e4)
        if running is None or between is None:
            continue
        share = 1.0 if worker.role is Role.COLOCATED else local_share
        step = decode_seconds(policy.table, running, context) / between
        prefills = share * _turns_per_second(running, between, profile)
        found.append((worker.role, _Seen(step, prefills, prefill if prefills > 0 else 0.0)))
    return found


def _local_share(profile: Profile, memory: Memory, missed: Mapping[str, float]) -> float:
    """Share of turns that decode workers prefill themselves: what the threshold says, or what was seen if that is more.

    Without a prefill worker of its weights a decode worker prefills everything, whatever the threshold is.
    """
    total = sum(profile.appended_bins)
    least = max(0.0, missed.get("local", min(missed.values(), default=0.0)))
    below = (memory.local_append_tokens or 0) - least
    told = sum(n for k, n in enumerate(profile.appended_bins) if 2 ** (k + 1) <= below)
    local, away = (profile.missed[one].count if one in profile.missed else 0.0 for one in ("local", "disaggregated"))
    return max(told / total if total > 0 else 0.0, local / (local + away) if local > 0 else 0.0)


def _turns_per_second(running: float, between: float, profile: Profile) -> float:
    """n/τ tokens per second, r of them a turn; of sequences at any time. 0 while nobody knows how long answers are."""
    generated = profile.generated.known_mean()
    return _at_any_time(running) / between / generated if generated else 0.0


def _at_any_time(running: float) -> float:
    """Mean sequences at any time, of those at the times when there are some (Poisson: n = ν/(1 − e^−ν)).

    A prefill that comes while nobody decodes makes nobody wait.
    """
    mean = running
    for _ in range(SETTLING):
        mean = running * -math.expm1(-mean)
    return mean


def _means(found: list[_Seen]) -> _Seen | None:
    """The middle engine by how far it is from its table."""
    share = median(one.step_share for one in found)
    prefills = median(one.prefills for one in found)
    return None if share is None or prefills is None else _Seen(share, prefills, found[0].prefill_seconds)


def _mixed(old: float | None, new: float) -> float:
    new = clamp(new, *SCALE_LIMITS)
    if old is None:
        return _short(new)
    return _short(math.exp((1 - WEIGHT) * math.log(clamp(old, *SCALE_LIMITS)) + WEIGHT * math.log(new)))


def _short(value: float) -> float:
    return float(f"{value:.6g}")
