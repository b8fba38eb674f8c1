"""The snapshot as the decision may trust it: impossible numbers become unknown, and what is known is judged.

An unknown number never shrinks the fleet: where a budget cannot be read, what is there stays.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING

from pearl_planner.fleet.living import stays
from pearl_planner.fleet.room import ONE_SIZE, Room, Units, unit_gpus, units_held, units_of
from pearl_planner.numbers import known, known_count
from pearl_planner.prediction.mean_turn import MIN_TURNS
from pearl_planner.types import Reason, Role, WorkerState, Zone

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pearl_planner.types import (
        Batch,
        Budget,
        Loan,
        Measurements,
        Memory,
        MixedSeen,
        Policy,
        Slot,
        Snapshot,
        Trainer,
        Worker,
    )

LENT = frozenset({"Granted", "Waking", "Serving"})
"""Phases of a loan in which its borrowers may serve."""
MAX_GROUPS = 65536
MAX_GPUS = 4096
MAX_COUNT = 10**9
_SERVING = frozenset({WorkerState.READY, WorkerState.UNREADY})


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the fleet must, and may, have by zone: lent workers, and units of its own zones (fleet/room.py).

    In a fleet of one size a unit is a worker.
    """

    reserved: int
    elastic_low: int
    elastic_high: int
    elastic_present: int
    borrowed: int
    units: Units = ONE_SIZE

    def room(self, elastic: int) -> Room:
        """With this many elastic units."""
        return Room(self.reserved, elastic, self.borrowed, self.units)

    def with_elastic(self, elastic: int) -> dict[Zone, int]:
        """Per zone with this many elastic units."""
        return {Zone.RESERVED: self.reserved, Zone.ELASTIC: elastic, Zone.BORROWED: self.borrowed}

    @property
    def elastic_kept(self) -> int:
        """Elastic units without any optional change: those there are, within the limits."""
        return min(max(self.elastic_present, self.elastic_low), max(self.elastic_high, self.elastic_low))

    @property
    def fixed(self) -> int:
        """Workers that are not elastic."""
        return self.reserved + self.borrowed


def clean(snapshot: Snapshot) -> Snapshot:
    """The same snapshot with every impossible number made unknown."""
    return replace(
        snapshot,
        now=known(snapshot.now) or 0.0,
        workers=tuple(_clean_worker(worker) for worker in snapshot.workers),
        loans=tuple(_clean_loan(loan) for loan in snapshot.loans),
        budget=_clean_budget(snapshot),
        measurements=_clean_measurements(snapshot.measurements),
        profile=None if snapshot.profile is None else snapshot.profile.sane(),
        batch=None if snapshot.batch is None else _clean_batch(snapshot.batch),
        memory=_clean_memory(snapshot.memory),
        trainer=None if snapshot.trainer is None else _clean_trainer(snapshot.trainer),
    )


def _clean_worker(worker: Worker) -> Worker:
    """The same object where nothing is wrong, which is the rule: a fleet may have hundreds."""
    counts = (worker.in_flight, worker.resident_tokens)
    times = (worker.notice_seconds, worker.draining_seconds)
    usual = (type(worker.gpus) is int and 0 < worker.gpus <= MAX_GPUS) and (
        all(one is None or (type(one) is int and 0 <= one <= MAX_COUNT) for one in counts)
        and all(one is None or known(one) is not None for one in times)
    )
    return worker if usual else _mended_worker(worker)


def _mended_worker(worker: Worker) -> Worker:
    return replace(
        worker,
        gpus=known_count(worker.gpus, high=MAX_GPUS) or 1,
        in_flight=known_count(worker.in_flight),
        resident_tokens=known_count(worker.resident_tokens, high=10**12),
        notice_seconds=known(worker.notice_seconds),
        draining_seconds=known(worker.draining_seconds),
    )


def _clean_loan(loan: Loan) -> Loan:
    return replace(loan, cap_seconds=known(loan.cap_seconds), expected_idle_seconds=known(loan.expected_idle_seconds))


