"""Records go into the profile together, and nobody who reads it sees fewer than there were."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pearl_gateway import records
from pearl_gateway.records import Recorder
from pearl_gateway.storage import Storage
from pearl_gateway.tally import Tally
from pearl_planner.workload.profile import Profile, TurnRecord, update

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

RECORDS = [
    TurnRecord(
        trajectory=f"t{at % 7}",
        turn=1 + at // 7,
        appended_tokens=10 + at,
        generated_tokens=5 * at + 1,
        context_tokens=9,
    )
    for at in range(100)
]


def flat(profile: Profile | None) -> list[float]:
    def numbers(value: Any) -> Iterable[float]:
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list):
            for one in value:
                yield from numbers(one)
        elif isinstance(value, (int, float)):
            yield value

    assert profile is not None
    said = profile.to_dict()
    del said["recent"]  # what a change of phase is seen by is measured against the profile as it was
    return list(numbers(said))


def test_the_profile_is_of_all_records(monkeypatch: pytest.MonkeyPatch) -> None:
    folded: list[int] = []

    def counted(profile: Profile | None, news: list[TurnRecord]) -> Profile:
        folded.append(len(news))
        return update(profile, news)

    monkeypatch.setattr(records, "update", counted)
    recorder = Recorder(Tally(), None, lambda: 3.0)
    assert recorder.profile is None
    for record in RECORDS:
        recorder.add(record)
    assert recorder.profile_at == 3.0
    assert flat(recorder.profile) == pytest.approx(flat(update(None, RECORDS)), abs=1e-9)
    assert recorder.profile is recorder.profile
    assert folded == [32, 32, 32, 4]


def test_the_stored_one_too(tmp_path: Path) -> None:
    now = [0.0]
    storage = Storage(tmp_path, lambda: now[0])
    recorder = Recorder(Tally(), storage, lambda: now[0])

    def stored() -> Any:
        return json.loads((tmp_path / "profile.json").read_text())

    recorder.add(RECORDS[0])
    for record in RECORDS[1:9]:
        recorder.add(record)
    assert stored()["turns"] == 1  # not at every turn
    now[0] = 6.0
    recorder.add(RECORDS[9])
    assert stored()["turns"] == 10
    storage.close()
