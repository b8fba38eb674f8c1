"""What PEARL promises, held against the record of act 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples.common.promises import Promise
from examples.demo.emulated.facts import use

if TYPE_CHECKING:
    from examples.demo.emulated.facts import Record

GIVES_BACK = ("EnvironmentBound", "TrainerBound")
"""Reasons for which more GPUs would do nothing."""


def check(record: Record, *, training_gpus: int) -> None:
    """Append every promise with whether it was kept and what was seen."""
    record.checks += [
        _in_time(record),
        Promise(
            "No worker holds a training GPU during an update",
            not record.held_while_training,
            f"{record.held_while_training} looks at which one did",
        ),
        _borrowed(record, training_gpus),
        _none_lost(record),
        _survived(record),
        Promise(
            "The mode follows the work",
            bool(record.switches),
            ", ".join(f"{one.after} at {one.at / 60:.0f} min" for one in record.switches) or "never changed",
        ),
        _given_back(record, training_gpus),
    ]


def _in_time(record: Record) -> Promise:
    lent = [one for one in record.reclaims if one.was_lent]
    late = [one for one in lent if one.seconds > one.deadline_seconds]
    longest = max((one.seconds for one in lent), default=None)
    if longest is None:
        return Promise("Training GPUs come back on time", kept=False, seen="never lent")
    seen = f"{len(lent)} reclaims, the longest {longest:.1f} s, {len(late)} past the deadline"
    return Promise("Training GPUs come back on time", not late, seen)


def _borrowed(record: Record, training_gpus: int) -> Promise:
    """Borrowed while it was useful, and all given back at the end."""
    hours = use(record, training_gpus)
    kept = any(one.borrowed for one in record.samples) and not record.samples[-1].borrowed
    waited = hours.lent + hours.idle
    seen = f"lent for {hours.lent:.1f} of {waited:.1f} GPU-hours that the trainer waited"
    return Promise("Training GPUs are borrowed, and given back", kept, seen)


def _none_lost(record: Record) -> Promise:
    lost = record.begun - record.ended
    seen = f"{record.begun} trajectories began, {record.ended} ended, {lost} are missing"
    return Promise("No trajectory is lost", record.begun > 0 and lost == 0, seen)


def _survived(record: Record) -> Promise:
    """Of a revocation that all trajectories outlived, the batches went on."""
    last = max(record.notices, default=None)
    kept = last is not None and any(at > last for at in record.batches)
    seen = f"{len(record.notices)} spot workers were told to go, {len(record.batches)} batches were consumed"
    return Promise("Revocations of spot GPUs are survived", kept, seen)


def _given_back(record: Record, training_gpus: int) -> Promise:
    """Spot GPUs that are there and would not make anything faster are held by nobody."""
    reasons = [one for one in record.decisions if one.reason in GIVES_BACK]
    kept = any(_free_after(record, one.at) for one in reasons)
    hours = use(record, training_gpus)
    seen = f"{hours.given_back:.1f} of {hours.spot:.1f} spot GPU-hours were left to others"
    return Promise("GPUs that would not help are given back", kept, seen)


def _free_after(record: Record, at: float, within_seconds: float = 120.0) -> bool:
    soon = [one for one in record.samples if at <= one.at <= at + within_seconds]
    return any(one.spot - one.elastic > one.spot // 2 for one in soon)