def _clean_budget(snapshot: Snapshot) -> Budget:
    """Unreadable limits become what the zone uses now: neither growth nor shrink follows from them."""
    budget = snapshot.budget
    used = {
        zone: sum(known_count(w.gpus, high=MAX_GPUS) or 1 for w in snapshot.workers if w.zone is zone and stays(w))
        for zone in Zone
    }
    reserved = known_count(budget.reserved_gpus)
    high = known_count(budget.elastic_max_gpus)
    low = known_count(budget.elastic_min_gpus)
    return replace(
        budget,
        gpus_per_worker=known_count(budget.gpus_per_worker, high=MAX_GPUS) or 1,
        reserved_gpus=used[Zone.RESERVED] if reserved is None else reserved,
        elastic_max_gpus=used[Zone.ELASTIC] if high is None else high,
        elastic_min_gpus=(used[Zone.ELASTIC] if high is None else 0) if low is None else low,
        borrowed_max_gpus=known_count(budget.borrowed_max_gpus) or 0,
        elastic_free_gpus=known_count(budget.elastic_free_gpus),
        prefill_gpus=known_count(budget.prefill_gpus, high=MAX_GPUS) or None,
        decode_gpus=known_count(budget.decode_gpus, high=MAX_GPUS) or None,
    )


def _clean_measurements(measurements: Measurements) -> Measurements:
    return replace(
        measurements,
        gateway_age_seconds=known(measurements.gateway_age_seconds),
        prometheus_age_seconds=known(measurements.prometheus_age_seconds),
        live_trajectories=known_count(measurements.live_trajectories, high=10**6),
        asked_seconds=known(measurements.asked_seconds),
        gateway_uptime_seconds=known(measurements.gateway_uptime_seconds),
    )


def _clean_batch(batch: Batch) -> Batch | None:
    """None where the counts cannot be those of a batch."""
    counts = (batch.groups, batch.group_size, batch.need_groups, batch.complete_groups, batch.started, batch.finished)
    numbers = [known_count(count, high=MAX_GROUPS) for count in counts]
    if any(number is None for number in numbers) or not batch.groups or not batch.group_size or not batch.need_groups:
        return None
    unfinished = tuple(
        replace(
            one,
            turns_done=known_count(one.turns_done, high=10**6) or 0,
            context_tokens=known_count(one.context_tokens) or 0,
            idle_seconds=known(one.idle_seconds),
        )
        for one in batch.unfinished
    )
    return replace(batch, unfinished=unfinished)


def _clean_trainer(trainer: Trainer) -> Trainer:
    return replace(
        trainer,
        update_seconds=known(trainer.update_seconds, high=1e6),
        waiting_seconds=known(trainer.waiting_seconds),
        ready_trajectories=known_count(trainer.ready_trajectories, high=10**6),
    )


def _clean_seen(seen: MixedSeen | None) -> MixedSeen | None:
    return seen if seen is not None and all(known(one, high=1e12) is not None for one in astuple(seen)) else None


def _clean_memory(memory: Memory) -> Memory:
    return replace(
        memory,
        last_change_at=known(memory.last_change_at),
        last_target_id=known_count(memory.last_target_id) or 0,
        flip_cost_seconds=known(memory.flip_cost_seconds, high=1e5),
        start_cost_seconds=known(memory.start_cost_seconds, high=1e5),
        wake_cost_seconds=known(memory.wake_cost_seconds, high=1e5),
        model_scale=known(memory.model_scale, low=1e-3, high=1e3),
        decode_scale=known(memory.decode_scale, low=1e-3, high=1e3),
        mixed_seen=_clean_seen(memory.mixed_seen),
        capacity_changed_at=known(memory.capacity_changed_at),
        elastic_gpus_seen=known_count(memory.elastic_gpus_seen),
        looked_at=known(memory.looked_at),
        live_peak=known(memory.live_peak, high=1e7),
        rival_since=known(memory.rival_since),
        pressed_since=known(memory.pressed_since),
        surplus_since=known(memory.surplus_since),
        wake_seen_at=known(memory.wake_seen_at),
        cold_cost_seconds=known(memory.cold_cost_seconds, high=1e5),
        cold_seen_at=known(memory.cold_seen_at),
        under_way=tuple(one for one in memory.under_way if known(one.since) is not None),
        elastic_seconds=known(memory.elastic_seconds, high=1e12),
        elastic_losses=known(memory.elastic_losses, high=1e9),
    )


