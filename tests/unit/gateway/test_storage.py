"""Files that grow are dropped when nobody needs them, and not before."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pearl_api.wire.gateway import TrajectoryExport
from pearl_gateway.storage import Storage

if TYPE_CHECKING:
    from pathlib import Path


def export(name: str, tokens: int = 10) -> TrajectoryExport:
    return TrajectoryExport(
        trajectory=name,
        group=None,
        state="finished",
        reward=None,
        cause=None,
        turns=1,
        token_ids=[7] * tokens,
        loss_mask=[1] * tokens,
        logprobs=[-1.0] * tokens,
        versions=[0] * tokens,
        segments=[],
    )


def files(folder: Path, stem: str) -> list[str]:
    return sorted(path.name for path in folder.glob(f"{stem}-*"))


def test_turns_stay_until_all_trajectories_of_their_file_ended(tmp_path: Path) -> None:
    storage = Storage(tmp_path, time.monotonic, segment_bytes=1)
    for name in ("a", "b", "a"):
        storage.write_turn({"trajectory": name})
    assert len(files(tmp_path, "turns")) == 3
    storage.write_trajectory(None, export("a"))
    # The first holds only `a`; the last is the newest file and stays.
    assert files(tmp_path, "turns") == ["turns-000002.jsonl", "turns-000003.jsonl"]
    storage.close()
    again = Storage(tmp_path, time.monotonic, segment_bytes=1)
    assert again.read_turns() == [{"trajectory": "b"}]
    again.close()


def test_oldest_exports_go_when_there_are_too_many_bytes(tmp_path: Path) -> None:
    storage = Storage(tmp_path, time.monotonic, segment_bytes=1, most_export_bytes=700)
    needed = {"a"}
    storage.needed = needed.__contains__
    for name in ("a", "b", "c"):
        storage.write_trajectory(None, export(name))
    assert storage.read_trajectory("a") == export("a")
    needed.clear()
    storage.write_trajectory(None, export("d"))
    assert storage.read_trajectory("a") is None
    found = storage.read_trajectory("c")
    assert found == export("c")
    storage.close()
