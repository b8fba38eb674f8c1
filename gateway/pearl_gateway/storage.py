"""What survives a restart of the gateway: the token log, the export, the batch log and the profile sketch.

Files in the directory: `turns.jsonl` (one line per turn that entered a log, see `journal`), `trajectories.jsonl` (one
`{"step", "export"}` per ended trajectory), `batches.jsonl` (one event per line), all append-only, and `profile.json`
(replaced atomically). A line that a crash cut short is skipped at start.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pearl_api.wire.gateway import TrajectoryExport
from pearl_planner.profile import Profile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_PROFILE_EVERY_SECONDS = 5.0


class Storage:
    """Appends to the files of one directory; every write is handed to the operating system at once.

    Raises:
        OSError: the directory cannot be made or written; the gateway must not start then.
    """

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._clock = clock
        self._profile_path = folder / "profile.json"
        self._profile_written = float("-inf")
        self._offsets: dict[str, int] = {}
        self._exports = (folder / "trajectories.jsonl").open("a+b")
        self._events = (folder / "batches.jsonl").open("a+b")
        self._turns = (folder / "turns.jsonl").open("a+b")
        for offset, line in _lines(self._exports):
            self._offsets[line["export"]["trajectory"]] = offset

    def write_trajectory(self, step: int | None, export: TrajectoryExport) -> None:
        """Append one ended trajectory."""
        body = {"step": step, "export": export.model_dump(mode="json", by_alias=True)}
        self._offsets[export.trajectory] = _append(self._exports, body)

    def read_trajectory(self, name: str) -> TrajectoryExport | None:
        """An ended trajectory, or None if it was never written."""
        offset = self._offsets.get(name)
        if offset is None:
            return None
        self._exports.seek(offset)
        return TrajectoryExport.model_validate(json.loads(self._exports.readline())["export"])

    def write_event(self, event: dict[str, Any]) -> None:
        """Append one event of the batch log."""
        _append(self._events, event)

    def write_turn(self, line: dict[str, Any]) -> None:
        """Append one turn of the token log."""
        _append(self._turns, line)

    def read_turns(self) -> list[dict[str, Any]]:
        """Turns of trajectories that have not ended, oldest first; the others are dropped from the file."""
        live = [line for _, line in _lines(self._turns) if line["trajectory"] not in self._offsets]
        self._turns.truncate(0)
        for line in live:
            _append(self._turns, line)
        return live

    def read_events(self) -> list[dict[str, Any]]:
        """The batch log, oldest first."""
        return [event for _, event in _lines(self._events)]

    def write_profile(self, profile: Profile) -> None:
        """Replace the sketch, at most every few seconds."""
        now = self._clock()
        if now - self._profile_written < _PROFILE_EVERY_SECONDS:
            return
        self._profile_written = now
        draft = self._profile_path.with_suffix(".tmp")
        draft.write_text(json.dumps(profile.to_dict()))
        draft.replace(self._profile_path)

    def read_profile(self) -> Profile | None:
        """The sketch of the former process, None if there is none that can be read."""
        try:
            return Profile.from_dict(json.loads(self._profile_path.read_text()))
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        """Close the files."""
        for file in (self._exports, self._events, self._turns):
            file.close()


def _append(file: Any, content: dict[str, Any]) -> int:
    """Write one line and hand it over; where it begins."""
    offset: int = file.seek(0, 2)
    file.write(json.dumps(content, separators=(",", ":")).encode() + b"\n")
    file.flush()
    return offset


def _lines(file: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    file.seek(0)
    while True:
        offset = file.tell()
        line = file.readline()
        if not line:
            return
        try:
            yield offset, json.loads(line)
        except ValueError:
            # A crash cut the line short: what it said was never acknowledged. The next line starts after it.
            if not line.endswith(b"\n"):
                file.write(b"\n")
