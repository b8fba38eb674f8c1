"""What is made once and kept, and what goes again."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from pearl_worker.cache import UNUSED_SECONDS, drop_unused, ensure_directory, no_space

if TYPE_CHECKING:
    from pathlib import Path


def aged(path: Path, seconds: float) -> Path:
    then = time.time() - seconds
    os.utime(path, (then, then))
    return path


def fill(draft: Path) -> None:
    (draft / "content").write_text("made")


def made(cache: Path, name: str, seconds: float = 0.0) -> Path:
    return aged(ensure_directory(cache / name, fill), seconds)


def test_neighbours_that_nobody_used_for_two_weeks_go_when_an_entry_is_made(tmp_path: Path) -> None:
    old, used_again, young = (made(tmp_path, name) for name in ("old", "used-again", "young"))
    for one in (old, used_again):
        aged(one, UNUSED_SECONDS + 60)
    aged(young, UNUSED_SECONDS - 60)
    assert made(tmp_path, "used-again") == used_again  # the same key again is a use
    made(tmp_path, "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "used-again", "young"]


def test_files_go_too_but_not_the_newest_nor_those_of_other_names(tmp_path: Path) -> None:
    def archive(name: str, seconds: float) -> Path:
        path = tmp_path / name
        path.write_text("tar")
        return aged(path, seconds)

    for k in range(4):
        archive(f"worker-{k}.tar", 7200 - k)
    archive("operator-0.tar", 7200)
    drop_unused(archive("worker-4.tar", 7200), "worker-*.tar", keep=2, unused_seconds=3600)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["operator-0.tar", "worker-3.tar", "worker-4.tar"]


def test_a_full_disk_is_told_with_what_is_needed(tmp_path: Path) -> None:
    assert no_space(tmp_path / "not" / "there" / "yet", 0.0) is None
    said = no_space(tmp_path, 1e9)
    assert said is not None
    assert f"needed at {tmp_path}" in said
