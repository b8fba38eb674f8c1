"""`pearl-sim replay-snapshot FILE`: decisions that an operator recorded, made again by this version's planner."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table

from pearl_planner.plan import plan
from pearl_planner.serialize import dumps, policy_from_json, snapshot_from_json, to_json
from pearl_simulator.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from pearl_planner.types import Plan, Prediction

_KEYS: Final = ("snapshot", "policy", "plan")
_WHERE: Final = "save what GET /debug/snapshot/ROLLOUT of the operator answers, or one entry of it"


@dataclass(frozen=True, slots=True)
class Replayed:
    """One recorded decision and what this planner decides from the same snapshot."""

    recorded: dict[str, Any]
    again: Plan

    @property
    def equal(self) -> bool:
        """Byte for byte."""
        return dumps(self.again) == dumps(self.recorded)

    @property
    def differing(self) -> list[str]:
        """Fields of the plan that differ."""
        again = to_json(self.again)
        return sorted(key for key in again.keys() | self.recorded.keys() if again.get(key) != self.recorded.get(key))


def replay(path: Path) -> list[Replayed]:
    """All decisions of the file, oldest first.

    Raises:
        InputError: it is no recording.
    """
    return [_replayed(path, number, entry) for number, entry in enumerate(_entries(path), start=1)]


def _entries(path: Path) -> list[Any]:
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); check the path") from error
    except ValueError as error:
        raise InputError(f"{path} is no JSON ({error}); {_WHERE}") from error
    entries = data if isinstance(data, list) else [data]
    if not entries:
        raise InputError(f"{path} holds no decision; {_WHERE}")
    return entries


def _replayed(path: Path, number: int, entry: Any) -> Replayed:
    if not isinstance(entry, dict) or not all(isinstance(entry.get(key), dict) for key in _KEYS):
        raise InputError(f"{path}: entry {number} has no objects {', '.join(_KEYS)}; {_WHERE}")
    try:
        snapshot, policy = snapshot_from_json(entry["snapshot"]), policy_from_json(entry["policy"])
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        said = f"{type(error).__name__}: {error}"
        raise InputError(f"{path}: snapshot or policy of entry {number} is not this version's form ({said})") from error
    return Replayed(entry["plan"], plan(snapshot, policy))


def show(replayed: list[Replayed], console: Console) -> None:
    """Each decision with its finalists, and whether it is the recorded one."""
    for number, one in enumerate(replayed, start=1):
        decided = one.again
        console.print(
            f"{number}. {decided.reason.value}, {decided.shape}: {decided.message}", highlight=False, markup=False
        )
        if decided.finalists:
            console.print(_finalists(decided.finalists))
        if one.equal:
            console.print("   equals the recorded decision byte for byte", highlight=False)
        else:
            told = f"{one.recorded.get('reason')}: {one.recorded.get('message')}"
            console.print(f"   differs in {', '.join(one.differing)}; recorded: {told}", highlight=False, markup=False)


def _finalists(predictions: tuple[Prediction, ...]) -> Table:
    table = Table("shape", "turns/s", "rest of batch, s", "switch cost, s", "feasible", "note")
    for one in predictions:
        feasible = "yes" if one.feasible else "no"
        numbers = (_number(one.turns_per_second), _number(one.makespan_seconds), _number(one.switch_cost_seconds))
        table.add_row(str(one.shape), *numbers, feasible, one.note)
    return table


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
