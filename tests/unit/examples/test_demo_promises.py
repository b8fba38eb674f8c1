"""Each promise of the demo's first act, kept and broken."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from examples.common.timeline import DecisionFact
from examples.demo.emulated import promises
from examples.demo.emulated.facts import Record, Sample, Switch, use

from pearl_dev.virtual.trainer_pod import Reclaim

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLE = Sample(
    at=0.0,
    reserved=4,
    elastic=6,
    borrowed=8,
    spot=6,
    prefill=0,
    decode=0,
    colocated=9,
    ready=9,
    mode="Colocated",
    training=False,
    lent=True,
    predicted_seconds=None,
    fixed_seconds=None,
)


def good() -> Record:
    """An hour: lent and all spot GPUs used, then half an hour of training in which 4 of 6 are left alone."""
    later = replace(SAMPLE, at=1800.0, elastic=2, borrowed=0, training=True, lent=False)
    return Record(
        samples=[SAMPLE, later, replace(later, at=3600.0)],
        decisions=[DecisionFact(1790.0, "swe", "EnvironmentBound", "colocated:3", "")],
        switches=[Switch(100.0, "Colocated", "Disaggregated")],
        notices=[500.0],
        reclaims=[Reclaim(1795.0, was_lent=True, seconds=3.2, deadline_seconds=10.0)],
        batches=[1800.0],
        begun=64,
        ended=64,
    )


def broken(record: Record) -> list[str]:
    promises.check(record, training_gpus=8)
    return [one.text for one in record.checks if not one.kept]


def test_all_are_kept() -> None:
    assert broken(good()) == []


def late(record: Record) -> None:
    record.reclaims.append(Reclaim(3000.0, was_lent=True, seconds=10.1, deadline_seconds=10.0))


def never_lent(record: Record) -> None:
    record.reclaims = [replace(one, was_lent=False) for one in record.reclaims]


def held_during_an_update(record: Record) -> None:
    record.held_while_training = 1


def not_given_back_at_the_end(record: Record) -> None:
    record.samples[-1] = replace(record.samples[-1], borrowed=8)


def one_lost(record: Record) -> None:
    record.ended = 63


def no_batch_after_a_notice(record: Record) -> None:
    record.notices.append(1801.0)


def one_mode_only(record: Record) -> None:
    record.switches.clear()


def all_spot_gpus_kept(record: Record) -> None:
    record.samples = [replace(one, elastic=one.spot) for one in record.samples]


@pytest.mark.parametrize(
    ("what", "told"),
    [
        (late, "Training GPUs come back on time"),
        (never_lent, "Training GPUs come back on time"),
        (held_during_an_update, "No worker holds a training GPU during an update"),
        (not_given_back_at_the_end, "Training GPUs are borrowed, and given back"),
        (one_lost, "No trajectory is lost"),
        (no_batch_after_a_notice, "Revocations of spot GPUs are survived"),
        (one_mode_only, "The mode follows the work"),
        (all_spot_gpus_kept, "GPUs that would not help are given back"),
    ],
)
def test_what_is_not_kept_is_told(what: Callable[[Record], None], told: str) -> None:
    record = good()
    what(record)
    assert broken(record) == [told]


def test_gpu_hours() -> None:
    found = use(good(), 8)
    assert (found.spot, found.given_back) == (6.0, 2.0)
    assert (found.training, found.lent, found.idle) == (4.0, 4.0, 0.0)