def missing_data(snapshot: Snapshot, policy: Policy) -> tuple[Reason, str] | None:
    """Why nothing optional may be decided (reason and cause), None when the measurements can be used."""
    seen = snapshot.measurements
    limit = known(policy.stale_after_seconds, low=0.001) or 30.0
    if seen.gateway_age_seconds is None:
        return Reason.NO_DATA, "the gateway's statistics were never read"
    if seen.gateway_age_seconds > limit:
        return Reason.STALE_DATA, f"the gateway's statistics are {seen.gateway_age_seconds:.0f} s old"
    if seen.prometheus_expected and seen.prometheus_age_seconds is None:
        return Reason.NO_DATA, "Prometheus has engine series of fewer than half of the workers"
    engines_limit = known(policy.engines_stale_after_seconds, low=0.001) or limit
    if seen.prometheus_expected and (seen.prometheus_age_seconds or 0.0) > engines_limit:
        return Reason.STALE_DATA, f"the engine samples in Prometheus are {seen.prometheus_age_seconds:.0f} s old"
    if snapshot.profile is None or snapshot.profile.effective_turns < MIN_TURNS:
        turns = 0 if snapshot.profile is None else snapshot.profile.turns
        return Reason.NO_DATA, f"{turns} turns measured, {MIN_TURNS:.0f} needed"
    return None


def lent_workers(snapshot: Snapshot) -> tuple[Worker, ...]:
    """Borrowed workers that serve under a loan which was not asked back."""
    lent = {loan.name for loan in snapshot.loans if loan.phase in LENT}
    return tuple(
        worker
        for worker in snapshot.workers
        if worker.zone is Zone.BORROWED and worker.loan in lent and worker.state in _SERVING and stays(worker)
    )


def fleet(snapshot: Snapshot) -> tuple[Worker, ...]:
    """Workers that decisions are about: all but borrowers that do not serve."""
    lent = {worker.uid for worker in lent_workers(snapshot)}
    return tuple(worker for worker in snapshot.workers if worker.zone is not Zone.BORROWED or worker.uid in lent)


def sizes(snapshot: Snapshot) -> Sizes:
    """Floors and limits in units. One elastic worker is a floor where there would be none at all."""
    budget, units = snapshot.budget, units_of(snapshot.budget)
    unit = unit_gpus(budget)
    reserved = budget.reserved_gpus // unit
    borrowed = len(lent_workers(snapshot))
    present = sum(max(w.gpus // unit, 1) for w in snapshot.workers if w.zone is Zone.ELASTIC and stays(w))
    limit = budget.elastic_max_gpus // unit
    low = min(-(-budget.elastic_min_gpus // unit), limit)
    if reserved + borrowed + low == 0 and limit > 0:
        low = min(units.colocated, limit)
    high = max(low, min(limit, _reachable(snapshot, present)))
    wanted = units_held(snapshot.target.slots, budget)[Zone.ELASTIC] if snapshot.target else 0
    kept = max(min(present, limit), min(wanted, high))  # one that died is replaced where there is room
    return Sizes(reserved, low, high, kept, borrowed, units)


def holds_what_it_must(slots: Sequence[Slot], snapshot: Snapshot) -> bool:
    """Whether these slots fill the reserved GPUs and as many elastic ones as they may: no worker more would fit."""
    room, held = sizes(snapshot), units_held(slots, snapshot.budget)
    split = any(slot.role is not Role.COLOCATED for slot in slots)
    least = room.units.prefill if split else room.units.colocated
    limit = max(snapshot.budget.elastic_max_gpus // unit_gpus(snapshot.budget), room.elastic_low)
    reserved, elastic = held[Zone.RESERVED], held[Zone.ELASTIC]
    return room.reserved - least < reserved <= room.reserved and room.elastic_low - least < elastic <= limit


def _reachable(snapshot: Snapshot, present: int) -> int:
    """Elastic units that the cluster could hold now; unknown free GPUs are tried unless some already wait."""
    free = snapshot.budget.elastic_free_gpus
    if free is not None:
        return present + free // unit_gpus(snapshot.budget)
    waiting = any(w.zone is Zone.ELASTIC and w.state is WorkerState.PENDING for w in snapshot.workers)
    return present if waiting else snapshot.budget.elastic_max_gpus


def dead_slots(snapshot: Snapshot, next_incarnations: Mapping[int, int]) -> frozenset[int]:
    """Slots of the present target whose pod was there and is gone, failed, or loses its node."""
    if snapshot.target is None:
        return frozenset()
    there = {(w.slot, w.incarnation): w for w in snapshot.workers}
    dead: set[int] = set()
    for slot in snapshot.target.slots:
        worker = there.get((slot.slot, slot.incarnation))
        if worker is None and slot.zone is not Zone.BORROWED:
            dead.update({slot.slot} if next_incarnations.get(slot.slot, 0) > slot.incarnation else ())
        elif worker is None or not stays(worker):
            dead.add(slot.slot)
    return frozenset(dead)
