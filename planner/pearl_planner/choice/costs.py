"""What changes cost, as seen between looks: starts, wakes and flips by their duration, elastic capacity by its losses.

docs/models.md, "Measured costs". All are decaying averages in the memory; nothing is known until it happened once.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pearl_planner.facts import dead_slots, lent_workers
from pearl_planner.types import Transition, WorkerState, Zone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pearl_planner.types import Memory, Snapshot, Worker

WEIGHT = 0.3
"""Of a new measurement in the decaying average of a cost."""
MOST_UNDER_WAY = 64
"""Transitions watched at a time: the memory must stay small."""
LIFE_FADING_SECONDS = 4 * 3600.0
LONGEST_GAP_SECONDS = 60.0
"""A longer time between two looks was an outage: nobody knows what lived through it."""
FLIP_SECONDS = 1.0
"""Before any flip was measured."""
START_SECONDS = 60.0
"""Before any start was."""
_WAKING = frozenset({"Granted", "Waking", "Serving"})
_FIELDS = {
    "start": "start_cost_seconds",
    "wake": "wake_cost_seconds",
    "cold": "cold_cost_seconds",
    "flip": "flip_cost_seconds",
}
_SEEN = {"wake": "wake_seen_at", "cold": "cold_seen_at"}


def flip_seconds(measured: float | None) -> float:
    """From a role label written until the gateway routes by it: as measured, or what is expected of a first flip."""
    return FLIP_SECONDS if measured is None else measured


def start_seconds(memory: Memory) -> float:
    """From a pod created to serving."""
    return START_SECONDS if memory.start_cost_seconds is None else memory.start_cost_seconds


def learn_costs(snapshot: Snapshot) -> Memory:
    """The memory with what ended since the last look averaged in, and what goes on noted."""
    memory, now = snapshot.memory, snapshot.now
    since = {(one.uid, one.kind): one.since for one in memory.under_way}
    going = list(_going_on(snapshot))
    over = {(worker.uid, kind) for worker in snapshot.workers for kind in _done(worker, snapshot)}
    for key, began in since.items():
        if key in over and now > began:
            memory = _averaged(memory, key[1], now - began, now)
        elif key[1] == "cold" and key not in going:
            memory = _at_least(memory, began, now)
    under_way = sorted({key: since.get(key, now) for key in going}.items(), key=lambda one: (one[1], one[0]))
    kept = tuple(Transition(uid, kind, began) for (uid, kind), began in under_way[:MOST_UNDER_WAY])
    return replace(memory, under_way=kept)


def _averaged(memory: Memory, kind: str, seconds: float, now: float) -> Memory:
    name = _FIELDS.get(kind)
    if name is None:
        return memory
    old: float | None = getattr(memory, name)
    new = seconds if old is None else old + WEIGHT * (seconds - old)
    change: dict[str, Any] = {name: float(f"{new:.6g}")}
    if kind in _SEEN:
        change[_SEEN[kind]] = now
    return replace(memory, **change)


def _at_least(memory: Memory, began: float, now: float) -> Memory:
    """A cold start was taken back before it served: it takes longer than it was seen to have gone on."""
    lasted = (began if memory.looked_at is None else memory.looked_at) - began
    if lasted <= (memory.cold_cost_seconds or 0.0):
        return memory
    return replace(memory, cold_cost_seconds=float(f"{lasted:.6g}"), cold_seen_at=now)


def _going_on(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """Transitions that have begun and are not over."""
    waking = {loan.name for loan in snapshot.loans if loan.phase in _WAKING}
    cold = {one.uid for one in snapshot.memory.under_way if one.kind == "cold"}
    for worker in snapshot.workers:
        if worker.zone is Zone.BORROWED:
            if worker.loan in waking and worker.state not in (WorkerState.READY, WorkerState.TERMINATING):
                # An engine that starts from nothing says nothing about the wakes to come.
                first = worker.state is WorkerState.STARTING or worker.uid in cold
                yield worker.uid, "cold" if first else "wake"
        elif worker.state in (WorkerState.PENDING, WorkerState.STARTING):
            yield worker.uid, "start"
        if worker.state is WorkerState.READY and worker.acked_epoch is not None and not _acknowledged(worker):
            yield worker.uid, "flip"


def _done(worker: Worker, snapshot: Snapshot) -> list[str]:
    """Kinds of transitions that cannot be under way any more because they succeeded."""
    if worker.state is not WorkerState.READY:
        return []
    kinds = ["flip"] if worker.acked_epoch is not None and _acknowledged(worker) else []
    if worker.zone is not Zone.BORROWED:
        return [*kinds, "start"]
    return [*kinds, "wake", "cold"] if worker in lent_workers(snapshot) else kinds


def _acknowledged(worker: Worker) -> bool:
    return worker.acked_epoch is not None and worker.acked_epoch >= worker.role_epoch


def learn_life(snapshot: Snapshot) -> Memory:
    """Worker-seconds that elastic workers lived, and how many of them were lost; both fade."""
    memory = snapshot.memory
    before = snapshot.now if memory.looked_at is None else memory.looked_at
    passed = min(max(snapshot.now - before, 0.0), LONGEST_GAP_SECONDS)
    keep = math.exp(-passed / LIFE_FADING_SECONDS)
    alive = sum(1 for worker in snapshot.workers if worker.zone is Zone.ELASTIC and worker.state is WorkerState.READY)
    lived = (memory.elastic_seconds or 0.0) * keep + alive * passed
    lost = (memory.elastic_losses or 0.0) * keep + _lost(snapshot)
    if not lived and not lost:
        return memory
    return replace(memory, elastic_seconds=float(f"{lived:.6g}"), elastic_losses=float(f"{lost:.6g}"))


def _lost(snapshot: Snapshot) -> int:
    """Elastic slots of the target in force whose pod is gone or goes; the next target no longer has them."""
    target = snapshot.target
    if target is None:
        return 0
    dead = dead_slots(snapshot, dict(snapshot.memory.next_incarnations))
    return sum(1 for slot in target.slots if slot.slot in dead and slot.zone is Zone.ELASTIC)
