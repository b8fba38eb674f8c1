"""How far the engines are from their table: their steps (κ), and what prefill costs those who also decode (I).

docs/models.md, "Correction". A worker that only decodes shows κ. One that also prefills shows both at once; which part
is which is known as far as it prefilled more at some times than at others, and once both kinds of workers were seen.
Until then a part of the slowness is held to be interference: the other mode is given the benefit of the doubt once,
and if it is tried the truth is known.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING

from pearl_planner.engine.model import chunk_seconds, decode_seconds, sane_table
from pearl_planner.numbers import clamp, known, median
from pearl_planner.types import MixedSeen, Mode, Role
from pearl_planner.workload.profile import Profile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pearl_planner.engine.model import EngineTable
    from pearl_planner.types import Batch, Memory, Policy, Snapshot

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
DOUBT = 0.05
"""Weight of what is thought of κ, beside the mean square of x that p does not explain."""
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
    memory = _of_table(snapshot.memory, _name(policy))
    age = snapshot.measurements.prometheus_age_seconds
    if age is None or age > policy.stale_after_seconds or not all(sane_table(policy.table_of(mode)) for mode in Mode):
        return memory
    changed = memory.last_change_at
    if changed is not None and snapshot.now - changed < MIXED_SECONDS:
        return memory  # averages over the last scrapes are still of other roles
    if _in_step(snapshot.batch):
        return memory
    decoding = _means([seen for role, seen in _engines(snapshot, policy) if role is Role.DECODE])
    mixed = _means([seen for role, seen in _engines(snapshot, policy) if role is Role.COLOCATED])
    if decoding is not None:
        wrong = interference_seconds(memory)
        alone = (1.0 - decoding.prefills * wrong) / (decoding.step_share + decoding.prefills * decoding.prefill_seconds)
        memory = replace(memory, decode_scale=_decode_scale(memory, max(alone, SCALE_LIMITS[0])))
    if mixed is not None:
        memory = replace(memory, mixed_seen=_averaged(memory.mixed_seen, mixed))
    return replace(memory, model_scale=step_scale(memory))


def _name(policy: Policy) -> str:
    """Of the tables together: workers of several sizes share κ and I."""
    split = policy.split_table
    return policy.table.name if split is None else f"{policy.table.name} {split.prefilling.name} {split.name}"


def _of_table(memory: Memory, name: str) -> Memory:
    """What was learned of another table says nothing of this one."""
    if memory.scale_table == name:
        return memory
    if memory.scale_table is None:
        return replace(memory, scale_table=name)
    return replace(memory, scale_table=name, model_scale=None, decode_scale=None, mixed_seen=None)


def _decode_scale(memory: Memory, seen: float) -> float:
    """With one more look at workers that only decode.

    No engine looks faster than it is: the first look is believed at once where it is faster than was thought. Slower
    than it is one looks while it works off prompts of its old role, or prefills since nobody else has its weights.
    """
    thought = step_scale(memory)
    if thought is None or (memory.decode_scale is None and seen <= thought):
        return _mixed(None, seen)
    return _mixed(thought, min(seen, MOST_SLOWER * thought))


def _averaged(old: MixedSeen | None, one: _Seen) -> MixedSeen:
    explained, prefills = one.step_share + one.prefills * one.prefill_seconds, one.prefills
    new = MixedSeen(explained, prefills, explained**2, explained * prefills, prefills**2)
    if old is None:
        return new
    pairs = zip(astuple(old), astuple(new), strict=True)
    return MixedSeen(*(_short(before + WEIGHT * (now - before)) for before, now in pairs))


def step_scale(memory: Memory) -> float | None:
    """κ: from workers that only decode, else from others at times of many and of few prefills; None = nothing seen.

    The least squares of `1 = κ·x + I·p` over looks (x: share of the time that the table explains, p: prefills per
    second), held to what is thought where p does not vary.
    """
    if memory.decode_scale is not None:
        return memory.decode_scale
    seen = memory.mixed_seen
    if seen is None:
        return memory.model_scale
    whole = clamp(1.0 / max(seen.explained, 1e-9), *SCALE_LIMITS)
    if seen.prefills_squared <= 0:
        return whole
    thought = whole if whole <= TABLE_ERROR else max(TABLE_ERROR, whole / MOST_INTERFERENCE)
    slope = seen.explained_prefills / seen.prefills_squared
    told = max(seen.explained_squared - slope * seen.explained_prefills, 0.0)
    fitted = (seen.explained - slope * seen.prefills + DOUBT * thought) / (told + DOUBT)
    return clamp(fitted, SCALE_LIMITS[0], whole)


def interference_seconds(memory: Memory) -> float:
    """I of the same least squares with κ given: time of a worker that neither steps nor prefills explain."""
    scale, seen = step_scale(memory), memory.mixed_seen
    if seen is None or scale is None or seen.prefills_squared <= 0:
        return 0.0
    seconds = (seen.prefills - scale * seen.explained_prefills) / seen.prefills_squared
    return seconds if seconds * seen.prefills > LEAST_SHARE else 0.0


def corrected(table: EngineTable, memory: Memory) -> EngineTable:
    """The table as the engines turned out to be."""
    scaled = table.scaled(memory.model_scale or 1.0)
    if memory.mixed_seen is None:
        return scaled
    return replace(scaled, interference_seconds=interference_seconds(memory))


def _engines(snapshot: Snapshot, policy: Policy) -> list[tuple[Role, _Seen]]:
    profile = snapshot.profile or Profile()
    context, missed = _context(snapshot, profile), profile.missed_tokens()
    new = max(profile.appended.mean + max(missed.get("colocated", 0.0), 0.0), 1.0)
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
        mixed = worker.role is Role.COLOCATED
        share = 1.0 if mixed else local_share
        table = policy.table_of(Mode.COLOCATED if mixed else Mode.DISAGGREGATED)
        prefill = chunk_seconds(table, new, max(context - new, 0.0))
        step = decode_seconds(table, running, context) / between
        prefills = share * _turns_per_second(running, between, profile)
        found.append((worker.role, _Seen(step, prefills, prefill if prefills > 0 else 0.0)))
    return found


def _in_step(batch: Batch | None) -> bool:
    """Whether most trajectories of the batch are in their first turn: all prefilled at once, and nobody does now."""
    if batch is None:
        return False
    first = sum(1 for one in batch.unfinished if one.turns_done == 0)
    return first > (len(batch.unfinished) + batch.finished) / 2


def _context(snapshot: Snapshot, profile: Profile) -> float:
    """Mean tokens of a sequence that is in an engine now, in the middle of its answer; else of the mean turn.

    A batch begins with short contexts and ends with long ones, and steps take that much less or more time.
    """
    running = (
        [one.context_tokens for one in snapshot.batch.unfinished if one.idle_seconds is None] if snapshot.batch else []
    )
    if not running:
        return profile.context.known_mean() or 0.0
    return sum(running) / len(running) + (profile.generated.known_mean() or 0.0) / 2


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
