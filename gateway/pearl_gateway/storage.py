"""What survives a restart of the gateway: the token log, the export, the batch log and the profile sketch.

Logs in the directory (see `segments`): `turns` (a line per turn that entered a log, see `journal`), `trajectories` (one
`{"step", "export"}` per ended trajectory), `batches` (one event per line); and `profile.json`, replaced atomically.
A file of `turns` goes when all its trajectories have ended; the oldest of `trajectories` when there are too many bytes.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pearl_api.wire.gateway import TrajectoryExport
from pearl_gateway.segments import Segments
from pearl_planner.workload.profile import Profile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_PROFILE_EVERY_SECONDS = 5.0
_SEGMENT_BYTES = 16 << 20
MOST_EXPORT_BYTES = 512 << 20


class Storage:
    """The files of one directory.

    Raises:
        OSError: the directory cannot be made or written; the gateway must not start then.
    """

    def __init__(
        self,
        folder: Path,
        clock: Callable[[], float],
        *,
        segment_bytes: int = _SEGMENT_BYTES,
        most_export_bytes: int = MOST_EXPORT_BYTES,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._clock = clock
        self._most_export_bytes = most_export_bytes
        self._profile_path = folder / "profile.json"
        self._profile_written = float("-inf")
        self._exports = Segments(folder, "trajectories", segment_bytes)
        self._events = Segments(folder, "batches", segment_bytes)
        self._turns = Segments(folder, "turns", segment_bytes)
        self._where = {line["export"]["trajectory"]: (number, offset) for number, offset, line in self._exports.lines()}
        self.needed: Callable[[str], bool] = lambda _: False
        """Says whether the export of a trajectory may not be dropped yet."""
        self._steps: dict[int, set[int]] = {}
        """File of `batches` → steps that it tells of."""
        self._unfinished: dict[int, set[str]] = {}
        """File of `turns` → trajectories in it that have not ended."""

    def write_trajectory(self, step: int | None, export: TrajectoryExport) -> None:
        """Append one ended trajectory; its turns are not needed any more."""
        body = {"step": step, "export": export.model_dump(mode="json", by_alias=True)}
        self._where[export.trajectory] = self._exports.append(body)
        self._forget_turns(export.trajectory)
        if len(self._exports.numbers) > 1 and self._exports.bytes() > self._most_export_bytes:
            self._drop_oldest_exports()

    def _drop_oldest_exports(self) -> None:
        oldest = self._exports.numbers[0]
        names = [name for name, at in self._where.items() if at[0] == oldest]
        if any(self.needed(name) for name in names):
            return  # a full disk is seen; a lost trajectory is not
        self._exports.drop(oldest)
        for name in names:
            del self._where[name]

    def read_trajectory(self, name: str) -> TrajectoryExport | None:
        """An ended trajectory, or None if it was never written or is long gone."""
        at = self._where.get(name)
        return None if at is None else TrajectoryExport.model_validate(self._exports.read(*at)["export"])

    def has_trajectory(self, name: str) -> bool:
        """Whether the export of an ended trajectory is here."""
        return name in self._where

    def write_event(self, event: dict[str, Any]) -> None:
        """Append one event of the batch log."""
        number, _ = self._events.append(event)
        self._steps.setdefault(number, set()).add(_step_of(event))

    def read_events(self) -> list[dict[str, Any]]:
        """The batch log, oldest first."""
        events = []
        for number, _, event in self._events.lines():
            self._steps.setdefault(number, set()).add(_step_of(event))
            events.append(event)
        return events

    def keep_events(self, steps: set[int]) -> None:
        """Drop the oldest files of the batch log that tell of no batch in `steps`.

        Only from the oldest on: what is left never tells of an end whose beginning says otherwise.
        """
        for number in self._events.numbers[:-1]:
            if self._steps.get(number, set()) & steps:
                return
            self._events.drop(number)
            self._steps.pop(number, None)

    def write_turn(self, line: dict[str, Any]) -> None:
        """Append one turn of the token log."""
        number, _ = self._turns.append(line)
        self._unfinished.setdefault(number, set()).add(line["trajectory"])

    def read_turns(self) -> list[dict[str, Any]]:
        """Turns of trajectories that have not ended, oldest first."""
        live = []
        for number, _, line in self._turns.lines():
            names = self._unfinished.setdefault(number, set())
            if line["trajectory"] not in self._where:
                names.add(line["trajectory"])
                live.append(line)
        return live

    def _forget_turns(self, name: str) -> None:
        for number in list(self._unfinished):
            names = self._unfinished[number]
            names.discard(name)
            if not names and number != self._turns.numbers[-1]:
                self._turns.drop(number)
                del self._unfinished[number]

    def write_profile(self, made: Callable[[], Profile]) -> None:
        """Replace the sketch with one that is made for it, at most every few seconds."""
        now = self._clock()
        if now - self._profile_written < _PROFILE_EVERY_SECONDS:
            return
        self._profile_written = now
        draft = self._profile_path.with_suffix(".tmp")
        draft.write_text(json.dumps(made().to_dict()))
        draft.replace(self._profile_path)

    def read_profile(self) -> Profile | None:
        """The sketch of the former process, None if there is none that can be read."""
        try:
            return Profile.from_dict(json.loads(self._profile_path.read_text()))
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        """Close the files."""
        for log in (self._exports, self._events, self._turns):
            log.close()


def _step_of(event: dict[str, Any]) -> int:
    return int(event["spec"]["step"] if event["event"] == "open" else event["step"])
