"""Progress, the table at the end, and the JSON file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loans_chaos.runner import as_row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from loans_chaos.load import Asked
    from loans_chaos.runner import Played
    from loans_chaos.scene import Scene

    Play = Callable[[Scene], Played]


@dataclass(frozen=True, slots=True)
class Result:
    """A whole run."""

    played: Sequence[Played]
    turns: Sequence[Asked]
    left: Sequence[str]
    """What a loan left behind."""
    watch: dict[str, Any]

    @property
    def problems(self) -> list[str]:
        """Everything that must not be; empty where all held."""
        found = [f"{one.name}: {problem}" for one in self.played for problem in one.problems]
        lost = [f"turn {turn.trajectory} is lost: {turn.problem}" for turn in self.turns if turn.problem]
        return found + lost + [f"left behind: {one}" for one in self.left]

    def summary(self) -> dict[str, Any]:
        """The figures."""
        free = [one for one in self.played if one.outcome == "Free"]
        return {
            "cases": len(self.played),
            "free": len(free),
            "not_returned": sum(one.outcome == "NotReturned" for one in self.played),
            "longest_free_seconds": max((one.seconds for one in free), default=None),
            "double_holders": self.watch["overlaps"],
            "turns": len(self.turns),
            "turns_asked_again": sum(turn.tries > 1 for turn in self.turns),
            "turns_lost": sum(bool(turn.problem) for turn in self.turns),
            "left_behind": list(self.left),
            "problems": len(self.problems),
            **self.watch,
        }

    def write(self, file: Path) -> None:
        """As JSON."""
        content = {"summary": self.summary(), "cases": [as_row(one) for one in self.played], "problems": self.problems}
        file.write_text(json.dumps(content, indent=1))


def run(scene: Scene, plays: Sequence[Play], say: Callable[[str], None]) -> Result:
    """Plays all, says how each went, ends the scene."""
    played = []
    for number, each in enumerate(plays):
        played.append(each(scene))
        say(f"[{number + 1}/{len(plays)}] {line(played[-1])}")
        if played[-1].last:
            break
    turns, left, watch = scene.load.close(), scene.close(), scene.watch
    seen = {
        "looks": watch.looks,
        "looks_with_engine": watch.engine_looks,
        "looks_while_training": watch.training_looks,
        "longest_pause_seconds": round(watch.longest_pause, 3),
        "overlaps": len(watch.overlaps),
    }
    return Result(played, turns, left, seen)


def line(one: Played) -> str:
    """One row of the table."""
    how = f"{one.outcome} {one.via}{' killed' if one.killed else ''}".strip()
    after = f", free at try {one.again + 1}" if one.again else ""
    verdict = "ok" if not one.problems else "; ".join(one.problems)
    return f"{one.name:45s} {how:22s} {one.seconds:5.2f} s{after}  ({one.lasted:.0f} s)  {verdict}"
